"""The units of many queues in the order of the log, window by window: what is wanted of a stretch, front to back.

Units lead straight to records, which is faster than to follow the records' sizes; and a record that is not wanted
is not looked at, be it damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput_broker.store.queue.unit import UNIT, UNIT_BYTES
from reput_broker.tools.unit_files import UnitFiles
from reput_pipeline.offline_plan import WantedRange
from reput_protocol.record_columns import BoolArray, IntArray

Units = NDArray[np.void]
"""Units of a queue with the fields physical_offset, size and tags_code."""
_UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert _UNIT.itemsize == UNIT_BYTES
WINDOW_BYTES: Final = 32 << 20
"""How much of the log is laid out at a time."""
_UNITS_AT_ONCE_MIN: Final = 16
_UNITS_AT_ONCE_MAX: Final = 65_536

Live = Callable[[WantedRange, IntArray, IntArray, IntArray, UnitFiles], BoolArray]
"""Tells which units of a range lead into the log: their numbers, places and sizes; it reports the others."""


def read_units(files: UnitFiles, number: int, count: int) -> Units:
    """Return `count` units from number `number` on."""
    return np.frombuffer(files.read_bytes(number * UNIT_BYTES, count * UNIT_BYTES), _UNIT)


class Window(NamedTuple):
    """Units whose records are in one window of the log, in the order of the log."""

    place: IntArray
    size: IntArray
    number: IntArray
    """Queue offset that each record must have."""
    owner: IntArray
    """Which of the ranges each belongs to."""


class _Cursor:
    """The units of one range, read a few at a time."""

    def __init__(self, part: WantedRange, owner: int, files: UnitFiles, live: Live) -> None:
        self.part = part
        self.owner = owner
        self._files = files
        self._live = live
        self._next = part.start
        self._first = part.start
        self._waiting: Units | None = None
        self._order: IntArray = np.empty(0, np.int64)

    def skip_to(self, log_offset: int) -> None:
        """Begin with the first record at or after a place in the log."""
        low, high = self.part.start, self.part.end
        if self.part.log_start < log_offset:
            while low < high:
                middle = (low + high) // 2
                place, _, _ = UNIT.unpack(self._files.read_bytes(middle * UNIT_BYTES, UNIT_BYTES))
                if place >= log_offset:
                    high = middle
                else:
                    low = middle + 1
        self._next = low

    def before(self, log_offset: int, window: int) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
        """Yield place, size and number of the units up to a place in the log."""
        while True:
            if self._waiting is None:
                if self._next >= self.part.end:
                    return
                self._read(log_offset, window)
            assert self._waiting is not None
            stop = int(np.searchsorted(self._order, log_offset))
            units, numbers = self._waiting[:stop], np.arange(self._first, self._first + stop)
            place = units["physical_offset"].astype(np.int64)
            size = units["size"].astype(np.int64)
            live = self._live(self.part, numbers, place, size, self._files)
            yield (place, size, numbers) if live.all() else (place[live], size[live], numbers[live])
            if stop < len(self._waiting):
                self._waiting, self._order = self._waiting[stop:], self._order[stop:]
                self._first += stop
                return
            self._waiting = None

    def _read(self, log_offset: int, window: int) -> None:
        left = self.part.end - self._next
        span = max(1, self.part.log_end - log_offset + window)
        likely = left * window // span + _UNITS_AT_ONCE_MIN
        count = min(left, likely, _UNITS_AT_ONCE_MAX)
        self._waiting = read_units(self._files, self._next, count)
        # Where a unit is missing, zeros stand; they come with their neighbours.
        self._order = np.maximum.accumulate(self._waiting["physical_offset"].astype(np.int64))
        self._first = self._next
        self._next += count


def windows(
    wanted: Sequence[WantedRange],
    start: int,
    end: int,
    files_of: Callable[[WantedRange], UnitFiles],
    live: Live,
) -> Iterator[Window]:
    """Yield what is wanted of the log between two places.

    Args:
        wanted: the ranges.
        start, end: log offsets; the first is where a record begins.
        files_of: opens the units of a range.
        live: judges units.
    """
    cursors = [
        _Cursor(part, owner, files_of(part), live)
        for owner, part in enumerate(wanted)
        if part.log_start < end and part.log_end > start
    ]
    for cursor in cursors:
        cursor.skip_to(start)
    for low in range(start, end, WINDOW_BYTES):
        high = min(low + WINDOW_BYTES, end)
        found = [
            (*units, np.full(len(units[0]), cursor.owner))
            for cursor in cursors
            for units in cursor.before(high, WINDOW_BYTES)
        ]
        if found:
            columns = [np.concatenate(column) for column in zip(*found, strict=True)]
            order = np.argsort(columns[0], kind="stable")
            yield Window(*(column[order] for column in columns))
