"""Checking a directory in parts finds what one walk through it finds: for sound ones, and for damage of every kind."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from reput_broker.tools.verify import Verification
from reput_broker.tools.verify_parts import Directory, examine_part, parts_of, put_together
from support.store_samples import copied, examine, fill
from support.stores import flip_bit


def found(verification: Verification) -> dict[str, Any]:
    """All results of a verification, in their order."""
    report = verification.report
    return {
        "faults": report.faults,
        "notes": report.notes,
        "kinds": dict(report.kinds),
        "figures": dict(report.figures),
        "queue_ends": verification.queue_ends,
        "renumbered": verification.renumbered,
        "damages": verification.log.damages,
        "kept_end": verification.log.kept_end,
    }


def in_parts(root: Path) -> tuple[Verification, list[int]]:
    """Verify a directory file by file, from the last one to the first."""
    directory = Directory(root)
    verification = directory.verification()
    verification.begin()
    verification.index.verify_files()
    parts = parts_of(verification, directory)
    findings = [examine_part(part) for part in reversed(parts)][::-1]
    again = put_together(verification, parts, findings)
    verification.conclude()
    return verification, again


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound") / "store"
    fill(root, messages=200)
    return root


def test_a_sound_store_is_read_once(sound: Path) -> None:
    verification, again = in_parts(sound)
    assert len(verification.layout.log.files) > 5
    assert again == []
    assert verification.report.is_clean
    assert found(verification) == found(examine(sound))


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_the_same_damage(sound: Path, tmp_path: Path, seed: int) -> None:
    root = copied(sound, tmp_path / "store")
    plant(root, random.Random(seed))
    assert found(in_parts(root)[0]) == found(examine(root))


def plant(root: Path, rng: random.Random) -> None:
    """Damage one to four things, some of them near each other, and leave some directories as a kill does."""
    paths = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size]
    by_kind = [[path for path in paths if kind in path.parts] for kind in ("commitlog", "consumequeue", "index")]
    for _ in range(rng.randint(1, 4)):
        path = rng.choice(rng.choice(by_kind))
        size = path.stat().st_size
        used = size if "index" not in path.parts else min(size, 900)
        what = rng.randrange(6)
        if what == 0 and "index" not in path.parts:
            data = bytearray(path.read_bytes())
            at = rng.randrange(size)
            data[at : at + 500] = bytes(len(data[at : at + 500]))
            path.write_bytes(data)
        elif what == 1:
            path.write_bytes(path.read_bytes()[: rng.randrange(1, size)])
        elif what == 2 and path != by_kind[0][0]:
            path.unlink()
            by_kind = [[kept for kept in kind if kept.exists()] for kind in by_kind]
        else:
            for _ in range(rng.randint(1, 3)):
                flip_bit(path, rng.randrange(used), rng.randrange(8))
    if rng.random() < 0.4:
        (root / "abort").touch()
    if rng.random() < 0.2:
        (root / "checkpoint").unlink()
