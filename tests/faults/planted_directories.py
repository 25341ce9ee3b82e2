"""Bugs to plant in what handles whole directories: the locks, a repair, a rebuild. See `planted.py`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from reput_broker.store.base import file_io
from reput_broker.store.opening import directory_swap
from reput_broker.store.opening import lock as dir_lock
from reput_broker.store.opening import start as opening
from reput_broker.store.opening.lock import DirectoryLock, LogDirectoryLocks
from reput_broker.tools import rebuild, repair, repair_plan
from reput_broker.tools import rebuild as rebuild_queues
from reput_broker.tools.rebuild import QueuesRebuild
from reput_broker.tools.repair import SideDirectory


def _nothing(*_: object, **__: object) -> None:
    return None


def missing_directories_not_locked(patch: pytest.MonkeyPatch) -> None:
    """a directory of the log that is not there at the start is never locked"""
    patch.setattr(LogDirectoryLocks, "lock_new", _nothing)


def log_directories_not_locked(patch: pytest.MonkeyPatch) -> None:
    """only the store directory is locked, not those of the log"""
    patch.setattr(LogDirectoryLocks, "_flock", _nothing)


def lock_made_before_judged(patch: pytest.MonkeyPatch) -> None:
    """a start makes its lock file before it knows whether it will be refused"""
    real = DirectoryLock._open_lock_file

    def open_(self: DirectoryLock) -> None:
        file_io.make_directories(self.path.parent)
        self.path.touch()
        real(self)

    patch.setattr(DirectoryLock, "_open_lock_file", open_)


def refused_start_leaves_directories(patch: pytest.MonkeyPatch) -> None:
    """a refused start does not remove the directories that it has made"""
    patch.setattr(dir_lock, "remove_empty", _nothing)


def faster_owner_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """a start takes a lock file that has been made since it looked at the directory"""

    def make(self: DirectoryLock) -> int:
        self.path.touch()
        self._open_lock_file()
        assert self._fd is not None
        return self._fd

    patch.setattr(DirectoryLock, "_make_lock_file", make)


def side_files_share_a_name(patch: pytest.MonkeyPatch) -> None:
    """a repair moves files of one name over each other"""
    patch.setattr(SideDirectory, "place_for", lambda side, source: side.path / source.name)
    patch.setattr(repair, "move", lambda path, target: shutil.move(path, target))


def _copy_unsynced(source: Path, start: int, stop: int, target: Path) -> None:
    target.write_bytes(source.read_bytes()[start:stop])


def copy_not_synced_before_removal(patch: pytest.MonkeyPatch) -> None:
    """a repair removes a file from another disk before its copy is on this one"""
    patch.setattr(repair_plan, "copy_part", _copy_unsynced)


def cut_before_copies_are_synced(patch: pytest.MonkeyPatch) -> None:
    """a repair truncates the log before the copies of the removed part are on disk"""
    patch.setattr(repair, "copy_part", _copy_unsynced)


def side_names_not_synced(patch: pytest.MonkeyPatch) -> None:
    """a repair moves files into directories whose own names are not on the disk"""
    patch.setattr(repair_plan, "make_directories", lambda path: path.mkdir(parents=True, exist_ok=True))


def cut_without_a_mark(patch: pytest.MonkeyPatch) -> None:
    """a repair truncates the log and does not record its end in the checkpoint"""
    patch.setattr(repair, "_write_checkpoint", _nothing)


def queues_removed_before_replaced(patch: pytest.MonkeyPatch) -> None:
    """a rebuild removes what was there, and then renames what it made"""

    def swap(new: Path, place: Path) -> None:
        shutil.rmtree(place, ignore_errors=True)
        os.rename(new, place)

    patch.setattr(rebuild, "swap", swap)


def killed_rebuild_not_put_back(patch: pytest.MonkeyPatch) -> None:
    """a start does not look for queues that a killed rebuild left under another name"""
    patch.setattr(opening, "is_out_of_place", lambda _: False)
    patch.setattr(directory_swap, "exchange", lambda *_: False)


def expired_queues_not_kept(patch: pytest.MonkeyPatch) -> None:
    """a rebuild makes only the queues that have messages in the log"""
    patch.setattr(QueuesRebuild, "_keep_expired", lambda _: 0)


def expired_queues_not_synced(patch: pytest.MonkeyPatch) -> None:
    """a rebuild replaces the queues before all of the new ones is on the disk"""
    patch.setattr(rebuild_queues, "_copy", shutil.copyfile)
