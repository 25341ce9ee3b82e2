"""Deletion of queue and index files that follow the log, and the cleaners of an open store.

RocketMQ: CleanConsumeQueueService, CleanCommitLogService. No log file is deleted before its queue entries are on disk;
queues and index follow the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from reput_broker.store.checkpoint import StoreCheckpoint
from reput_broker.store.index.file import index_file_size
from reput_broker.store.index.service import IndexService
from reput_broker.store.log.clean import CleanCommitLog
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.options import StoreOptions
from reput_broker.store.queue.consume_queue import ConsumeQueue
from reput_broker.store.queue.table import ConsumeQueueTable
from reput_broker.store.retention import DiskUsage, DiskWatch, RetentionRules
from reput_protocol.store.unit import UNIT_BYTES


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
        followers = []
        if self._index is not None:
            index_file_bytes = index_file_size(options.index_slots, options.index_entries)
            followers.append(DerivedFiles("index", self._index, index_file_bytes))
        queue_cleaner = CleanConsumeQueue(
            self._queues,
            min_physical_offset=lambda: self._log.min_offset,
            kept_offset=lambda: self._log.files.min_offset,
            durable_offset=self.deletable_end,
            queue_file_size=options.consume_queue_entries * UNIT_BYTES,
            followers=followers,
        )
        return log_cleaner, queue_cleaner

    def deletable_end(self) -> int:
        """Records before this log offset are on disk, and so are their queue entries."""
        mark = self._checkpoint.mark
        return 0 if mark is None else min(mark.flushed_offset, mark.queues_offset)


QUEUES_PER_STEP = 64
"""Number of queues examined per step."""


class ExpiringFiles(Protocol):
    """Files whose contents are derived from the log, such as the index."""

    def delete_expired(self, min_physical_offset: int) -> int:
        """Delete the oldest files that only refer to records before a log offset; return how many. May block."""


class DerivedFiles(NamedTuple):
    """Files that are cleaned after the queues."""

    part: str
    """Their name in metrics and logs: `index`."""
    files: ExpiringFiles
    file_size: int


class CleanedFiles(NamedTuple):
    """What one step deleted."""

    part: str
    """`consumequeue`, or the part of a follower."""
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
        followers: cleaned after the queues.
    """

    def __init__(
        self,
        queues: ConsumeQueueTable,
        *,
        min_physical_offset: Callable[[], int],
        kept_offset: Callable[[], int],
        durable_offset: Callable[[], int],
        queue_file_size: int,
        followers: Sequence[DerivedFiles] = (),
    ) -> None:
        self._queues = queues
        self._min_physical_offset = min_physical_offset
        self._kept_offset = kept_offset
        self._durable_offset = durable_offset
        self._queue_file_size = queue_file_size
        self._followers = tuple(followers)
        self._cleaned = (0, 0)
        self._begin = (0, 0)
        self._waiting: list[ConsumeQueue | DerivedFiles] = []

    def look(self) -> bool:
        """Whether the log begins later than in the last round; True begins a round, or continues one."""
        self._begin = (self._min_physical_offset(), self._kept_offset())
        if self._begin <= self._cleaned:
            return False
        self._waiting = [*reversed(self._followers), *reversed(self._queues.queues())]
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
            if isinstance(following, DerivedFiles):
                part, files, file_size = following
                count = files.delete_expired(kept_offset)
            else:
                part, file_size = "consumequeue", self._queue_file_size
                following.correct_min_offset(min_offset)
                count = following.delete_expired(kept_offset, self._durable_offset())
            if count:
                return CleanedFiles(part, count, count * file_size)
        return CleanedFiles("consumequeue", 0, 0)
