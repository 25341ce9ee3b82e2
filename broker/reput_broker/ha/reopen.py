"""What must be done to the store of a slave before it can copy its master's log.

    1  the slave notes it in `reopen.json` of the data directory, durably, and closes the store
    2  the next opening of the store does what the note says: it moves the log aside (`set_store_aside`), or truncates
       it and forgets the progress that its end had (`Storage`)
    3  the note is removed

Both consist of many steps. After a kill before step 3 the next start completes them, in any role.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from reput_broker.store.base.errors import StoreDamaged
from reput_broker.store.base.file_io import make_directories, replace_file, sync_directory
from reput_broker.store.opening.lock import AbortMarker, DirectoryLock


@dataclass(frozen=True, slots=True)
class Reopen:
    """How a store must be opened. Its methods block."""

    truncate_to: int | None = None
    """The log offset where the log must end."""
    aside: str | None = None
    """The name under which the log must be moved aside."""
    reason: str = ""

    def note(self, data_dir: Path) -> None:
        """Note it for the next opening, durably.

        Raises:
            DiskFull, FlushFailed, OSError: nothing is noted.
        """
        replace_file(_path(data_dir), msgspec.json.encode(self))

    @classmethod
    def noted(cls, data_dir: Path) -> Reopen:
        """Return the noted steps; none if there is no note.

        Raises:
            StoreDamaged: the note is not readable.
        """
        path = _path(data_dir)
        if not os.access(path, os.F_OK):  # nor if the directory is missing or unusable; the store says which
            return cls()
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except msgspec.MsgspecError as error:
            raise StoreDamaged(
                path, 0, f"it does not say what to do: {error}", "remove it; the slave decides again"
            ) from None

    def done(self, data_dir: Path) -> None:
        """Remove the note, durably, if there is one."""
        path = _path(data_dir)
        if path.exists():
            path.unlink()
            sync_directory(data_dir)


def _path(data_dir: Path) -> Path:
    return data_dir / "reopen.json"


_NAMES = (
    "consumequeue", "consumequeue_ext", "index", "checkpoint", "deletedTopics", "epochFileCheckpoint", "timerwheel",
    "timerlog", "config/timercheck", "config/delayOffset.json", "config/delayOffset.json.bak",
    "config/masterTimer.json", "config/masterTimer.json.bak", "config/sinkBatches.json", "config/sinkBatches.json.bak",
    "abort",
)  # fmt: skip


def set_store_aside(data_dir: Path, log_dirs: Sequence[Path], stamp: str) -> Path:
    """Move the log of a closed store, and what was derived from it, to `aside/STAMP` of the data directory. Blocks.

    Directories of the log elsewhere are renamed to `NAME.aside-STAMP`, because they may be on other disks. Topics,
    groups and offsets stay. After a kill, another call with the same stamp moves what is left.

    Raises:
        StoreLocked, LogDirectoryUnusable: another broker has the store.
        OSError: something cannot be moved; the text names it.
    """
    lock = DirectoryLock(data_dir / "lock", AbortMarker(data_dir / "abort"), log_dirs)
    lock.reserve()
    try:
        return _move(data_dir, log_dirs, stamp)
    finally:
        lock.release()


def _move(data_dir: Path, log_dirs: Sequence[Path], stamp: str) -> Path:
    target = data_dir / "aside" / stamp
    make_directories(target / "config")
    for log_dir in log_dirs:
        if not log_dir.is_dir():
            continue
        if log_dir.parent == data_dir:
            log_dir.rename(target / log_dir.name)
        else:
            log_dir.rename(log_dir.with_name(f"{log_dir.name}.aside-{stamp}"))
            sync_directory(log_dir.parent)
    for name in _NAMES:
        if (data_dir / name).exists():
            (data_dir / name).rename(target / name)
    for directory in (target, target / "config", data_dir, data_dir / "config"):
        if directory.is_dir():
            sync_directory(directory)
    return target
