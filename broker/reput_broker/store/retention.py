"""The rules of retention (RocketMQ: MessageStoreConfig, DefaultMessageStore).

When files are deleted:

    hour in delete_when          files not changed for file_reserved_ms
    disk > disk_max_used_ratio   the same, at any hour
    disk > disk_clean_forcibly   the oldest files whatever their age, unless clean_file_forcibly is off
    disk > disk_warning          that too, and puts are refused until the disk is at or below disk_clean_forcibly

Without the gap between the last two, a disk near one limit would make puts alternate between refused and accepted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

UNREADABLE = -1.0


def disk_used_ratio(path: Path) -> float:
    """Used part of the file system of `path`: 0 to 1, in whole percent, rounded up. Blocks.

    Space reserved for the superuser counts neither as used nor as free. For a missing directory, the place where it
    would be created counts. `UNREADABLE` if the system does not say.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        disk = os.statvfs(path)
    except OSError:
        return UNREADABLE
    used = disk.f_blocks - disk.f_bfree
    usable = used + disk.f_bavail
    return -(-used * 100 // usable) / 100 if usable else UNREADABLE


DiskUsage = Callable[[Path], float]
"""Returns the used part, 0 to 1, of a path's disk; negative if unreadable. May block."""

MANUAL_ROUNDS = 20
"""Rounds for which a manual deletion stays in effect, whatever the hour."""


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """Settings of the operator, with RocketMQ's names and defaults. Times are in milliseconds."""

    file_reserved_ms: int = 72 * 3_600_000
    """How long a log file is kept after its last change (fileReservedTime)."""
    delete_when: frozenset[int] = frozenset({4})
    """Local hours, 0 to 23, in which expired files are deleted (deleteWhen)."""
    disk_max_used_ratio: float = 0.75
    """Above it expired files are deleted at any hour (diskMaxUsedSpaceRatio)."""
    disk_clean_forcibly_ratio: float = 0.85
    """Above it files are deleted whatever their age (diskSpaceCleanForciblyRatio)."""
    disk_warning_ratio: float = 0.90
    """Above it puts are refused (diskSpaceWarningLevelRatio)."""
    clean_file_forcibly: bool = True
    """Whether files that have not expired may be deleted for lack of space (cleanFileForciblyEnable)."""
    delete_files_batch: int = 10
    """Maximum number of log files deleted in one round (deleteFileBatchMax)."""
    destroy_forcibly_ms: int = 120_000
    """How long readers can delay the deletion of a file (destroyMapedFileIntervalForcibly)."""
    redelete_hanged_ms: int = 120_000
    """Interval of retries for a file that was held, while no round is due (redeleteHangedFileInterval)."""


class DiskLevel(StrEnum):
    """The consequence of the disk's usage."""

    OK = "ok"
    CLEAN = "clean"
    """Expired files are deleted now; any file above `disk_clean_forcibly_ratio`."""
    REFUSE = "refuse"
    """As CLEAN, and puts are refused."""


class DiskWatch:
    """Applies the rules to the disks and remembers whether puts are refused.

    Args:
        log_directories: where new log files may be created; the least used of their disks counts.
    """

    def __init__(self, usage: DiskUsage, log_directories: Sequence[Path], queue_directory: Path) -> None:
        self._usage = usage
        self._log_directories = tuple(log_directories)
        self._queue_directory = queue_directory
        self.level = DiskLevel.OK
        self.used_ratio = 0.0
        """Usage of the fuller of both disks at the last look; negative if one of them could not be read."""
        self.forces = False
        """Whether a disk was so full at the last look that files are deleted whatever their age."""
        self.full_directories: frozenset[Path] = frozenset()
        """Log directories on disks that were that full at the last look; no new files are created there."""
        self.refusal: str | None = None
        """Why puts are refused; None while they are not."""

    def look(self, rules: RetentionRules) -> DiskLevel:
        """Read the usage of the disks and apply the rules. Blocks."""
        looks = [(path, self._usage(path)) for path in self._log_directories]
        limit = rules.disk_clean_forcibly_ratio
        self.full_directories = frozenset(path for path, used in looks if used > limit)
        # A new file goes to the least used readable disk; an unreadable one counts as full.
        readable = [found for found in looks if found[1] >= 0] or looks
        directory, used = min(readable, key=lambda found: found[1])
        queues_used = self._usage(self._queue_directory)
        unreadable = min(queues_used, *(found[1] for found in looks)) < 0
        if queues_used > used:
            directory, used = self._queue_directory, queues_used
        self.used_ratio = UNREADABLE if unreadable else used
        self.forces = used > rules.disk_clean_forcibly_ratio
        if used > rules.disk_warning_ratio:
            self.refusal = (
                f"the disk of {directory} is {used:.0%} used, and above {rules.disk_warning_ratio:.0%} "
                f"(store.disk_warning_ratio) messages are rejected until it is down to "
                f"{rules.disk_clean_forcibly_ratio:.0%} (store.disk_clean_forcibly_ratio)"
            )
        elif not self.forces:
            self.refusal = None
        if self.refusal is not None:
            self.level = DiskLevel.REFUSE
        elif unreadable or used > rules.disk_max_used_ratio:
            self.level = DiskLevel.CLEAN
        else:
            self.level = DiskLevel.OK
        return self.level
