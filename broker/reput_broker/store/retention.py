"""Retention: its rules (RocketMQ: MessageStoreConfig, DefaultMessageStore), and the deletion of expired files.

When files are deleted:

    hour in delete_when          files not changed for file_reserved_ms
    disk > disk_max_used_ratio   the same, at any hour
    disk > disk_clean_forcibly   the oldest files whatever their age, unless clean_file_forcibly is off
    disk > disk_warning          that too, and puts are refused until the disk is at or below disk_clean_forcibly

Without the gap between the last two, a disk near one limit would make puts alternate between refused and accepted.

Deleted are the oldest files of the log, one at a time, and the files of queues and index that follow it (RocketMQ:
CleanCommitLogService, CleanConsumeQueueService, MappedFileQueue).

A round begins with `look`, which decides whether anything may be deleted now, and continues with `delete_next` until
nothing is left to delete. Rules:

- Only the oldest file, and never the last one.
- A file that was not changed for `file_reserved_ms` and holds no scheduled message, or any file while the disk is too
  full. The disk is checked again before each file that has not expired; RocketMQ deletes a whole batch.
- Only if its records have been dispatched and their queue entries synced. RocketMQ deletes it anyway; but a message
  without a queue entry was never delivered, and a queue that loses its last entries in a power failure would give their
  offsets to other messages.
- Only once no reader holds it. A held file accepts no new readers and does not count as part of the log. It is retried
  in each round and every `redelete_hanged_ms`. After `destroy_forcibly_ms` its name is removed; the bytes stay for the
  holder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Literal, NamedTuple

from reput_broker.store.base.checkpoint import StoreCheckpoint
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.index.file import index_file_size
from reput_broker.store.index.service import IndexService
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.log.mapped_file_queue import MappedFileQueue
from reput_broker.store.queue.consume_queue import ConsumeQueue
from reput_broker.store.queue.table import ConsumeQueueTable
from reput_protocol.store.unit import UNIT_BYTES

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


Reason = Literal["time", "disk"]


class DeletedFile(NamedTuple):
    """A log file that has been deleted."""

    base_offset: int
    size: int
    reason: Reason
    """`time`: it had expired. `disk`: the disk was too full."""


class CleanCommitLog:
    """Deletes files of one log in rounds. May run in a worker thread, one call at a time.

    Args:
        files: the log's files; they receive which directories are full.
        rules: called each time, so that they may change.
        deletable_end: files that end at or before this log offset may be deleted.
        clock_ms: wall clock that determines the age of files.
        monotonic_ms: clock for intervals.
        local_hour: 0 to 23.
        waiting_from: records from this log offset on may be scheduled messages.
    """

    def __init__(
        self,
        files: MappedFileQueue,
        rules: Callable[[], RetentionRules],
        disk: DiskWatch,
        *,
        deletable_end: Callable[[], int],
        clock_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        local_hour: Callable[[], int],
        waiting_from: Callable[[], int] | None = None,
    ) -> None:
        self.disk = disk
        self._files = files
        self._rules = rules
        self._deletable_end = deletable_end
        self._clock_ms = clock_ms
        self._monotonic_ms = monotonic_ms
        self._wall_ahead_ms = clock_ms() - monotonic_ms()
        self._local_hour = local_hour
        self._waiting_from = waiting_from
        self._manual_rounds = 0
        self._left = 0
        self._hanged_reason: Reason = "time"
        self._redeleted_ms = monotonic_ms()

    def delete_manually(self) -> None:
        """Delete expired files at any hour in the next rounds (RocketMQ: executeDeleteFilesManually)."""
        self._manual_rounds = MANUAL_ROUNDS

    def look(self) -> bool:
        """Check the clock and the disk; True begins a round. Blocks."""
        rules = self._rules()
        level = self.disk.look(rules)
        self._files.note_full(self.disk.full_directories)
        is_manual = self._manual_rounds > 0
        if is_manual:
            self._manual_rounds -= 1
        due = is_manual or level is not DiskLevel.OK or self._local_hour() in rules.delete_when
        self._left = rules.delete_files_batch if due else 0
        return due

    @property
    def hanged(self) -> MappedFile | None:
        """The oldest file if it is being deleted and still held."""
        first = self._files.first_file
        return None if first is None or first.is_available else first

    @property
    def is_unwritable(self) -> bool:
        """Whether the oldest file is in a directory in which nothing can be deleted."""
        first = self._files.first_file
        return first is not None and not first.is_writable

    @property
    def is_held_back(self) -> bool:
        """Whether the oldest file could not be deleted even if it had expired.

        It is the last one, is not dispatched and synced, or cannot be deleted in its directory.
        """
        files = self._files.files
        return len(files) < 2 or files[0].end_offset > self._deletable_end() or self.is_unwritable

    def delete_next(self) -> DeletedFile | None:
        """Delete the oldest file if the round may; None ends the round. Blocks.

        Raises:
            FlushFailed: the file is deleted, but the sync of the directory failed.
            OSError: the file could not be removed; the next round retries.
        """
        if self._left <= 0 or self.is_held_back:
            return None
        rules = self._rules()
        first = self._files.files[0]
        reason = self._hanged_reason if self.hanged is not None else self._reason_to_delete(first, rules)
        if reason is None:
            return None
        self._left -= 1
        deleted = self._delete_first(first, reason, rules)
        if deleted is None:
            self._left = 0
        return deleted

    def retry_hanged(self) -> DeletedFile | None:
        """Delete the oldest file if it was held when it was due and no longer is; None otherwise. Blocks.

        Acts at most every `redelete_hanged_ms`. Raises what `delete_next` does.
        """
        rules = self._rules()
        now_ms = self._monotonic_ms()
        if now_ms - self._redeleted_ms < rules.redelete_hanged_ms:
            return None
        self._redeleted_ms = now_ms
        hanged = self.hanged
        return None if hanged is None else self._delete_first(hanged, self._hanged_reason, rules)

    def _reason_to_delete(self, file: MappedFile, rules: RetentionRules) -> Reason | None:
        try:
            changed_ms = file.last_modified_ms
        except FileNotFoundError:  # removed by hand: release it
            changed_ms = 0
        waiting_from = self._waiting_from
        # By both clocks, so that a wall clock that is set forward does not expire the whole log.
        now_ms = min(self._clock_ms(), self._wall_ahead_ms + self._monotonic_ms())
        if now_ms >= changed_ms + rules.file_reserved_ms and (
            waiting_from is None or file.end_offset <= waiting_from()
        ):
            return "time"
        if self.disk.forces and rules.clean_file_forcibly:
            self.disk.look(rules)
            if self.disk.forces:
                return "disk"
        return None

    def _delete_first(self, first: MappedFile, reason: Reason, rules: RetentionRules) -> DeletedFile | None:
        self._hanged_reason = reason
        if not self._files.delete_first(rules.destroy_forcibly_ms, now_ms=self._monotonic_ms()):
            return None
        return DeletedFile(first.base_offset, first.size, reason)


class StoreCleaners:
    """Builds the cleaners of one store. Without an index there are no index files to clean."""

    def __init__(
        self,
        options: StoreOptions,
        log: CommitLog,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        checkpoint: StoreCheckpoint,
        *,
        clock_ms: Callable[[], int],
    ) -> None:
        self._options = options
        self._log = log
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._clock_ms = clock_ms

    def cleaners(
        self,
        rules: Callable[[], RetentionRules],
        *,
        monotonic_ms: Callable[[], int],
        local_hour: Callable[[], int],
        disk_usage: DiskUsage,
        needed_from: Callable[[], int | None] = lambda: None,
        waiting_from: Callable[[], int] | None = None,
    ) -> tuple[CleanCommitLog, CleanConsumeQueue]:
        """Return the cleaner of the log and the cleaner of what follows it; their steps may run in a worker.

        Args:
            rules: called at every step.
            monotonic_ms: clock for intervals; files age by the store's wall clock.
            local_hour: 0 to 23.
            disk_usage: returns the used part of the disk that holds a directory.
            needed_from: records from this log offset on are kept even if the disk is full; None: none need be.
            waiting_from: records from this log offset on may be scheduled messages.
        """
        options = self._options

        def deletable_end() -> int:
            end, needed = self.deletable_end(), needed_from()
            return end if needed is None else min(end, needed)

        log_cleaner = CleanCommitLog(
            self._log.files,
            rules,
            DiskWatch(disk_usage, options.writable_log_dirs, options.consume_queue_dir),
            deletable_end=deletable_end,
            clock_ms=self._clock_ms,
            monotonic_ms=monotonic_ms,
            local_hour=local_hour,
            waiting_from=waiting_from,
        )
        queue_cleaner = CleanConsumeQueue(
            self._queues,
            min_physical_offset=lambda: self._log.min_offset,
            kept_offset=lambda: self._log.files.min_offset,
            durable_offset=self.deletable_end,
            queue_file_size=options.consume_queue_entries * UNIT_BYTES,
            index=self._index,
            index_file_size=index_file_size(options.index_slots, options.index_entries),
        )
        return log_cleaner, queue_cleaner

    def deletable_end(self) -> int:
        """Records before this log offset are on disk, and so are their queue entries."""
        mark = self._checkpoint.mark
        return 0 if mark is None else min(mark.flushed_offset, mark.queues_offset)


QUEUES_PER_STEP = 64
"""Number of queues examined per step."""


class CleanedFiles(NamedTuple):
    """What one step deleted."""

    part: str
    """Their name in metrics and logs: `consumequeue` or `index`."""
    deleted: int
    size: int
    """Nominal bytes of the files; queue files are sparse and may have taken less."""


class CleanConsumeQueue:
    """Deletes files that follow the log, in rounds. Runs in a worker thread, one call at a time.

    Each queue keeps its last file, and any that no durable entries follow, because it determines the next queue offset.
    A log file that is deleted while it is held no longer counts for readers, but would be part of the log again after a
    kill: what is derived from it stays until it is gone. RocketMQ does not wait for that.

    Args:
        min_physical_offset: where the log begins for readers.
        kept_offset: where its oldest file on disk begins.
        durable_offset: records before this log offset and their queue entries are on disk.
        index: cleaned after the queues.
    """

    def __init__(
        self,
        queues: ConsumeQueueTable,
        *,
        min_physical_offset: Callable[[], int],
        kept_offset: Callable[[], int],
        durable_offset: Callable[[], int],
        queue_file_size: int,
        index: IndexService | None,
        index_file_size: int,
    ) -> None:
        self._queues = queues
        self._min_physical_offset = min_physical_offset
        self._kept_offset = kept_offset
        self._durable_offset = durable_offset
        self._queue_file_size = queue_file_size
        self._index = index
        self._index_file_size = index_file_size
        self._cleaned = (0, 0)
        self._begin = (0, 0)
        self._waiting: list[ConsumeQueue | IndexService] = []

    def look(self) -> bool:
        """Whether the log begins later than in the last round; True begins a round, or continues one."""
        self._begin = (self._min_physical_offset(), self._kept_offset())
        if self._begin <= self._cleaned:
            return False
        self._waiting = [*(() if self._index is None else (self._index,)), *reversed(self._queues.queues())]
        return True

    def step(self) -> CleanedFiles | None:
        """Execute the next part of the round; None ends it. Blocks. Pause after a deletion.

        Raises:
            FlushFailed: a file is deleted, but the sync of the directory failed.
            OSError: a file could not be read or removed; the next round starts over.
        """
        min_offset, kept_offset = self._begin
        for _ in range(QUEUES_PER_STEP):
            if not self._waiting:
                self._cleaned = self._begin
                return None
            following = self._waiting.pop()
            if isinstance(following, ConsumeQueue):
                part, file_size = "consumequeue", self._queue_file_size
                following.correct_min_offset(min_offset)
                count = following.delete_expired(kept_offset, self._durable_offset())
            else:
                part, file_size = "index", self._index_file_size
                count = following.delete_expired(kept_offset)
            if count:
                return CleanedFiles(part, count, count * file_size)
        return CleanedFiles("consumequeue", 0, 0)
