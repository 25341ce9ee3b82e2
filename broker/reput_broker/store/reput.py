"""Follow the log and dispatch what it holds: queues, index, long polling (RocketMQ: ReputMessageService).

The log is the truth; whatever else there is, is derived from it here, one step at a time. A step takes some bytes of
the log, turns them into one batch and hands that to every dispatcher in order; only then does the position move. So a
dispatcher that fails gets the same batch again, and nothing is announced before it can be read.

How far a step may go is the caller's rule: up to what is flushed, or up to what is written.

A record that cannot be read is never passed over. RocketMQ skips over it; but then the queue would give the offset
of the lost message to another one, and nobody would know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from reput_broker.store.commit_log import CommitLog
from reput_broker.store.deleted_topics import DeletedTopics
from reput_broker.store.dispatch import (
    DispatchBatch,
    Dispatcher,
    MessageArrivingListener,
    rows_by_queue,
)
from reput_broker.store.errors import REPAIR_REMEDY, FileMissing, StoreDamaged
from reput_broker.store.stats import StoreStats
from reput_protocol.dispatch_rows import DispatchRows, scan_dispatch
from reput_protocol.record_scan import ScanStatus

STEP_BYTES_MAX = 1 << 20


class Reput:
    """The follower. `position` is the log offset up to which everything has been dispatched."""

    def __init__(
        self,
        log: CommitLog,
        dispatchers: Sequence[Dispatcher],
        deleted: DeletedTopics,
        stats: StoreStats,
        *,
        limit: Callable[[], int],
        position: int,
        levels_ms: Sequence[int],
        listener: MessageArrivingListener | None = None,
    ) -> None:
        self.position = position
        self.store_timestamp_ms = 0
        """Store time of the last record dispatched."""
        self._log = log
        self._dispatchers = tuple(dispatchers)
        self._deleted = deleted
        self._stats = stats
        self._limit = limit
        self._levels_ms = tuple(levels_ms)
        self._listener = listener

    @property
    def behind_bytes(self) -> int:
        """Bytes that a step could dispatch now."""
        return max(0, self._limit() - self.position)

    def step(self, max_bytes: int = STEP_BYTES_MAX) -> int:
        """Dispatch the next records, at least one if there is one; return how many there were.

        Raises:
            DiskFull: a dispatcher has no room; the step may be repeated.
            StoreDamaged: what lies at `position` is no record.
            QueueGap: what lies there does not follow what its queue holds.

        Whatever is raised, `position` stays before what could not be dispatched.
        """
        limit = self._limit()
        position = self.position
        while position < limit:
            try:
                data, rows = self._scan(position, limit, max_bytes)
            except FileMissing:
                first = self._log.min_offset
                if position >= first:
                    raise
                position = first  # the file has expired: who is so far behind goes on after it
                continue
            count = len(rows)
            if count:
                self._dispatch(position, data, rows, count)
                position += rows.consumed
            if rows.stopped_by is not None and rows.stopped_by.status is ScanStatus.BLANK:
                position = self._log.next_file_offset(position)
            self.position = position
            if count:
                return count
        return 0

    def _scan(self, position: int, limit: int, max_bytes: int) -> tuple[bytes, DispatchRows]:
        """Read and cut up the bytes at `position`; the result holds a record or ends with a blank one."""
        available = min(limit, self._log.next_file_offset(position)) - position
        size = min(available, max_bytes)
        while True:
            data = self._log.read(position, size)
            rows = scan_dispatch(data, base_physical_offset=position, levels_ms=self._levels_ms)
            stop = rows.stopped_by
            if rows.consumed or (stop is not None and stop.status is ScanStatus.BLANK):
                return data, rows
            assert stop is not None, "a scan of something ends with a record or a reason"
            if stop.status is ScanStatus.INVALID or size == available:
                self._fail(position, stop.reason)
            # One record is larger than the step: take it alone.
            size = min(available, max(stop.size, 2 * size))

    def _dispatch(self, position: int, data: bytes, rows: DispatchRows, count: int) -> None:
        queues = rows_by_queue(rows, self._deleted if len(self._deleted) else None)
        batch = DispatchBatch(position, position + rows.consumed, data, rows, queues)
        for dispatcher in self._dispatchers:
            dispatcher.dispatch(batch)
        self.position = batch.end_offset
        self.store_timestamp_ms = rows.last_store_timestamp_ms
        stats = self._stats
        stats.dispatch_steps += 1
        stats.dispatched_messages += count
        listener = self._listener
        if listener is not None:
            for queue in queues:
                listener.arriving(queue, batch)

    def _fail(self, offset: int, reason: str) -> NoReturn:
        file = self._log.files.find_by_offset(offset)
        assert file is not None, "what is dispatched lies in a file"
        raise StoreDamaged(
            file.path, offset - file.base_offset, f"{reason} (log offset {offset})", REPAIR_REMEDY
        )
