"""Kill the broker between any two system calls of a save, and check what the next one finds."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tables.table_saver import save_now

_CALLS = ("open", "write", "fsync", "replace", "rename", "unlink", "ftruncate", "close")


def _open(config_dir: Path) -> ConsumerOffsetManager:
    manager = ConsumerOffsetManager(config_dir / "consumerOffset.json", clock_ms=lambda: 0)
    manager.load()
    return manager


class _Moments:
    """A copy of the directory before and after every system call, with what was acknowledged by then."""

    def __init__(self, directory: Path, copies: Path) -> None:
        self.directory, self.copies = directory, copies
        self.acknowledged: dict[int, int] = {}
        self.taken: list[tuple[str, Path, dict[int, int]]] = []
        self._copying = False

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            if self._copying:
                return call(*args, **options)
            self._take(f"before {name}")
            result = call(*args, **options)
            self._take(f"after {name}")
            return result

        return wrapped

    def _take(self, label: str) -> None:
        self._copying = True
        copy = self.copies / str(len(self.taken))
        shutil.copytree(self.directory, copy)
        self.taken.append((label, copy, dict(self.acknowledged)))
        self._copying = False


def test_no_kill_during_a_save_takes_an_acknowledged_offset_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_dir = tmp_path / "config"
    manager = _open(config_dir)
    moments = _Moments(config_dir, tmp_path / "copies")
    for name in _CALLS:
        monkeypatch.setattr(os, name, moments.wrap(name, getattr(os, name)))

    def commit(queue_id: int, offset: int) -> None:
        manager.commit("g", "t", queue_id, offset)
        moments.acknowledged[queue_id] = offset

    for generation in range(1, 4):
        commit(0, 10 * generation)
        commit(1, 10 * generation)
        job = manager.begin_save()
        assert job is not None
        commit(0, 10 * generation + 1)
        job.write()
        commit(1, 10 * generation + 2)
        commit(2 + generation, 5)
        job.adopt()
        commit(0, 10 * generation + 3)
        job.sync()
    monkeypatch.undo()
    manager.close()
    assert len(moments.taken) > 50

    for label, copy, acknowledged in moments.taken:
        for _ in range(2):  # the start after the kill, and the one after that
            found = _open(copy)
            for queue_id, offset in acknowledged.items():
                seen = found.query("g", "t", queue_id)
                assert seen is not None, (label, copy)
                assert seen >= offset, (label, copy)
            found.close()
        assert not list(copy.glob("*.foreign-*")), (label, copy)
        # And it continues from there: a save and a commit on top.
        found = _open(copy)
        found.commit("g", "t", 0, 1000)
        save_now(found)
        found.commit("g", "t", 1, 1001)
        found.close()
        again = _open(copy)
        assert (again.query("g", "t", 0), again.query("g", "t", 1)) == (1000, 1001)
        again.close()


def test_a_kill_during_the_first_start_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_dir = tmp_path / "config"
    config_dir.mkdir()
    moments = _Moments(config_dir, tmp_path / "copies")
    for name in _CALLS:
        monkeypatch.setattr(os, name, moments.wrap(name, getattr(os, name)))
    manager = _open(config_dir)
    monkeypatch.undo()
    manager.close()
    for label, copy, _ in moments.taken:
        found = _open(copy)
        found.commit("g", "t", 0, 1)
        found.close()
        found = _open(copy)
        assert found.query("g", "t", 0) == 1, label
        found.close()


def test_a_journal_whose_last_rename_failed_still_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = _open(tmp_path)
    manager.commit("g", "t", 0, 1)
    real_replace = os.replace

    def replace(source: Path, target: Path) -> None:
        if Path(target).name == "consumerOffset.journal":
            raise OSError(5, "Input/output error")
        real_replace(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="Input/output"):
        save_now(manager)
    manager.commit("g", "t", 0, 2)
    with pytest.raises(OSError, match="Input/output"):
        save_now(manager)
    monkeypatch.undo()
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns("copy"))
    found = _open(copy)
    assert found.query("g", "t", 0) == 2
    found.close()
    save_now(manager)
    manager.commit("g", "t", 0, 3)
    manager.close()
    found = _open(tmp_path)
    assert found.query("g", "t", 0) == 3
    found.close()
