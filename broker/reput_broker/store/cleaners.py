"""The cleaners of an open store: each with what it deletes, and where it has to stop (RocketMQ: Clean*Service).

Nothing of the log goes before its queue entries are on the disk; the queues and the index follow the log.
"""

from __future__ import annotations

from collections.abc import Callable

from reput_broker.store.checkpoint import StoreCheckpoint
from reput_broker.store.index.file import index_file_size
from reput_broker.store.index.service import IndexService
from reput_broker.store.log.clean import CleanCommitLog
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.options import StoreOptions
from reput_broker.store.queue.clean import CleanConsumeQueue, Follower
from reput_broker.store.queue.table import ConsumeQueueTable
from reput_broker.store.retention import DiskUsage, DiskWatch, RetentionRules


class StoreCleaners:
    """Makes the cleaners of one store.

    Args:
        options: where the files lie, and how large they are.
        log, queues: what is cleaned.
        index: follows the log too; None where none is kept.
        checkpoint: says what is on the disk.
        clock_ms: wall clock, by which files age.
    """

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
        waiting_from: Callable[[], int] | None = None,
    ) -> tuple[CleanCommitLog, CleanConsumeQueue]:
        """What deletes expired files of the open store: of the log, then of what follows it. Steps may run in a worker.

        Args:
            rules: asked by every step.
            monotonic_ms: clock for intervals; files age by the store's wall clock.
            local_hour: the hour of the day, 0 to 23.
            disk_usage: looks at the disk that holds a directory.
            waiting_from: records from this log offset on may be messages that wait for their time.
        """
        options = self._options
        log_cleaner = CleanCommitLog(
            self._log.files,
            rules,
            DiskWatch(disk_usage, options.writable_log_dirs, options.consume_queue_dir),
            deletable_end=self.deletable_end,
            clock_ms=self._clock_ms,
            monotonic_ms=monotonic_ms,
            local_hour=local_hour,
            waiting_from=waiting_from,
        )
        followers = []
        if self._index is not None:
            index_file_bytes = index_file_size(options.index_slots, options.index_entries)
            followers.append(Follower("index", self._index, index_file_bytes))
        queue_cleaner = CleanConsumeQueue(
            self._queues,
            min_physical_offset=lambda: self._log.min_offset,
            kept_offset=lambda: self._log.files.min_offset,
            durable_offset=self.deletable_end,
            queue_file_size=options.consume_queue_file_size,
            followers=followers,
        )
        return log_cleaner, queue_cleaner

    def deletable_end(self) -> int:
        """Records before this log offset are on the disk, and so are their queue entries."""
        mark = self._checkpoint.mark
        return 0 if mark is None else min(mark.flushed_offset, mark.queues_offset)
