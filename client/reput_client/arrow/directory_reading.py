"""Read parts of a store directory as Arrow batches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from reput_client.arrow.batches import BATCH_BYTES, BATCH_ROWS, LOG_BATCH_ROWS, BatchMaker
from reput_client.arrow.directory_plan import Stretch, WantedRange
from reput_client.arrow.queues import QueueKey, QueueRange, Unreadable
from reput_client.arrow.record_reads import RecordReads, Units, read_bytes
from reput_client.arrow.store_files import open_store
from reput_protocol.filter.tags import TagFilter
from reput_protocol.names import SCHEDULE_TOPIC
from reput_protocol.record.columns import BoolArray, IntArray, RecordColumns
from reput_protocol.record.hashing import tags_code
from reput_protocol.record.layout import (
    RECORD_BYTES_MIN,
    TRANSACTION_BITS,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from reput_protocol.store.layout import Stream, StreamFile
from reput_protocol.store.log_reader import Damage, LogBatch, read_log
from reput_protocol.store.unit import MAX_ADDRESS, PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from reput_protocol.store.unit_files import UnitFiles

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

QueueUnits = NDArray[np.void]
"""Units of a queue with the fields physical_offset, size and tags_code."""
_UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert _UNIT.itemsize == UNIT_BYTES
WINDOW_BYTES: Final = 32 << 20
"""Bytes of the log whose units are collected together."""
_UNITS_AT_ONCE_MIN: Final = 16
_UNITS_AT_ONCE_MAX: Final = 65_536

Live = Callable[[WantedRange, IntArray, IntArray, IntArray, UnitFiles], BoolArray]
"""Selects the units of a range that point into the log, by number, log offset and size; reports the others."""


def read_units(files: UnitFiles, number: int, count: int) -> QueueUnits:
    """Return `count` units, starting with unit `number`."""
    return np.frombuffer(files.read_bytes(number * UNIT_BYTES, count * UNIT_BYTES), _UNIT)


class _Cursor:
    """Reads the units of one range, a part at a time."""

    def __init__(self, part: WantedRange, owner: int, files: UnitFiles, live: Live) -> None:
        self.part = part
        self.owner = owner
        self._files = files
        self._live = live
        self._next = part.start
        self._first = part.start
        self._waiting: QueueUnits | None = None
        self._order: IntArray = np.empty(0, np.int64)

    def skip_to(self, log_offset: int) -> None:
        """Start with the first record at or after a log offset."""
        low, high = self.part.start, self.part.end
        if self.part.log_start < log_offset:
            while low < high:
                middle = known = (low + high) // 2
                while known < high and not self.part.log_start <= self._place(known) < self.part.log_end:
                    known += 1  # damaged
                if known == high or self._place(known) >= log_offset:
                    high = middle
                else:
                    low = known + 1
        self._next = low

    def _place(self, number: int) -> int:
        place: int = UNIT.unpack(self._files.read_bytes(number * UNIT_BYTES, UNIT_BYTES))[0]
        return place

    def before(self, log_offset: int, window: int) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
        """Yield log offset, size and number of the units before a log offset."""
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
        places = self._waiting["physical_offset"].astype(np.int64)
        self._order = _ascending(places, self.part.log_start, self.part.log_end)
        self._first = self._next
        self._next += count


def _ascending(places: IntArray, low: int, high: int) -> IntArray:
    """Return log offsets that ascend: in place of one that is not in `[low, high)`, or does not fit, the one before.

    So a damaged or missing unit is reported with its neighbours, and does not keep those after it back.
    """
    fits = (places >= low) & (places < high)
    if not fits.all() or (places[1:] < places[:-1]).any():
        rows = np.flatnonzero(fits)
        fits[:] = False
        fits[rows[_longest_ascent(places[rows].tolist())]] = True
    order: IntArray = np.maximum.accumulate(np.where(fits, places, 0))
    return order


def _longest_ascent(numbers: Sequence[int]) -> list[int]:
    """Return the positions of a longest part of the numbers that ascends."""
    lasts: list[int] = []
    """The smallest number that ends an ascent of each length."""
    ends: list[int] = []
    """Its position."""
    before: list[int] = []
    """The position before each one in its ascent."""
    for position, number in enumerate(numbers):
        length = bisect_right(lasts, number)
        before.append(ends[length - 1] if length else -1)
        lasts[length : length + 1] = [number]
        ends[length : length + 1] = [position]
    chosen: list[int] = []
    position = ends[-1] if ends else -1
    while position >= 0:
        chosen.append(position)
        position = before[position]
    return chosen[::-1]


def windows(
    wanted: Sequence[WantedRange],
    start: int,
    end: int,
    files_of: Callable[[WantedRange], UnitFiles],
    live: Live,
) -> Iterator[Units]:
    """Yield the wanted units of a part of the log, window by window, each with the index of its range.

    Args:
        wanted: the ranges.
        start, end: log offsets; a record starts at `start`.
        files_of: opens the units of a range.
        live: selects the units that point into the log.
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
            yield Units(*(column[order] for column in columns))


class WantedRecords:
    """The ranges of a query by topic and queue id.

    A record belongs to a range with its topic and queue id if it is between the range's first and last record in the
    log, which excludes messages of a deleted topic of that name. Prepared and rolled back messages are in no queue
    (RocketMQ's CommitLogDispatcherBuildConsumeQueue).
    """

    def __init__(self, wanted: Sequence[WantedRange]) -> None:
        self._ranges = {(part.queue.topic.encode(), part.queue.queue_id): part for part in wanted}

    def has(self, columns: RecordColumns, row: int, place: int) -> bool:
        """Return whether the record at log offset `place` is wanted."""
        part = self._ranges.get((bytes(columns.topic(row)), int(columns.queue_id[row])))
        if part is None or int(columns.sys_flag[row]) & TRANSACTION_BITS in _IN_NO_QUEUE:
            return False
        number = int(columns.queue_offset[row])
        return part.start <= number < part.end and part.log_start <= place < part.log_end


_IN_NO_QUEUE = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


_CHUNK_BYTES: Final = 4 << 20
_RECORD_BYTES: Final = 4096
"""Bytes of a single record's first read."""


class DirectoryReading:
    """Reads parts of a directory; a context manager.

    Args:
        path: of the directory, or its URL.
        schema: Arrow schema of the batches.
        unreadable: decides about expired and damaged messages.
        tag_filter: selects messages.
        tags: further tags, whose messages are enough; None: of all messages that `tag_filter` selects.
        filesystem: as of `StoreDirectory`.

    Raises:
        BucketUnavailable, BucketRefused: as `StoreDirectory`, also while it reads.
    """

    def __init__(
        self,
        path: str,
        schema: pa.Schema,
        unreadable: Unreadable,
        tag_filter: TagFilter,
        tags: frozenset[str] | None = None,
        filesystem: FileSystem | None = None,
    ) -> None:
        self._unreadable = unreadable
        self._files = open_store(path, filesystem)
        self._log: Stream = self._files.log()
        self._reads = RecordReads(self._files)
        self._maker = BatchMaker(schema, tag_filter, self._bad_record)
        self._codes = _codes_filter(tag_filter, tags)
        self._file = StreamFile(Path(), 0, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def queues(self, ranges: Iterable[QueueRange]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ranges, each queue in order."""
        for part in ranges:
            units = self._unit_files(part)
            for start in range(part.start, part.end, BATCH_ROWS):
                count = min(BATCH_ROWS, part.end - start)
                yield from self._units(part, start, read_units(units, start, count), units)

    def _units(
        self, part: QueueRange, first: int, found: QueueUnits, files: UnitFiles
    ) -> Iterator[pa.RecordBatch]:
        numbers = np.arange(first, first + len(found))
        place = found["physical_offset"].astype(np.int64)
        size = found["size"].astype(np.int64)
        live = self._live(part, numbers, place, size, files)
        if self._codes is not None and part.queue.topic != SCHEDULE_TOPIC:
            code = found["tags_code"].astype(np.int64)
            tag_hashes = code.astype("=i4")  # keeps the low 32 bits
            live &= np.isin(tag_hashes, [*self._codes.codes]) | (code <= MAX_ADDRESS)
        numbers, place, size = numbers[live], place[live], size[live]
        if len(place) and not self._log.files:
            self._unreadable.lost(part.queue, "the log was deleted while the query ran")
            return
        index = np.searchsorted(self._starts(), place, "right") - 1
        edges = [0, *(np.flatnonzero(np.diff(index)) + 1).tolist(), len(index)]
        for low, high in pairwise(edges):
            if low < high:
                file = self._log.files[int(index[low])]
                for rows in _slices(read_bytes(place, size), low, high):
                    owner = np.zeros(len(place[rows]), np.int64)
                    units = Units(place[rows], size[rows], numbers[rows], owner)
                    if not (yield from self._records(file, units, [part.queue], part.queue)):
                        break

    def _live(
        self,
        part: QueueRange | WantedRange,
        numbers: IntArray,
        place: IntArray,
        size: IntArray,
        files: UnitFiles,
    ) -> BoolArray:
        """Select the units that point into the log; others are expired or damaged."""
        live: BoolArray = (
            (size >= RECORD_BYTES_MIN) & (place >= self._log.min_offset) & (size != PRE_BLANK_SIZE)
        )
        if live.all():
            return live
        for row in np.flatnonzero(~live).tolist():
            number = int(numbers[row])
            if size[row] > 0 and 0 <= place[row] < self._log.min_offset:
                self._unreadable.lost(part.queue, f"message {number} expired while the query ran")
                continue
            path, position = files.place(number)
            if not self._files.exists(path):
                self._unreadable.lost(
                    part.queue, f"{path}, with the unit of message {number}, was deleted while the query ran"
                )
                continue
            self._damage(str(path), position, f"message {number} of {part.queue} has no unit")
        return live

    def _starts(self) -> IntArray:
        return np.array([file.start for file in self._log.files], np.int64)

    def _records(
        self, file: StreamFile, units: Units, queues: Sequence[QueueKey], what: object
    ) -> Generator[pa.RecordBatch, None, bool]:
        """Yield the records to which units point; one that is not its unit's message is damage.

        Returns False if the file is gone, which is reported as a loss of `what`.
        """
        try:
            columns, wrong = self._reads.read(file, units, queues)
        except FileNotFoundError:
            first = f"message {int(units.number[0])} of {queues[int(units.owner[0])]}"
            self._unreadable.lost(what, f"{file.path}, with {first}, was deleted while the query ran")
            return False
        for row in wrong:
            queue = queues[int(units.owner[row])]
            reason = (
                f"message {int(units.number[row])} of {queue} should be here, but there is another record"
            )
            self._damage(str(file.path), int(units.place[row]) - file.start, reason)
        self._file = file
        yield from self._maker.make(columns, "")
        return True

    def segments(
        self, stretches: Iterable[Stretch], wanted: Sequence[WantedRange]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the wanted messages of parts of the log, in log order."""
        queues = [part.queue for part in wanted]
        for stretch in stretches:
            file = self._log.find(stretch.start)
            if file is None:
                self._unreadable.lost("of the log", f"offset {stretch.start} was deleted while the query ran")
                continue
            for units in self._pieces(stretch, wanted):
                if not (yield from self._records(file, units, queues, "of the log")):
                    break

    def _pieces(self, stretch: Stretch, wanted: Sequence[WantedRange]) -> Iterator[Units]:
        """Yield the wanted units of a part of the log, in parts for one batch each."""
        for window in windows(wanted, *stretch, self._unit_files, self._live):
            start, count = 0, len(window.place)
            while start < count:
                limit = min(int(window.place[start]) + _CHUNK_BYTES, np.iinfo(np.int64).max)
                stop = int(np.searchsorted(window.place, limit))
                stop = min(max(stop, start + 1), start + LOG_BATCH_ROWS)
                yield Units(*(column[start:stop] for column in window))
                start = stop

    def _unit_files(self, part: WantedRange | QueueRange) -> UnitFiles:
        return UnitFiles(self._files.queue(part.queue.topic, part.queue.queue_id), self._files)

    def records(self, log_offsets: Iterable[int], ranges: Sequence[WantedRange]) -> Iterator[pa.RecordBatch]:
        """Yield single records, if they are wanted."""
        wanted = WantedRecords(ranges)
        for log_offset in log_offsets:
            file = self._log.find(log_offset)
            if file is None:
                continue  # expired
            alone = Stream(self._log.directories, [file], self._log.file_size)
            for part in read_log(alone, from_position=log_offset - file.start, chunk_bytes=_RECORD_BYTES):
                if isinstance(part, LogBatch):
                    self._file = file
                    columns = RecordColumns(part.data, part.table)
                    if wanted.has(columns, 0, log_offset):
                        yield from self._maker.make(columns.take(slice(1)), "")
                elif isinstance(part, Damage) and part.offset == log_offset:
                    self._damage(str(file.path), part.position, part.reason)
                break

    def _bad_record(self, columns: RecordColumns, row: int, reason: str) -> None:
        offset = int(columns.physical_offset[row])
        self._damage(str(self._file.path), offset - self._file.start, reason)

    def _damage(self, place: str, position: int, reason: str) -> None:
        self._unreadable.damaged(f"{place} at byte", position, reason)


def _slices(size: IntArray, low: int, high: int) -> Iterator[slice]:
    """Split rows into slices of at most BATCH_BYTES, or one row."""
    total = np.cumsum(size[low:high])
    start = 0
    while start < high - low:
        limit = BATCH_BYTES + (int(total[start - 1]) if start else 0)
        stop = max(start + 1, int(np.searchsorted(total, limit, "right")))
        yield slice(low + start, low + stop)
        start = stop


def _codes_filter(asked: TagFilter, tags: frozenset[str] | None) -> TagFilter | None:
    """Return a filter on tag hashes; None for all messages."""
    if tags is None:
        return None if asked.matches_all else asked
    both = tags if asked.matches_all else tags & asked.tags
    return TagFilter("", False, both, frozenset(map(tags_code, both)))
