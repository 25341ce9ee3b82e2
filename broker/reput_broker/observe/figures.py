"""Figures that tasks look up at intervals, because a scrape must not touch files: disk use, delay of the event loop.

They carry the time at which they were looked up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog
import trio

from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import Histogram
from reput_broker.store.retention import DiskLevel

log = structlog.get_logger(__name__)

STORAGE_PARTS = ("commitlog", "consumequeue", "index", "timer", "other")
_PART_OF_DIRECTORY = {
    "commitlog": "commitlog",
    "consumequeue": "consumequeue",
    "consumequeue_ext": "consumequeue",
    "index": "index",
    "timerwheel": "timer",
    "timerlog": "timer",
}


@dataclass(slots=True)
class DiskFigures:
    """The result of the last look-up; all 0 before the first."""

    size_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STORAGE_PARTS, 0))
    free_bytes: int = 0
    used_ratio: float = 0.0
    log_free_bytes: int | None = None
    """Of the least used disk for log files; None if that is the disk of the data directory."""
    log_used_ratio: float = 0.0
    looked_up_at_s: float = 0.0
    oldest_store_timestamp_ms: int = -1
    """Store time of the oldest message; -1 if there is none."""
    level: DiskLevel = DiskLevel.OK
    """The effect of the disk's use, set by retention."""

    def take(self, other: DiskFigures) -> None:
        """Copy another result; the level stays."""
        self.size_bytes = other.size_bytes
        self.free_bytes = other.free_bytes
        self.used_ratio = other.used_ratio
        self.log_free_bytes = other.log_free_bytes
        self.log_used_ratio = other.log_used_ratio
        self.looked_up_at_s = other.looked_up_at_s
        self.oldest_store_timestamp_ms = other.oldest_store_timestamp_ms


def look_up_disk(
    data_dir: Path,
    oldest_store_timestamp: Callable[[], int],
    log_dirs: Sequence[Path] = (),
    read_only_log_dirs: Sequence[Path] = (),
    clock: Callable[[], float] = time.time,
) -> DiskFigures:
    """Return how much the store uses and how much is free. Blocks. Raises OSError if the directory is missing.

    Args:
        data_dir: the store directory.
        oldest_store_timestamp: returns the store time of the oldest message in milliseconds; -1 without one.
        log_dirs: directories for log files, if not `commitlog` in the data directory.
        read_only_log_dirs: directories with more log files.
        clock: the time in seconds.
    """
    figures = DiskFigures(looked_up_at_s=clock(), oldest_store_timestamp_ms=oldest_store_timestamp())
    figures.free_bytes, figures.used_ratio = free_and_used(data_dir)
    disks = [free_and_used(path) for path in log_dirs if path not in read_only_log_dirs and path.is_dir()]
    if disks:
        figures.log_free_bytes, figures.log_used_ratio = min(disks, key=lambda disk: disk[1])
    elsewhere = {path.resolve() for path in (*log_dirs, *read_only_log_dirs) if path.is_dir()}
    for path in elsewhere:
        figures.size_bytes["commitlog"] += sum(_taken_bytes(entry.path) for entry in os.scandir(path))
    for directory, _, names in os.walk(data_dir):
        if elsewhere and Path(directory).resolve() in elsewhere:
            continue
        top = Path(directory).relative_to(data_dir).parts[:1]
        part = _PART_OF_DIRECTORY.get(top[0], "other") if top else "other"
        figures.size_bytes[part] += sum(_taken_bytes(os.path.join(directory, name)) for name in names)
    return figures


async def refresh_disk_figures(
    figures: DiskFigures, config: BrokerConfig, oldest_store_timestamp: Callable[[], int]
) -> None:
    """Update `figures` until cancelled. `oldest_store_timestamp` is called in a worker thread."""
    store = config.store
    directories = (store.commit_log_dirs, store.read_only_commit_log_dirs)
    while True:
        try:
            figures.take(
                await trio.to_thread.run_sync(look_up_disk, config.data_dir, oldest_store_timestamp, *directories)
            )
        except OSError as error:
            log.warning("disk_figures_unavailable", path=str(config.data_dir), reason=error.strerror)
        await trio.sleep(config.metrics.refresh_interval)


def free_and_used(path: Path) -> tuple[int, float]:
    """Return the free bytes and the used part of the disk of a path. Raises OSError if the path is missing."""
    file_system = os.statvfs(path)
    used_blocks = file_system.f_blocks - file_system.f_bfree
    usable_blocks = used_blocks + file_system.f_bavail
    used_ratio = used_blocks / usable_blocks if usable_blocks else 0.0
    return file_system.f_bavail * file_system.f_frsize, used_ratio


def _taken_bytes(path: str) -> int:
    try:
        # Blocks, not the length: queue files are sparse. A block here is 512 bytes, whatever the file system uses.
        return os.stat(path, follow_symlinks=False).st_blocks * 512
    except OSError:  # deleted since the directory was read
        return 0


_INTERVAL_S = 0.5
"""Two wake-ups a second cost little, and show every stall that lasts."""


async def measure_loop_delay(histogram: Histogram) -> None:
    """Count how late a periodic task wakes, until cancelled."""
    while True:
        due = trio.current_time() + _INTERVAL_S
        await trio.sleep_until(due)
        histogram.observe(max(0.0, trio.current_time() - due))
