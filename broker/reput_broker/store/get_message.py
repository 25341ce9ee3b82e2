"""Which entries of a queue one get takes (RocketMQ: DefaultMessageStore.getMessage, isTheBatchFull).

The rules look at the entries one after the other and stop at the first that does not fit any more. Nothing is read but
the queue's entries; the records themselves are fetched later, as extents. Only a filter over properties looks into
records (get_message.py).

An entry that holds an address in the place of its tags code is one whose extended entry could not be read: it matches
every filter, since whoever gets the message compares the tag itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import TracebackType
from typing import NamedTuple

from reput_broker.store.held_extents import HeldExtents
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.queue.consume_queue import ConsumeQueue
from reput_broker.store.queue.unit import UNIT_BYTES
from reput_broker.store.results import Extent, GetMessageResult, GetStatus, TransferLimits
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.filter.tags import TagFilter
from reput_protocol.kernel.units import damaged_unit, files_of_units, select_units

GET_BYTES_MIN = 100
GET_BYTES_MAX = 134_217_728


class LogWindow(NamedTuple):
    """The part of the log that can be read, and where "recently written" begins in it."""

    min_offset: int
    max_offset: int
    memory_from: int
    """Records from here on count as being in memory: within 40 % of the machine's memory of the log's end."""
    file_size: int
    """Bytes of every file of the log. No record spans files, and neither do records that follow each other."""


class Selection(NamedTuple):
    """What a scan of queue entries took."""

    scanned: int
    """Entries that are done with, counted from the first; the next get begins after them."""
    taken: int
    size: int
    extents: tuple[Extent, ...]
    missing: int
    """Entries whose records are not in the log: any more, or because the entries are damaged (`damaged_unit`)."""


def clamp_bytes(max_bytes: int) -> int:
    """The byte limit that a get may ask for, brought into RocketMQ's bounds."""
    return min(max(max_bytes, GET_BYTES_MIN), GET_BYTES_MAX)


def select(
    units: bytes,
    window: LogWindow,
    max_messages: int,
    max_bytes: int,
    tag_filter: TagFilter | None,
    limits: TransferLimits,
    accepts: Callable[[int, int], bool | None] | None = None,
) -> Selection:
    """Apply the rules to units.

    `accepts` looks at the record, told its place and size, of an entry that the tag filter lets through and that is in
    the log; with None it ends the scan there.
    """
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


def spans_files(extents: Sequence[Extent], window: LogWindow) -> bool:
    """Whether any of the extents leaves the file that it begins in, as no sound one does."""
    file_size = window.file_size
    return any(start % file_size + size > file_size for start, size in extents)


EFFORT_MAX = 5_000_000
"""What one get may spend on its filter, about in nanoseconds; it then ends where it is, and the next goes on there."""
PART_EFFORT = 150
LOOKUP_EFFORT = 600
LOOKUP_BYTE_EFFORT = 1
RECORD_EFFORT = 3000


class FilteredGet:
    """A get whose filter looks at properties (RocketMQ: ExpressionMessageFilter); releases its files at the end.

    The owner of the store makes it, which holds the files; reading the records may then happen in any thread.

    Args:
        log: what is read.
        queue: says which entry is damaged, if one is.
        units: the queue's entries from `offset` on, as many as may be looked at.
        window: the part of the log that can be read.
        bounds: the queue's lowest and next offset.
        cold: whether the records are presumed to be out of memory.

    Raises (on construction):
        FileMissing: a file has been deleted since `window` was looked at; look again.
    """

    def __init__(
        self,
        log: CommitLog,
        queue: ConsumeQueue,
        units: bytes,
        offset: int,
        window: LogWindow,
        bounds: tuple[int, int],
        max_messages: int,
        max_bytes: int,
        sql_filter: SqlFilter,
        limits: TransferLimits,
        *,
        cold: bool,
    ) -> None:
        self.cold = cold
        """Whether to look in a worker thread."""
        self._queue = queue
        self._units = units
        self._offset = offset
        self._window = window
        self._bounds = bounds
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._filter = sql_filter
        self._limits = limits
        self._effort = 0
        places = files_of_units(units, window.min_offset, window.max_offset, window.file_size)
        self._held = HeldExtents(log, [Extent(place, 0) for place in places])

    def run(self) -> GetMessageResult:
        """Look; before `release`.

        Raises:
            StoreDamaged: an entry of the queue points to where no record can be.
        """
        selection = select(
            self._units,
            self._window,
            self._max_messages,
            self._max_bytes,
            None,
            self._limits,
            self._accepts,
        )
        if selection.missing or spans_files(selection.extents, self._window):
            scanned = self._units[: selection.scanned * UNIT_BYTES]
            damaged = damaged_unit(scanned, self._window.max_offset, self._window.file_size)
            if damaged >= 0:
                raise self._queue.damaged(self._offset + damaged)
        next_begin = self._offset + selection.scanned
        if not selection.taken:
            status = GetStatus.MESSAGE_WAS_REMOVING if selection.missing else GetStatus.NO_MATCHED_MESSAGE
            return GetMessageResult(status, next_begin, *self._bounds)
        return GetMessageResult(
            GetStatus.FOUND,
            next_begin,
            *self._bounds,
            selection.taken,
            selection.size,
            selection.extents,
            self.cold,
        )

    def _accepts(self, physical_offset: int, size: int) -> bool | None:
        """Whether the filter lets a record through; None where no effort is left to look."""
        if self._effort > EFFORT_MAX:
            return None
        properties = self._held.properties_at(Extent(physical_offset, size), cold=self.cold)
        if properties is None:
            return True  # whoever gets it finds the damage and names it, as without a filter
        wanted = self._filter
        self._effort += (
            RECORD_EFFORT
            + PART_EFFORT * wanted.parts
            + wanted.lookups * (LOOKUP_EFFORT + LOOKUP_BYTE_EFFORT * len(properties))
        )
        return wanted.matches(properties)

    def read(self, result: GetMessageResult) -> bytes:
        """The bytes of what `run` has found, by positional reads; before `release`."""
        return self._held.read(result.extents)

    def release(self) -> None:
        """Let go of the files. May be called twice."""
        self._held.release()

    def __enter__(self) -> FilteredGet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
