"""One directory in the place of another: in one step or in two, and what a kill between the two leaves."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from reput_broker.store.base.errors import FlushFailed, ForeignFile, StoreDamaged
from reput_broker.store.opening import directory_swap
from reput_broker.store.opening.directory_swap import exchange, put_back, swap
from reput_protocol.store.files import standing_for
from support.store_samples import copied, examine, fill, hashes, records_of
from support.stores import bodies, flip_bit, opened, small_options


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A new directory and the place of the old one, each with a file that says which it is."""
    new, place = tmp_path / "new", tmp_path / "index"
    for path in (new, place):
        path.mkdir()
        (path / "which").write_text(path.name)
    return new, place


def which(path: Path) -> str:
    return (path / "which").read_text()


def test_two_names_change_places(pair: tuple[Path, Path]) -> None:
    assert exchange(*pair), "Linux can"
    assert [which(path) for path in pair] == ["index", "new"]
    with pytest.raises(FileNotFoundError):
        exchange(pair[0], pair[1].with_name("none"))


@pytest.mark.parametrize("one_step", [True, False])
def test_the_old_one_gets_the_name_of_the_new(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, one_step: bool
) -> None:
    if not one_step:
        monkeypatch.setattr(directory_swap, "exchange", lambda *_: False)
    swap(*pair)
    assert [which(path) for path in pair] == ["index", "new"]
    assert len(list(pair[0].parent.iterdir())) == 2
    shutil.rmtree(pair[1])
    swap(*pair)
    assert which(pair[1]) == "index"
    assert not pair[0].exists(), "nothing was there"


@pytest.mark.parametrize("fails", ["rename", "sync"])
def test_a_failed_second_step_is_undone(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    new, place = pair
    real = os.rename

    def rename(source: Any, target: Any) -> None:
        if source == new:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(source, target)

    def sync(path: Path) -> None:
        raise FlushFailed(path, OSError(errno.EIO, os.strerror(errno.EIO)))

    monkeypatch.setattr(directory_swap, "exchange", lambda *_: False)
    if fails == "rename":
        monkeypatch.setattr(os, "rename", rename)
    else:
        monkeypatch.setattr(directory_swap, "sync_directory", sync)
    with pytest.raises((OSError, FlushFailed)):
        swap(new, place)
    assert [which(path) for path in pair] == ["new", "index"]


def test_a_name_that_is_taken_is_refused(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_swap, "exchange", lambda *_: False)
    pair[1].with_name("index.replaced").mkdir()
    with pytest.raises(ForeignFile, match="moved to this name"):
        swap(*pair)
    assert which(pair[1]) == "index"


# What a start, and a look, makes of it


@pytest.fixture
def between(tmp_path: Path) -> Path:
    """A store as a kill between the two renames leaves it."""
    root = tmp_path / "store"
    fill(root)
    for name in directory_swap.SWAPPED:
        (root / name).rename(root / f"{name}.replaced")
    return root


def test_a_start_puts_it_back(between: Path) -> None:
    events: list[tuple[str, object]] = []
    options = small_options(between, on_event=lambda event, facts: events.append((event, facts["path"])))
    store = opened(options)
    assert events == [("directory_put_back", str(between / name)) for name in directory_swap.SWAPPED]
    assert len(bodies(store)) == 30
    assert store.close()
    assert not list(between.glob("*.replaced"))
    assert examine(between).report.is_clean


@pytest.mark.parametrize("has_lock", [True, False])
def test_a_refused_start_leaves_it_as_it_was(between: Path, has_lock: bool) -> None:
    last = records_of(between)[-1]
    flip_bit(last.path, last.body)
    if not has_lock:
        (between / "lock").unlink()
    before = hashes(between)
    with pytest.raises(StoreDamaged):
        opened(small_options(between))
    after = hashes(between)
    # Who puts something back must own the directory: a lock file that was not there is made for that, and stays.
    assert after.pop("lock") is not None
    before.pop("lock", None)
    assert after == before


def test_a_look_finds_it_where_it_is(between: Path) -> None:
    before = hashes(between)
    found = examine(between)
    assert found.report.is_clean, found.report.faults
    assert [note for note in found.report.notes if "rebuild was killed" in note]
    assert hashes(between) == before


def test_a_directory_that_is_there_stays(between: Path, tmp_path: Path) -> None:
    """Killed after the second rename: what is there is new, and complete."""
    new = copied(between / "index.replaced", between / "index")
    assert standing_for(new) == new
    assert put_back(between) == [between / "consumequeue"]
    assert (between / "index.replaced").is_dir()
