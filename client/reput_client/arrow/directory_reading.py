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

from reput_client.arrow.batches import BATCH_BYTES, BATCH_ROWS, LOG_BATCH_ROWS, BatchMaker
from reput_client.arrow.directory_plan import Stretch, WantedRange
from reput_client.arrow.queues import QueueKey, QueueRange, Unreadable
from reput_client.arrow.record_reads import RecordReads, Units, read_bytes
from reput_client.arrow.store_files import open_store
from reput_protocol.filter.tags import TagFilter
from reput_protocol.kernel.units import unit_table
from reput_protocol.names import SCHEDULE_TOPIC
from reput_protocol.record.columns import BoolArray, IntArray, RecordColumns
from reput_protocol.record.layout import (
    RECORD_BYTES_MIN,
    TRANSACTION_BITS,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    tags_code,
)
from reput_protocol.store.layout import Stream, StreamFile
from reput_protocol.store.log_reader import Damage, LogBatch, read_log
from reput_protocol.store.unit import MAX_ADDRESS, PRE_BLANK_SIZE, UNIT, UNIT_BYTES
from reput_protocol.store.unit_files import UnitFiles

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

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
        live: BoolArray = (
            (size >= RECORD_BYTES_MIN) & (place >= self._log.min_offset) & (size != PRE_BLANK_SIZE)
        )
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
