"""Read parts of a store directory as Arrow batches: copy the records to which units point, and check them."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import pyarrow as pa

from reput_client.arrow.batches import BATCH_BYTES, BATCH_ROWS, LOG_BATCH_ROWS, BatchMaker
from reput_client.arrow.directory import Stretch, WantedRange
from reput_client.arrow.queues import QueueKey, QueueRange, Unreadable
from reput_client.arrow.store_files import open_store
from reput_protocol.filter.tags import TagFilter
from reput_protocol.kernel.records import unit_records
from reput_protocol.kernel.units import doubtful_units, unit_runs, unit_table
from reput_protocol.names import SCHEDULE_TOPIC
from reput_protocol.record.columns import BoolArray, IntArray, RecordColumns
from reput_protocol.record.layout import (
    I32,
    RECORD_BYTES_MIN,
    TRANSACTION_BITS,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    tags_code,
)
from reput_protocol.store.layout import Stream, StreamFile
from reput_protocol.store.log_reader import Damage, LogBatch, read_log
from reput_protocol.store.unit import MAX_ADDRESS, PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from reput_protocol.store.unit_files import FileReads, UnitFiles

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_GAP_BYTES: Final = 16 << 10
"""Bytes between two records that are read with them: a copy of more takes longer than a read of its own."""
_LARGE_BYTES: Final = 4 << 20
"""A unit that names more bytes is compared with the record's own size before these are read."""


class Units:
    """Units of queues, in the kernel's form: a row of four numbers each (`unit_table`).

    Attributes:
        place: log offset of each record.
        size: of each record.
        number: its queue offset.
        owner: the index of its queue.
    """

    def __init__(self, table: IntArray) -> None:
        self.table = table
        self.place, self.size, self.number, self.owner = table.T

    def __len__(self) -> int:
        return len(self.table)

    @property
    def numbers(self) -> memoryview:
        """The rows back to back."""
        flat: Any = self.table.ravel()
        return memoryview(flat)

    def __getitem__(self, rows: Any) -> Self:
        """Return some of the units, by row numbers, mask or slice."""
        return type(self)(self.table[rows])


class RecordReads:
    """Reads records into a buffer of its own, which the next reading overwrites.

    They are checked and decoded in that copy, because others may change the file at any time: a slave zeroes what its
    new master does not have. A mapped file would also turn a disk error, or a file that becomes shorter, into a signal
    that ends the process; here the one is an OSError, the other damage.
    """

    def __init__(self, files: FileReads) -> None:
        self._files = files
        self._buffer = memoryview(bytearray())

    def read(self, file: StreamFile, units: Units, queues: Sequence[QueueKey]) -> tuple[RecordColumns, list[int]]:
        """Return the records that match their units, and the row of each unit without such a record.

        Raises:
            FileNotFoundError: the file is gone.
            OSError: it cannot be read.
        """
        lost = _misplaced(self._files, file, units)
        rows = np.delete(np.arange(len(units)), lost) if lost else None
        if rows is not None:
            units = units[rows]
        if not len(units):
            return RecordColumns(b"", array("q")), lost
        numbers = units.numbers
        firsts = unit_runs(numbers, _GAP_BYTES)
        edges = [*firsts, len(units)]
        starts = units.place[firsts]
        lengths = (units.place + units.size)[np.array(edges[1:]) - 1] - starts
        data = self._filled(file, (starts - file.start).tolist(), lengths.tolist())
        names = [(queue.topic.encode(), queue.queue_id) for queue in queues]
        # The log offset at which the buffer would begin, if each run were its continuation.
        bases = (starts - (np.cumsum(lengths) - lengths)).tolist()
        table = array("q")
        for run, base in enumerate(bases):
            first, last = edges[run], edges[run + 1]
            found, wrong = unit_records(data, base, numbers[4 * first : 4 * last], names)
            if len(bases) == 1:
                table = found
            else:
                table += found
            if wrong:
                places = [first + row for row in wrong]
                lost += places if rows is None else rows[places].tolist()
        return RecordColumns(data, table), sorted(lost)

    def _filled(self, file: StreamFile, positions: list[int], lengths: list[int]) -> memoryview:
        """Return stretches of a file, one after another; what is after its end as zeros."""
        total = sum(lengths)
        if total > len(self._buffer):
            unset: Any = np.empty(total, np.uint8)
            self._buffer = memoryview(unset)
        at = 0
        for position, length in zip(positions, lengths, strict=True):
            part = self._buffer[at : at + length]
            done = self._files.read_into(file.path, part, position)
            if done < length:
                part[done:] = bytes(length - done)
            at += length
        return self._buffer[:total]


def read_bytes(units: Units) -> IntArray:
    """Return how many bytes are read for each record, with those before it."""
    total: IntArray = units.size.copy()
    total[1:] += units.place[1:] - (units.place + units.size)[:-1]
    firsts = unit_runs(units.numbers, _GAP_BYTES)
    total[firsts] = units.size[firsts]
    return total


def _misplaced(files: FileReads, file: StreamFile, units: Units) -> list[int]:
    """Return the rows of units that do not point into the file, or make a reading large without a large record."""
    lost = []
    for row in doubtful_units(units.numbers, file.start, file.end, _LARGE_BYTES):
        place, size = int(units.place[row]), int(units.size[row])
        own = b""
        if file.start <= place <= file.end - size:
            own = files.read_at(file.path, I32.size, place - file.start)
        if len(own) < I32.size or I32.unpack(own)[0] != size:
            lost.append(row)
    return lost


_UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert _UNIT.itemsize == UNIT_BYTES
_OFFSET_MAX: Final = (1 << 63) - 1
WINDOW_BYTES: Final = 32 << 20
"""Bytes of the log whose units are collected together."""
_UNITS_AT_ONCE_MIN: Final = 16
_UNITS_AT_ONCE_MAX: Final = 65_536

Live = Callable[[QueueKey, Units, UnitFiles], BoolArray]
"""Selects the units of a queue that point into the log; reports the others."""


def units_of(
    data: bytes, number: int, *, owner: int = 0, log_start: int, log_end: int = _OFFSET_MAX
) -> tuple[Units, bool]:
    """Return units, the first of which is unit `number`, and whether they are sound (`unit_table`)."""
    table, is_sound = unit_table(data, number, owner, log_start, log_end)
    return Units(np.asarray(table, np.int64).reshape(-1, 4)), is_sound


class _Cursor:
    """Reads the units of one range, a part at a time."""

    def __init__(self, part: WantedRange, owner: int, files: UnitFiles, log_start: int, live: Live) -> None:
        self.part = part
        self._owner = owner
        self._files = files
        self._log_start = max(part.log_start, log_start)
        self._live = live
        self._next = part.start
        self._waiting: Units | None = None
        self._is_sound = True
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

    def before(self, log_offset: int, window: int) -> Iterator[Units]:
        """Yield the units before a log offset that point into the log."""
        while True:
            if self._waiting is None:
                if self._next >= self.part.end:
                    return
                self._read(log_offset, window)
            assert self._waiting is not None
            stop = int(np.searchsorted(self._order, log_offset))
            found = self._waiting[:stop]
            yield found if self._is_sound else found[self._live(self.part.queue, found, self._files)]
            if stop < len(self._waiting):
                self._waiting, self._order = self._waiting[stop:], self._order[stop:]
                return
            self._waiting = None

    def _read(self, log_offset: int, window: int) -> None:
        left = self.part.end - self._next
        span = max(1, self.part.log_end - log_offset + window)
        likely = left * window // span + _UNITS_AT_ONCE_MIN
        count = min(left, likely, _UNITS_AT_ONCE_MAX)
        self._waiting, self._is_sound = units_of(
            self._files.read_bytes(self._next * UNIT_BYTES, count * UNIT_BYTES),
            self._next,
            owner=self._owner,
            log_start=self._log_start,
            log_end=self.part.log_end,
        )
        places = self._waiting.place
        self._order = places if self._is_sound else _ascending(places, self.part.log_start, self.part.log_end)
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
    log_start: int,
    live: Live,
) -> Iterator[Units]:
    """Yield the wanted units of a part of the log, window by window, each with the index of its range.

    Args:
        wanted: the ranges.
        start, end: log offsets; a record starts at `start`.
        files_of: opens the units of a range.
        log_start: where the log starts.
        live: selects the units that point into the log.
    """
    cursors = [
        _Cursor(part, owner, files_of(part), log_start, live)
        for owner, part in enumerate(wanted)
        if part.log_start < end and part.log_end > start
    ]
    for cursor in cursors:
        cursor.skip_to(start)
    for low in range(start, end, WINDOW_BYTES):
        high = min(low + WINDOW_BYTES, end)
        found = [units.table for cursor in cursors for units in cursor.before(high, WINDOW_BYTES)]
        if found:
            table = np.concatenate(found)
            yield Units(table[np.argsort(table[:, 0], kind="stable")])


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
                yield from self._units(part, start, min(BATCH_ROWS, part.end - start), units)

    def _units(self, part: QueueRange, first: int, count: int, files: UnitFiles) -> Iterator[pa.RecordBatch]:
        data = files.read_bytes(first * UNIT_BYTES, count * UNIT_BYTES)
        units, is_sound = units_of(data, first, log_start=self._log.min_offset)
        live = np.ones(count, np.bool_) if is_sound else self._live(part.queue, units, files)
        if self._codes is not None and part.queue.topic != SCHEDULE_TOPIC:
            code = np.frombuffer(data, _UNIT)["tags_code"].astype(np.int64)
            tag_hashes = code.astype("=i4")  # keeps the low 32 bits
            live &= np.isin(tag_hashes, [*self._codes.codes]) | (code <= MAX_ADDRESS)
        units = units[live]
        if len(units) and not self._log.files:
            self._unreadable.lost(part.queue, "the log was deleted while the query ran")
            return
        index = np.searchsorted(self._starts(), units.place, "right") - 1
        edges = [0, *(np.flatnonzero(np.diff(index)) + 1).tolist(), len(index)]
        for low, high in pairwise(edges):
            if low < high:
                file = self._log.files[int(index[low])]
                for rows in _slices(read_bytes(units), low, high):
                    if not (yield from self._records(file, units[rows], [part.queue], part.queue)):
                        break

    def _live(self, queue: QueueKey, units: Units, files: UnitFiles) -> BoolArray:
        """Select the units that point into the log; others are expired or damaged."""
        place, size = units.place, units.size
        live: BoolArray = (size >= RECORD_BYTES_MIN) & (place >= self._log.min_offset) & (size != PRE_BLANK_SIZE)
        for row in np.flatnonzero(~live).tolist():
            number = int(units.number[row])
            if size[row] > 0 and 0 <= place[row] < self._log.min_offset:
                self._unreadable.lost(queue, f"message {number} expired while the query ran")
                continue
            path, position = files.place(number)
            if not self._files.exists(path):
                self._unreadable.lost(
                    queue, f"{path}, with the unit of message {number}, was deleted while the query ran"
                )
                continue
            self._damage(str(path), position, f"message {number} of {queue} has no unit")
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
            reason = f"message {int(units.number[row])} of {queue} should be here, but there is another record"
            self._damage(str(file.path), int(units.place[row]) - file.start, reason)
        self._file = file
        yield from self._maker.make(columns, "")
        return True

    def segments(self, stretches: Iterable[Stretch], wanted: Sequence[WantedRange]) -> Iterator[pa.RecordBatch]:
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
        for window in windows(wanted, *stretch, self._unit_files, self._log.min_offset, self._live):
            start, count = 0, len(window)
            while start < count:
                limit = min(int(window.place[start]) + _CHUNK_BYTES, _OFFSET_MAX)
                stop = int(np.searchsorted(window.place, limit))
                stop = min(max(stop, start + 1), start + LOG_BATCH_ROWS)
                yield window[start:stop]
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
