"""The clocks and disks that a broker uses, in one value, so that tests can replace them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from reput_broker.store.retention import DiskUsage, disk_used_ratio


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _local_hour() -> int:
    return time.localtime().tm_hour


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Clocks and disks. Called from the event loop and from worker threads."""

    clock_ms: Callable[[], int] = _clock_ms
    """Milliseconds since the epoch: store times, ages of files, versions of tables."""
    monotonic_ms: Callable[[], int] = _monotonic_ms
    """Milliseconds for the intervals of retention."""
    local_hour: Callable[[], int] = _local_hour
    """Hour of the day, 0 to 23, for `store.delete_when`."""
    disk_usage: DiskUsage = disk_used_ratio
    """The used part of the disk of a directory."""
