"""Read messages: what a queue holds from an offset on, and the bytes (RocketMQ: getMessage).

The rules by which a get selects entries (RocketMQ: isTheBatchFull) examine them in order and stop at the first one that
no longer fits. Only the queue's entries are read; the records are fetched later, as extents, unless a filter on
properties needs them. If an extended entry cannot be read, the tags code stays its address; such an entry matches every
filter, and the client compares the tag.

Retention may delete a file between finding records and reading them in another thread. A file that is held
(`HeldExtents`) is only shut down, and deleted when its last holder releases it. If that takes too long, its name is
removed, and the bytes stay for the holder alone.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Final, NamedTuple, overload

from reput_broker.store.base.errors import FileMissing
from reput_broker.store.base.results import (
    ROCKETMQ_LIMITS,
    Extent,
    GetMessageResult,
    GetStatus,
    StoreStats,
    TransferLimits,
)
from reput_broker.store.base.running_flags import RunningFlags
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.queue.consume_queue import ConsumeQueue
from reput_broker.store.queue.table import ConsumeQueueTable
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.filter.tags import MessageFilter, TagFilter
from reput_protocol.kernel.units import damaged_unit, files_of_units, select_units
from reput_protocol.record.layout import HEAD_BYTES_MAX, properties_of, properties_of_tail, read_head, tail_position
from reput_protocol.store.unit import UNIT_BYTES, unpack_unit


class HeldExtents:
    """Extents whose files are held from construction until `release`; also a context manager.

    Raises (on construction):
        FileMissing: one of the files has been deleted, or is being deleted; nothing is held.
    """

    __slots__ = ("_extents", "_file_size", "_files")

    def __init__(self, log: CommitLog, extents: Sequence[Extent]) -> None:
        self._extents = tuple(extents)
        self._file_size = log.files.file_size
        self._files: dict[int, MappedFile] = {}
        """By number: the file with number n begins at log offset n times the size of a file."""
        try:
            for physical_offset, _ in self._extents:
                number = physical_offset // self._file_size
                if number not in self._files:
                    self._files[number] = log.hold_file_at(physical_offset)
        except BaseException:
            self.release()
            raise

    def file_at(self, physical_offset: int) -> MappedFile:
        """Return the held file with a log offset; before `release`."""
        return self._files[physical_offset // self._file_size]

    def read(self, extents: Sequence[Extent] | None = None, *, cold: bool = True) -> bytes:
        """Return the bytes of the extents, joined; before `release`.

        With `cold`, by positional reads that block no other thread; else out of the mapping. Any extents in the held
        files may be read; by default those that were held.
        """
        parts: list[bytes] = []
        for physical_offset, size in self._extents if extents is None else extents:
            file = self._files[physical_offset // self._file_size]
            read = file.read_held if cold else file.copy_of
            parts.append(read(physical_offset - file.base_offset, size))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self) -> None:
        """Release the files. The last holder of a file that is being deleted unmaps it, which takes time."""
        files, self._files = self._files, {}
        for file in files.values():
            file.release()

    def __enter__(self) -> HeldExtents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


GET_BYTES_MIN = 100
GET_BYTES_MAX = 134_217_728


class LogWindow(NamedTuple):
    """The readable part of the log, and where "recently written" begins in it."""

    min_offset: int
    max_offset: int
    memory_from: int
    """Records from here on count as in memory: within 40 % of the machine's memory of the log's end."""
    file_size: int
    """Size of each file of the log. Neither a record nor an extent spans files."""


class QueueEntries(NamedTuple):
    """Entries of a queue from an offset on, at least one."""

    queue: ConsumeQueue
    units: bytes
    offset: int
    min_offset: int
    max_offset: int


class Selection(NamedTuple):
    """The result of a scan of queue entries."""

    scanned: int
    """Number of entries examined; the next get begins after them."""
    taken: int
    size: int
    extents: tuple[Extent, ...]
    missing: int
    """Entries whose records expired, or that are damaged."""


def select(
    units: bytes,
    window: LogWindow,
    max_messages: int,
    max_bytes: int,
    tag_filter: TagFilter | None,
    limits: TransferLimits,
    accepts: Callable[[int, int], bool | None] | None = None,
) -> Selection:
    """Apply the rules to queue entries; `max_bytes` is limited to RocketMQ's range.

    `accepts` receives log offset and size of the record of each entry that the tag filter accepts and that is in the
    log; if it returns None, the scan ends there.
    """
    max_bytes = min(max(max_bytes, GET_BYTES_MIN), GET_BYTES_MAX)
    scanned, taken, size, extents, missing = select_units(
        units,
        window.min_offset,
        window.max_offset,
        window.memory_from,
        max_bytes,
        min(max_messages, limits.memory_messages),
        min(max_bytes, limits.memory_bytes),
        min(max_messages, limits.disk_messages),
        min(max_bytes, limits.disk_bytes),
        None if tag_filter is None or tag_filter.matches_all else _sorted_codes(tag_filter.codes),
        accepts,
    )
    return Selection(scanned, taken, size, tuple(map(Extent._make, extents)), missing)


@lru_cache(maxsize=1024)
def _sorted_codes(codes: frozenset[int]) -> array[int]:
    return array("q", sorted(codes))


def result_of(entries: QueueEntries, selection: Selection, window: LogWindow) -> GetMessageResult:
    """Return the result of a get for what was selected of a queue's entries; its records count as not cold.

    Raises:
        StoreDamaged: an entry of the queue points to where no record can be.
    """
    queue, units, offset, low, high = entries
    if selection.missing or spans_files(selection.extents, window):
        scanned = units[: selection.scanned * UNIT_BYTES]
        damaged = damaged_unit(scanned, window.max_offset, window.file_size)
        if damaged >= 0:
            raise queue.damaged(offset + damaged)
    next_begin = offset + selection.scanned
    if not selection.taken:
        status = GetStatus.MESSAGE_WAS_REMOVING if selection.missing else GetStatus.NO_MATCHED_MESSAGE
        return GetMessageResult(status, next_begin, low, high)
    return GetMessageResult(GetStatus.FOUND, next_begin, low, high, selection.taken, selection.size, selection.extents)


def spans_files(extents: Sequence[Extent], window: LogWindow) -> bool:
    """Whether an extent crosses the end of its file, which no valid one does."""
    file_size = window.file_size
    for start, size in extents:  # noqa: SIM110 - a generator would cost more than the looks
        if start % file_size + size > file_size:
            return True
    return False


EFFORT_MAX = 5_000_000
"""Of the filter work of one get, roughly in nanoseconds; the next get continues from there."""
READ_WHOLE_BYTES_MAX = 16_384
"""Records up to this size are read completely: a second read costs more than the body."""
PART_EFFORT = 150
LOOKUP_EFFORT = 600
LOOKUP_BYTE_EFFORT = 1
RECORD_EFFORT = 3000


class FilteredGet:
    """A get whose filter reads properties (RocketMQ: ExpressionMessageFilter); holds files until `release`.

    The owner of the store creates it; `run`, `read` and `release` are thread-safe.

    Args:
        cold: whether the records are presumed not to be in the page cache.

    Raises (on construction):
        FileMissing: a file has been deleted since `window` was determined; try again.
    """

    def __init__(
        self,
        log: CommitLog,
        entries: QueueEntries,
        window: LogWindow,
        max_messages: int,
        max_bytes: int,
        sql_filter: SqlFilter,
        limits: TransferLimits,
        *,
        cold: bool,
    ) -> None:
        self.cold = cold
        """Whether to call `run` in a worker thread."""
        self._entries = entries
        self._window = window
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._filter = sql_filter
        self._limits = limits
        self._effort = 0
        units = entries.units
        places = files_of_units(units, window.min_offset, window.max_offset, window.file_size)
        self._views: dict[MappedFile, memoryview] = {}
        """The whole mappings of the files that were looked into."""
        self._held = HeldExtents(log, [Extent(place, 0) for place in places])

    def run(self) -> GetMessageResult:
        """Evaluate the filter; before `release`.

        Raises:
            StoreDamaged: an entry of the queue points to where no record can be.
        """
        selection = select(
            self._entries.units, self._window, self._max_messages, self._max_bytes, None, self._limits, self._accepts
        )
        result = result_of(self._entries, selection, self._window)
        result.cold = self.cold and result.status is GetStatus.FOUND
        return result

    def _accepts(self, physical_offset: int, size: int) -> bool | None:
        """Whether the filter accepts a record; None if the effort of this get is used up."""
        if self._effort > EFFORT_MAX:
            return None
        properties = self._properties_at(physical_offset, size)
        if properties is None:
            return True  # the receiver finds and reports the damage, as without a filter
        wanted = self._filter
        self._effort += (
            RECORD_EFFORT
            + PART_EFFORT * wanted.parts
            + wanted.lookups * (LOOKUP_EFFORT + LOOKUP_BYTE_EFFORT * len(properties))
        )
        return wanted.matches(properties)

    def _properties_at(self, physical_offset: int, size: int) -> bytes | None:
        """Return the properties text of a record, None if it is not valid.

        The body is skipped, unless reading it costs less than a second read.
        """
        file = self._held.file_at(physical_offset)
        position = physical_offset - file.base_offset
        if not self.cold:
            view = self._views.get(file)
            if view is None:
                view = self._views[file] = file.slice(0, file.read_position)
            return properties_of(view, position, size)
        if size <= READ_WHOLE_BYTES_MAX:
            return properties_of(file.read_held(position, size), 0, size)
        head = file.read_held(position, HEAD_BYTES_MAX)
        tail = tail_position(head, 0, size) if len(head) == HEAD_BYTES_MAX else None
        if tail is None:
            return None
        rest = file.read_held(position + tail, size - tail)
        return properties_of_tail(rest, 0, len(rest), read_head(head).magic)

    def run_and_read(self) -> tuple[GetMessageResult, bytes]:
        """Evaluate the filter, and return what was found and its bytes, by positional reads; before `release`."""
        result = self.run()
        return result, self._held.read(result.extents) if result.count else b""

    def release(self) -> None:
        """Release the files. May be called twice."""
        for view in self._views.values():
            view.release()
        self._views.clear()
        self._held.release()

    def __enter__(self) -> FilteredGet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


NEAR_BYTES: Final = 8 << 20
"""This close to the end of the log, everything is presumed to be in the page cache."""

CHECKED_EXTENTS_MAX: Final = 64
"""Checking more takes longer than handing the read to a thread."""


@dataclass(eq=False, repr=False)
class MessageReader:
    """Reads one store, for its owner; cold `read_extents`, held extents and filtered gets work in any thread.

    Args:
        memory_bytes: records this close to the end of the log are presumed to be in the page cache.
    """

    _log: CommitLog
    _queues: ConsumeQueueTable
    _flags: RunningFlags
    _stats: StoreStats
    _memory_bytes: int
    warm_from: int = field(default=0, init=False)
    """Recovery has read the log from here: everything before is presumed cold."""

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
            get = self.get_filtered(topic, queue_id, offset, max_messages, max_bytes, message_filter, limits=limits)
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
                    self._log, found, window, wanted, max_bytes, sql_filter, limits, cold=self._is_cold(ends, window)
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
            physical_offset >= near or physical_offset + size > log_end or self._log.is_resident(physical_offset, size)
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
