"""Select the entries of a queue that a get returns (RocketMQ: isTheBatchFull).

The rules examine the entries in order and stop at the first one that no longer fits. Only the queue's entries are read;
the records are fetched later, as extents, unless a filter on properties needs them.

If an extended entry cannot be read, the tags code stays its address; such an entry matches every filter, and the client
compares the tag.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import TracebackType
from typing import NamedTuple

from reput_broker.store.base.results import Extent, GetMessageResult, GetStatus, TransferLimits
from reput_broker.store.held_extents import HeldExtents
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.queue.consume_queue import ConsumeQueue
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.filter.tags import TagFilter
from reput_protocol.kernel.units import damaged_unit, files_of_units, select_units
from reput_protocol.record.head import properties_of, properties_of_tail, read_head, tail_position
from reput_protocol.record.layout import HEAD_BYTES_MAX
from reput_protocol.store.unit import UNIT_BYTES

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
    return GetMessageResult(
        GetStatus.FOUND, next_begin, low, high, selection.taken, selection.size, selection.extents
    )


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
            self._entries.units,
            self._window,
            self._max_messages,
            self._max_bytes,
            None,
            self._limits,
            self._accepts,
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
