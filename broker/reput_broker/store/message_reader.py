"""Read messages: what a queue holds from an offset on, and the bytes (RocketMQ: getMessage)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, overload

from reput_broker.store.base.errors import FileMissing
from reput_broker.store.base.results import (
    ROCKETMQ_LIMITS,
    Extent,
    GetMessageResult,
    GetStatus,
    TransferLimits,
)
from reput_broker.store.base.running_flags import RunningFlags
from reput_broker.store.base.stats import StoreStats
from reput_broker.store.held_extents import HeldExtents
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.queue.table import ConsumeQueueTable
from reput_broker.store.select_entries import (
    FilteredGet,
    LogWindow,
    QueueEntries,
    result_of,
    select,
)
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.filter.tags import MessageFilter, TagFilter
from reput_protocol.store.unit import UNIT_BYTES, unpack_unit

NEAR_BYTES: Final = 8 << 20
"""This close to the end of the log, everything is presumed to be in the page cache."""

CHECKED_EXTENTS_MAX: Final = 64
"""Checking more takes longer than handing the read to a thread."""


class MessageReader:
    """Reads one store, for its owner; cold `read_extents`, held extents and filtered gets work in any thread.

    Args:
        memory_bytes: records this close to the end of the log are presumed to be in the page cache.
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
        """Recovery has read the log from here: everything before is presumed cold."""
        self._log = log
        self._queues = queues
        self._flags = flags
        self._stats = stats
        self._memory_bytes = memory_bytes

    @overload
    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        message_filter: TagFilter | None = None,
        *,
        limits: TransferLimits = ...,
    ) -> GetMessageResult: ...

    @overload
    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        message_filter: MessageFilter | None,
        *,
        limits: TransferLimits = ...,
    ) -> GetMessageResult | FilteredGet: ...

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        message_filter: MessageFilter | None = None,
        *,
        limits: TransferLimits = ROCKETMQ_LIMITS,
    ) -> GetMessageResult | FilteredGet:
        """Find the messages of a queue from a queue offset on (RocketMQ: DefaultMessageStore.getMessage).

        The first matching message is returned whatever its size. The result ends at the first limit: `max_messages`,
        `max_bytes`, `limits`, the end of a queue file, or the number of entries that one call may scan.

        Returns:
            The result; or a get for a worker thread, as `get_filtered`, if the filter has to read cold records.

        Raises:
            StoreClosed: the store is not open.
            StoreDamaged: an entry of the queue points to where no record can be.
        """
        if isinstance(message_filter, SqlFilter):
            get = self.get_filtered(
                topic, queue_id, offset, max_messages, max_bytes, message_filter, limits=limits
            )
            if isinstance(get, GetMessageResult) or get.cold:
                return get
            with get:
                result = get.run()
            self.count(result)
            return result
        began_at = time.perf_counter()
        wanted = max(1, max_messages)
        if message_filter is None or message_filter.matches_all:
            entries = min(wanted, limits.memory_messages)
        else:
            entries = max(limits.scan_bytes // UNIT_BYTES, wanted)
        found = self._entries(topic, queue_id, offset, entries)
        if isinstance(found, GetMessageResult):
            return found
        if message_filter is not None and not message_filter.matches_all:
            found = found._replace(units=found.queue.with_tags_codes(found.units))
        window = self._window()
        selection = select(found.units, window, wanted, max_bytes, message_filter, limits)
        result = result_of(found, selection, window)
        if result.status is GetStatus.FOUND:
            result.cold = self._is_cold(result.extents, window)
        self.count(result)
        self._stats.get_longest_s = max(self._stats.get_longest_s, time.perf_counter() - began_at)
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
        """Prepare a get whose filter reads properties, by the rules of `get_message`.

        Returns:
            The result if there are no messages to examine; otherwise the get, which holds files:
            call `run` (in a worker thread if it is `cold`), `release`, and `count` with its result.

        Raises:
            StoreClosed: the store is not open.
        """
        wanted = max(1, max_messages)
        entries = max(limits.scan_bytes // UNIT_BYTES, wanted)
        while True:
            found = self._entries(topic, queue_id, offset, entries)
            if isinstance(found, GetMessageResult):
                return found
            window, units = self._window(), found.units
            first, last = unpack_unit(units), unpack_unit(units, len(units) // UNIT_BYTES - 1)
            ends = [Extent(unit.physical_offset, unit.size) for unit in (first, last)]
            try:
                return FilteredGet(
                    self._log,
                    found,
                    window,
                    wanted,
                    max_bytes,
                    sql_filter,
                    limits,
                    cold=self._is_cold(ends, window),
                )
            except FileMissing:
                if self._log.min_offset == window.min_offset:
                    raise

    def _entries(self, topic: str, queue_id: int, offset: int, count: int) -> QueueEntries | GetMessageResult:
        if not self._flags.is_open:
            raise self._flags.closed()
        self._stats.get_calls += 1
        queue = self._queues.get((topic, queue_id))
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
            if offset < low:  # expired meanwhile
                return GetMessageResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
            return GetMessageResult(GetStatus.OFFSET_FOUND_NULL, queue.roll_next_file(offset), low, high)
        return QueueEntries(queue, units, offset, low, high)

    def _window(self) -> LogWindow:
        log = self._log
        log_end = log.max_offset
        return LogWindow(log.min_offset, log_end, log_end - self._memory_bytes, log.files.file_size)

    def _is_cold(self, extents: Sequence[Extent], window: LogWindow) -> bool:
        """Whether reading these would wait for the disk: presumed for old records, checked for recent ones, which may
        have been evicted."""
        first = extents[0].physical_offset
        if first < max(window.memory_from, self.warm_from):
            return True
        return first < window.max_offset - NEAR_BYTES and not self.is_resident(extents)

    def is_resident(self, extents: Sequence[Extent]) -> bool:
        """Whether all of the extents are in memory, without waiting; False if there are too many to check.

        For the owner.
        """
        near = self._log.max_offset - NEAR_BYTES
        if len(extents) > CHECKED_EXTENTS_MAX and extents[0].physical_offset < near:
            return False
        log_end = self._log.visible_end()
        return all(
            physical_offset >= near
            or physical_offset + size > log_end
            or self._log.is_resident(physical_offset, size)
            for physical_offset, size in extents
        )

    def count(self, result: GetMessageResult) -> None:
        """Count a get that has found messages; results of `get_message` are already counted."""
        if result.status is not GetStatus.FOUND:
            return
        stats = self._stats
        stats.get_found += 1
        stats.get_messages += result.count
        stats.get_bytes += result.size
        stats.get_cold += result.cold

    def read_extents(self, extents: Sequence[Extent], *, cold: bool = False) -> bytes:
        """Return a copy of the bytes of the extents, joined.

        With `cold`, by positional reads that block no other thread; callable from any thread.

        Raises:
            FileMissing, StoreClosed: the file has been deleted, or the store closed.
        """
        held = HeldExtents(self._log, extents)
        try:
            return held.read(cold=cold)
        finally:
            held.release()

    def hold_extents(self, extents: Sequence[Extent]) -> HeldExtents:
        """Hold the files of the extents, whatever is deleted meanwhile, to read them in another thread.

        Raises:
            FileMissing: one has been deleted since they were found; find them again.
        """
        return HeldExtents(self._log, extents)

    def message_at(self, physical_offset: int, *, cold: bool = False) -> bytes | None:
        """The whole record that starts at a log offset, verified, for a client; None if none does that clients may see.

        Queues and index may have more after a failover: what the broker looks up for itself, `record_at` reads. With
        `cold`, by a positional read, in any thread.
        """
        return self._log.message_at(physical_offset, self._log.visible_end(), cold=cold)

    def oldest_store_timestamp(self) -> int:
        """The store time of the log's first record in milliseconds, -1 if there is none. In any thread."""
        return self._log.store_timestamp_at(self._log.min_offset, cold=True)
