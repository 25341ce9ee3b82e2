"""Build the cleaners of an open store (RocketMQ: CleanCommitLogService, CleanConsumeQueueService).

No log file is deleted before its queue entries are on disk; queues and index follow the log.
"""

from __future__ import annotations

from collections.abc import Callable

from reput_broker.store.checkpoint import StoreCheckpoint
from reput_broker.store.index.file import index_file_size
from reput_broker.store.index.service import IndexService
from reput_broker.store.log.clean import CleanCommitLog
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.options import StoreOptions
from reput_broker.store.queue.clean import CleanConsumeQueue, DerivedFiles
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
