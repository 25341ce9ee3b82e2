"""Binary searches over the units of a queue: by store time, and for the first unit still in the log.

Store times are read from the records in the log, so every step may need the disk (RocketMQ: ConsumeQueue,
ConsumeQueueStore). A search chooses the file first and then bisects its units. Units of records that have left the log,
and pre-blank units, precede everything that it can find. Store times are assumed to ascend; if the broker's clock was
set back, a search ends at one of the places where the time is passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from reput_broker.store.queue.files import SparseFileQueue
from reput_protocol.store.unit import UNIT_BYTES, ConsumeQueueUnit, unpack_unit

Boundary = Literal["lower", "upper"]
StoreTimeOf = Callable[[int, int], int]
"""(physical offset, size) -> store time of that record in milliseconds, -1 if it is not in the log."""
FileTimes = dict[int, tuple[int, int]]
"""Start of a full file -> store times of its first and last unit."""


def first_live_position(files: SparseFileQueue, low: int, min_physical_offset: int) -> int:
    """Return the position of the first unit, from `low` on, whose record is at or after a physical offset.

    The end of the queue if there is none.
    """
    high = files.end
    if low >= high or _is_live(_unit_at(files, low), min_physical_offset):
        return low
    while low < high:
        middle = (low + high) // (2 * UNIT_BYTES) * UNIT_BYTES
        if _is_live(_unit_at(files, middle), min_physical_offset):
            high = middle
        else:
            low = middle + UNIT_BYTES
    return high


def offset_by_timestamp(
    files: SparseFileQueue,
    timestamp_ms: int,
    boundary: Boundary,
    store_time_of: StoreTimeOf,
    *,
    min_logic_offset: int,
    min_physical_offset: int,
    file_times: FileTimes,
) -> int:
    """Return the queue offset for a store time, within [min offset, max offset].

    "lower": the first message stored at or after the time, or the end of the queue. "upper": the last message stored at
    or before it, or the minimum.

    Args:
        timestamp_ms: milliseconds since the epoch.
        boundary: "lower" or "upper".
        store_time_of: reads a record's time from the log.
        min_logic_offset: position of the first live unit.
        min_physical_offset: where the log begins.
        file_times: cached times of full files; filled here.
    """
    if files.is_empty:
        return 0
    look_up = _TimeLookUp(files, store_time_of, min_logic_offset, min_physical_offset, file_times)
    position = look_up.lower(timestamp_ms) if boundary == "lower" else look_up.upper(timestamp_ms)
    return min(max(position, min_logic_offset), files.end) // UNIT_BYTES


class _Found(NamedTuple):
    """A position with the time, and the positions of its neighbours before and after."""

    exact: int | None
    left: int
    right: int


class _TimeLookUp:
    """One look-up: choose the file by the times of its ends, then search in it."""

    def __init__(
        self,
        files: SparseFileQueue,
        store_time_of: StoreTimeOf,
        min_logic_offset: int,
        min_physical_offset: int,
        file_times: FileTimes,
    ) -> None:
        self.files = files
        self.store_time_of = store_time_of
        self.min_logic_offset = min_logic_offset
        self.min_physical_offset = min_physical_offset
        self.file_times = file_times

    def lower(self, timestamp_ms: int) -> int:
        files = self.files
        start = files.first_start
        while start < files.last_start and self._times(start)[1] < timestamp_ms:
            start += files.file_size
        floor, ceiling = self._bounds(start)
        if self._time_at(ceiling) < timestamp_ms:
            return ceiling + UNIT_BYTES
        if self._time_at(floor) > timestamp_ms:
            return start
        found = self._search(floor, ceiling, timestamp_ms)
        if found.exact is None:
            return found.right
        return self._first_of_equals(floor, found.exact, timestamp_ms)

    def upper(self, timestamp_ms: int) -> int:
        files = self.files
        start = files.last_start
        while self._times(start)[0] > timestamp_ms:
            start -= files.file_size
            if start < files.first_start:
                return 0
        floor, ceiling = self._bounds(start)
        if self._time_at(ceiling) < timestamp_ms:
            return ceiling
        if self._time_at(floor) > timestamp_ms:
            return 0
        found = self._search(floor, ceiling, timestamp_ms)
        if found.exact is None:
            return found.left
        return self._last_of_equals(found.exact, ceiling, timestamp_ms)

    def _bounds(self, start: int) -> tuple[int, int]:
        ceiling = min(start + self.files.file_size, self.files.end) - UNIT_BYTES
        return min(max(start, self.min_logic_offset), ceiling), ceiling

    def _search(self, low: int, high: int, timestamp_ms: int) -> _Found:
        """Bisect the units from `low` to `high` for one with the time, or its neighbours before and after.

        As in RocketMQ, a record that cannot be read ends the search at the start of the queue.
        """
        left, right = low, high + UNIT_BYTES
        while low <= high:
            middle = (low + high) // (2 * UNIT_BYTES) * UNIT_BYTES
            unit = _unit_at(self.files, middle)
            if not _is_live(unit, self.min_physical_offset):
                low = middle + UNIT_BYTES
                continue
            time_ms = self.store_time_of(unit.physical_offset, unit.size)
            if time_ms < 0:
                return _Found(0, 0, 0)
            if time_ms == timestamp_ms:
                return _Found(middle, left, right)
            if time_ms < timestamp_ms:
                left, low = middle, middle + UNIT_BYTES
            else:
                right, high = middle, middle - UNIT_BYTES
        return _Found(None, left, right)

    # RocketMQ walks over equal times one by one; a batch gives thousands of messages one time.

    def _first_of_equals(self, low: int, found: int, timestamp_ms: int) -> int:
        while low < found:
            middle = (low + found) // (2 * UNIT_BYTES) * UNIT_BYTES
            if self._time_at(middle) == timestamp_ms:
                found = middle
            else:
                low = middle + UNIT_BYTES
        return found

    def _last_of_equals(self, found: int, high: int, timestamp_ms: int) -> int:
        while found < high:
            middle = -(-(found + high) // (2 * UNIT_BYTES)) * UNIT_BYTES
            if self._time_at(middle) == timestamp_ms:
                found = middle
            else:
                high = middle - UNIT_BYTES
        return found

    def _time_at(self, position: int) -> int:
        unit = _unit_at(self.files, position)
        if not _is_live(unit, self.min_physical_offset):
            return -1
        return self.store_time_of(unit.physical_offset, unit.size)

    def _times(self, start: int) -> tuple[int, int]:
        files = self.files
        if start == files.last_start:
            return self._time_at(start), self._time_at(files.end - UNIT_BYTES)
        times = self.file_times.get(start)
        if times is None:
            times = self._time_at(start), self._time_at(start + files.file_size - UNIT_BYTES)
            if min(times) >= 0:
                self.file_times[start] = times
        return times


def _unit_at(files: SparseFileQueue, position: int) -> ConsumeQueueUnit:
    return unpack_unit(files.read(position, UNIT_BYTES))


def _is_live(unit: ConsumeQueueUnit, min_physical_offset: int) -> bool:
    return unit.physical_offset >= min_physical_offset and not unit.is_pre_blank
