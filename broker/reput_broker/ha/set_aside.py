"""Move the log of a slave aside that its master cannot continue, with everything that was derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reput_broker.store.file_io import make_directories, sync_directory
from reput_broker.store.opening.abort_marker import AbortMarker
from reput_broker.store.opening.lock import DirectoryLock

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
