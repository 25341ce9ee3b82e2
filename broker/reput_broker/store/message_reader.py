"""Get messages out of the store: which a queue holds from an offset on, and their bytes (RocketMQ: getMessage)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reput_broker.store.errors import FileMissing
from reput_broker.store.get_message import FilteredGet, LogWindow, clamp_bytes, select, spans_files
from reput_broker.store.held_extents import HeldExtents
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.options import QUEUE_UNIT_BYTES
from reput_broker.store.queue.consume_queue import ConsumeQueue
from reput_broker.store.queue.table import ConsumeQueueTable
from reput_broker.store.queue.unit import UNIT_BYTES, unpack_unit
from reput_broker.store.results import ROCKETMQ_LIMITS, Extent, GetMessageResult, GetStatus, TransferLimits
from reput_broker.store.running_flags import RunningFlags
from reput_broker.store.stats import StoreStats
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.filter.tags import TagFilter
from reput_protocol.kernel.units import damaged_unit

NEAR_BYTES: Final = 8 << 20
"""So near to the end of the log everything is presumed to be in memory, as it is while there are puts."""

ASKED_MAX: Final = 64
"""For more places than this asking takes longer than handing the reading to a thread."""


class MessageReader:
    """Reads one store, for its owner; cold `read_extents`, held extents and filtered gets serve other threads too.

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
        wanted = max(1, max_messages)
        if tag_filter is None or tag_filter.matches_all:
            entries = min(wanted, limits.memory_messages)
        else:
            entries = max(limits.scan_bytes // QUEUE_UNIT_BYTES, wanted)
        found = self._entries(topic, queue_id, offset, entries)
        if isinstance(found, GetMessageResult):
            return found
        queue, units, low, high = found
        if tag_filter is not None and not tag_filter.matches_all:
            units = queue.with_tags_codes(units)
        window = self._window()
        max_bytes = clamp_bytes(max_bytes)
        selection = select(units, window, wanted, max_bytes, tag_filter, limits)
        next_begin = offset + selection.scanned
        if selection.missing or spans_files(selection.extents, window):
            scanned = units[: selection.scanned * UNIT_BYTES]
            damaged = damaged_unit(scanned, window.max_offset, window.file_size)
            if damaged >= 0:
                raise queue.damaged(offset + damaged)
        if not selection.taken:
            status = GetStatus.MESSAGE_WAS_REMOVING if selection.missing else GetStatus.NO_MATCHED_MESSAGE
            return GetMessageResult(status, next_begin, low, high)
        extents = selection.extents
        cold = self._is_cold(extents, window)
        result = GetMessageResult(
            GetStatus.FOUND, next_begin, low, high, selection.taken, selection.size, extents, cold
        )
        self.count(result)
        return result

    def get_filtered(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        sql_filter: SqlFilter,
        *,
        limits: TransferLimits = ROCKETMQ_LIMITS,
    ) -> GetMessageResult | FilteredGet:
        """Prepare a get whose filter looks at properties, by the rules of `get_message`.

        Returns:
            The result, if there are no messages to look at. Otherwise the get itself, which holds files: `run` it,
            in a worker thread if it is `cold`, `release` it, and `count` its result.

        Raises:
            StoreClosed: the store is not open.
        """
        wanted = max(1, max_messages)
        entries = max(limits.scan_bytes // QUEUE_UNIT_BYTES, wanted)
        while True:
            found = self._entries(topic, queue_id, offset, entries)
            if isinstance(found, GetMessageResult):
                return found
            queue, units, low, high = found
            window = self._window()
            first, last = unpack_unit(units), unpack_unit(units, len(units) // UNIT_BYTES - 1)
            ends = [Extent(unit.physical_offset, unit.size) for unit in (first, last)]
            try:
                return FilteredGet(
                    self._log,
                    queue,
                    units,
                    offset,
                    window,
                    (low, high),
                    wanted,
                    clamp_bytes(max_bytes),
                    sql_filter,
                    limits,
                    cold=self._is_cold(ends, window),
                )
            except FileMissing:
                if self._log.min_offset == window.min_offset:
                    raise

    def _entries(
        self, topic: str, queue_id: int, offset: int, count: int
    ) -> tuple[ConsumeQueue, bytes, int, int] | GetMessageResult:
        """Return a queue, up to `count` of its entries from an offset on, its lowest and its next offset.

        Instead of that the result of the get, if there is no entry.
        """
        if not self._flags.is_open:
            raise self._flags.closed()
        self._stats.get_calls += 1
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
        units = queue.read_units(offset, count)
        if not units:
            low = queue.min_queue_offset
            if offset < low:  # expired since it was looked at above
                return GetMessageResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
            return GetMessageResult(GetStatus.OFFSET_FOUND_NULL, queue.roll_next_file(offset), low, high)
        return queue, units, low, high

    def _window(self) -> LogWindow:
        log = self._log
        log_end = log.max_offset
        return LogWindow(log.min_offset, log_end, log_end - self._memory_bytes, log.files.file_size)

    def _is_cold(self, extents: Sequence[Extent], window: LogWindow) -> bool:
        """Tell whether reading these would wait for the disk: presumed of what is old, else looked at.

        Memory may have been needed for something else since, however near to the end of the log they lie.
        """
        if extents[0].physical_offset < max(window.memory_from, self.warm_from):
            return True
        return not self.is_resident(extents)

    def is_resident(self, extents: Sequence[Extent]) -> bool:
        """Tell, without waiting, whether memory holds all of the extents, as it does what was just written.

        False as well where there are too many to ask. For the owner.
        """
        near = self._log.max_offset - NEAR_BYTES
        if len(extents) > ASKED_MAX and extents[0].physical_offset < near:
            return False
        log_end = self._log.readable_end()
        return all(
            physical_offset >= near
            or physical_offset + size > log_end
            or self._log.is_resident(physical_offset, size)
            for physical_offset, size in extents
        )

    def count(self, result: GetMessageResult) -> None:
        """Count a get that has found something, and nothing else; the result of `get_message` is counted already."""
        if result.status is not GetStatus.FOUND:
            return
        stats = self._stats
        stats.get_found += 1
        stats.get_messages += result.count
        stats.get_bytes += result.size
        stats.get_cold += result.cold

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
