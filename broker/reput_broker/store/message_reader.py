"""Get messages out of the store: which a queue holds from an offset on, and their bytes (RocketMQ: getMessage)."""

from __future__ import annotations

from collections.abc import Sequence

from reput_broker.store.commit_log import CommitLog
from reput_broker.store.consume_queue_table import ConsumeQueueTable
from reput_broker.store.get_message import (
    ARRAY_THRESHOLD,
    LogWindow,
    clamp_bytes,
    first_damaged,
    select_few,
    select_many,
    spans_files,
)
from reput_broker.store.held_extents import HeldExtents
from reput_broker.store.options import QUEUE_UNIT_BYTES
from reput_broker.store.results import ROCKETMQ_LIMITS, Extent, GetMessageResult, TransferLimits
from reput_broker.store.running_flags import RunningFlags
from reput_broker.store.stats import StoreStats
from reput_broker.store.status import GetStatus
from reput_protocol.filters import TagFilter


class MessageReader:
    """Reads one store, for its owner; `read_extents` with `cold`, and held extents, serve other threads too.

    Args:
        log, queues: what is read.
        flags: say whether the store is open.
        stats: counted in.
        memory_bytes: records this near to the end of the log are presumed to be in the page cache.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueueTable,
        flags: RunningFlags,
        stats: StoreStats,
        memory_bytes: int,
    ) -> None:
        self.warm_from = 0
        """Log offset from which on recovery has read the log: what lies before is presumed to be cold."""
        self._log = log
        self._queues = queues
        self._flags = flags
        self._stats = stats
        self._memory_bytes = memory_bytes

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        tag_filter: TagFilter | None = None,
        *,
        limits: TransferLimits = ROCKETMQ_LIMITS,
    ) -> GetMessageResult:
        """Find the messages of a queue from a queue offset on (RocketMQ: DefaultMessageStore.getMessage).

        The first matching message is taken whatever its size; then whatever of `max_messages`, `max_bytes` and
        `limits` is reached first ends the result, and so do the end of a queue file and the number of entries that
        one call may scan.

        Raises:
            StoreClosed: the store is not open.
            StoreDamaged: an entry of the queue points to where no record can be.
        """
        if not self._flags.is_open:
            raise self._flags.closed()
        stats = self._stats
        stats.get_calls += 1
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return GetMessageResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = queue.min_queue_offset, queue.max_queue_offset
        if high == 0:
            return GetMessageResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return GetMessageResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset >= high:
            if offset == high:
                return GetMessageResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
            return GetMessageResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)

        wanted = max(1, max_messages)
        if tag_filter is None or tag_filter.matches_all:
            entries = min(wanted, limits.memory_messages)
        else:
            entries = max(limits.scan_bytes // QUEUE_UNIT_BYTES, wanted)
        units = queue.read_units(offset, entries)
        if not len(units):
            low = queue.min_queue_offset
            if offset < low:  # expired since it was looked at above
                return GetMessageResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
            return GetMessageResult(GetStatus.OFFSET_FOUND_NULL, queue.roll_next_file(offset), low, high)
        if tag_filter is not None and not tag_filter.matches_all:
            units = queue.with_tags_codes(units)
        log_end = self._log.max_offset
        file_size = self._log.files.file_size
        window = LogWindow(self._log.min_offset, log_end, log_end - self._memory_bytes, file_size)
        max_bytes = clamp_bytes(max_bytes)
        if len(units) < ARRAY_THRESHOLD:
            selection = select_few(units.tolist(), window, wanted, max_bytes, tag_filter, limits)
        else:
            selection = select_many(units, window, wanted, max_bytes, tag_filter, limits)
        next_begin = offset + selection.scanned
        if selection.missing or spans_files(selection.extents, window):
            damaged = first_damaged(units[: selection.scanned], window)
            if damaged is not None:
                raise queue.damaged(offset + damaged)
        if not selection.taken:
            status = GetStatus.MESSAGE_WAS_REMOVING if selection.missing else GetStatus.NO_MATCHED_MESSAGE
            return GetMessageResult(status, next_begin, low, high)
        extents = selection.extents
        cold = extents[0].physical_offset < max(window.memory_from, self.warm_from)
        stats.get_found += 1
        stats.get_messages += selection.taken
        stats.get_bytes += selection.size
        stats.get_cold += cold
        return GetMessageResult(
            GetStatus.FOUND, next_begin, low, high, selection.taken, selection.size, extents, cold
        )

    def read_extents(self, extents: Sequence[Extent], *, cold: bool = False) -> bytes:
        """The bytes of the extents, joined: a copy, valid for as long as the caller likes.

        With `cold` by positional reads, which no other thread waits for; callable from any thread.

        Raises:
            FileMissing, StoreClosed: the file has been deleted since, or the store closed.
        """
        if cold:
            with HeldExtents(self._log, extents) as held:
                return held.read()
        read = self._log.read
        if len(extents) == 1:
            return read(*extents[0])
        return b"".join([read(physical_offset, size) for physical_offset, size in extents])

    def hold_extents(self, extents: Sequence[Extent]) -> HeldExtents:
        """Keep the files of the extents, whatever is deleted meanwhile, to read them in another thread.

        Raises:
            FileMissing: one has been deleted since they were found; find them again.
        """
        return HeldExtents(self._log, extents)

    def message_at(self, physical_offset: int) -> bytes | None:
        """The whole record that starts at a log offset, checked; None if no readable record starts there."""
        return self._log.message_at(physical_offset, self._log.readable_end())

    def oldest_store_timestamp(self) -> int:
        """The store time of the first record in the log, in milliseconds; -1 in an empty log. In any thread."""
        return self._log.store_timestamp_at(self._log.min_offset, cold=True)
