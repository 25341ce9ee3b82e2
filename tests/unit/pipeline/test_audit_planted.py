"""`audit` finds all damage that was planted, and nothing else; the tasks run here, without Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from reput_broker.tools.verify_parts import Directory
from reput_pipeline.jobs.audit import audit
from reput_pipeline.jobs.run import JobRun
from support.planted_damage import KINDS, Finding, Planter, explained
from support.store_samples import copied, fill

SLOTS = 16


class Here:
    """Runs every task in this process, the last one first."""

    def each(self, what: str, items: Sequence[Any], work: Callable[[Any], Iterable[Any]]) -> list[Any]:
        assert what
        results = [[*work(item)] for item in reversed(items)]
        return [result for some in reversed(results) for result in some]


def audited(root: Path) -> set[Finding]:
    verification, _ = audit(cast("JobRun", Here()), Directory(root))
    faults = verification.report.faults
    found = {Finding(fault.kind, fault.file, fault.position) for fault in faults}
    assert len(found) == len(faults), "a fault is named once"
    return found


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound") / "store"
    fill(root, messages=300)
    assert audited(root) == set()
    return root


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_damage_is_named_and_nothing_else(sound: Path, tmp_path: Path, kind: str) -> None:
    for seed in range(2):
        root = copied(sound, tmp_path / f"{seed}")
        planted = Planter(root, seed, slots=SLOTS).plant(kind)
        assert len(planted) == 1
        text = explained(planted, audited(root))
        assert not text, text


@pytest.mark.parametrize("seed", range(12))
def test_many_damages_are_all_named_and_nothing_else(sound: Path, tmp_path: Path, seed: int) -> None:
    root = copied(sound, tmp_path / "store")
    rng = random.Random(seed)
    planted = Planter(root, seed, slots=SLOTS).plant(*rng.choices([*KINDS], k=rng.randint(2, 9)))
    assert planted
    text = explained(planted, audited(root))
    assert not text, text
