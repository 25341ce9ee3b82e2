"""The tasks of a query over a store directory: from files to batches."""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import pyarrow as pa

from reput_broker.store.opening.directory_swap import standing_for
from reput_broker.store.queue.extension_unit import MAX_ADDRESS
from reput_broker.store.queue.unit import PRE_BLANK_SIZE
from reput_broker.tools.layout import Stream, StreamFile, read_stream
from reput_broker.tools.log_reader import Damage, LogBatch, read_log
from reput_broker.tools.unit_files import OpenFiles, UnitFiles
from reput_pipeline.batches import BATCH_BYTES, BATCH_ROWS, LOG_BATCH_ROWS, BatchMaker
from reput_pipeline.errors import DamagedStore, DataLost
from reput_pipeline.log_order import Units, Window, read_units, windows
from reput_pipeline.narrowing import Narrowing
from reput_pipeline.notes import Losses, note
from reput_pipeline.offline_plan import (
    PlacesPartition,
    QueuePartition,
    SegmentPartition,
    WantedRange,
)
from reput_pipeline.offline_store import directory_of
from reput_pipeline.options import SourceOptions
from reput_pipeline.places import QueueKey
from reput_pipeline.ranges import QueueRange
from reput_pipeline.wanted_records import WantedRecords
from reput_protocol import kernel
from reput_protocol.buffers import Buffer
from reput_protocol.filters import TagFilter
from reput_protocol.hashing import tags_code
from reput_protocol.names import SCHEDULE_TOPIC
from reput_protocol.record_columns import BoolArray, IntArray, RecordColumns
from reput_protocol.record_layout import RECORD_BYTES_MIN

_CHUNK_BYTES: Final = 4 << 20
_PLACE_BYTES: Final = 4096
"""Read at once for a single record, unless it is larger."""


class DirectoryReading:
    """Reads the parts of one directory that one task is given; a context manager, used in the worker.

    Args:
        options: of the query.
        schema: the Arrow schema that every batch gets.
        narrowing: what else is known of the messages that count: their tags.
    """

    def __init__(self, options: SourceOptions, schema: pa.Schema, narrowing: Narrowing) -> None:
        assert options.path is not None, "a reading of a directory has a path"
        self._options = options
        self._root = directory_of(options.path)
        self._log: Stream = read_stream((self._root / "commitlog",))
        self._queues = standing_for(self._root / "consumequeue")
        self._files = OpenFiles()
        self._mapped: dict[Path, memoryview] = {}
        self._maker = BatchMaker(schema, options.tag_filter, self._bad_record)
        self._codes = _codes_filter(options.tag_filter, narrowing)
        self._file = StreamFile(Path(), 0, 0)
        self._losses = Losses()
        self.skipped: Counter[str] = Counter()
        """Of every file, how many damaged records or stretches were left out."""

    def __enter__(self) -> DirectoryReading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()
        self._mapped.clear()  # each goes with the last batch that refers to it
        for name, count in self.skipped.items():
            note(f"left out {count} damaged records of {name}")
        self._losses.tell()

    # -- by queue --------------------------------------------------------------------------------------------------

    def queues(self, partition: QueuePartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ranges of queues, each queue in order."""
        for part in partition.ranges:
            units = self._unit_files(part)
            for start in range(part.start, part.end, BATCH_ROWS):
                count = min(BATCH_ROWS, part.end - start)
                yield from self._units(part, start, read_units(units, start, count), units)

    def _units(
        self, part: QueueRange, first: int, found: Units, files: UnitFiles
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
            self._lost(part.queue, "the log was deleted while the query ran")
            return
        index = np.searchsorted(self._starts(), place, "right") - 1
        edges = [0, *(np.flatnonzero(np.diff(index)) + 1).tolist(), len(index)]
        for low, high in pairwise(edges):
            if low < high:
                file = self._log.files[int(index[low])]
                for rows in _slices(size, low, high):
                    yield from self._records(part.queue, file, numbers[rows], place[rows], size[rows])

    def _live(
        self,
        part: QueueRange | WantedRange,
        numbers: IntArray,
        place: IntArray,
        size: IntArray,
        files: UnitFiles,
    ) -> BoolArray:
        """Which units lead into the log; the others are expired, or damage."""
        live: BoolArray = (
            (size >= RECORD_BYTES_MIN) & (place >= self._log.min_offset) & (size != PRE_BLANK_SIZE)
        )
        if live.all():
            return live
        for row in np.flatnonzero(~live).tolist():
            number = int(numbers[row])
            if size[row] > 0 and 0 <= place[row] < self._log.min_offset:
                self._lost(part.queue, f"message {number} expired while the query ran")
                continue
            path, position = files.place(number)
            if not path.exists():
                self._lost(part.queue, f"{path} was deleted while the query ran")
                continue
            self._damage(str(path), position, f"no unit of message {number} of {part.queue} is there")
        return live

    def _starts(self) -> IntArray:
        return np.array([file.start for file in self._log.files], np.int64)

    def _records(
        self, queue: QueueKey, file: StreamFile, numbers: IntArray, place: IntArray, size: IntArray
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of one file that units of one queue point to."""
        buffer = self._map(file, queue)
        if buffer is None:
            return
        owner = np.zeros(len(place), np.int64)
        yield from self._checked(buffer, file, file.start, Window(place, size, numbers, owner), [queue])

    def _checked(
        self,
        buffer: Buffer,
        file: StreamFile,
        base: int,
        units: Window,
        queues: Sequence[QueueKey],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records that units point to, each if it is the very one that the unit means.

        Args:
            buffer: bytes of the file.
            file: named where damage is found.
            base: log offset of the buffer's first byte.
            units: of what the records have to be.
            queues: which the units are of.
        """
        names = [(queue.topic.encode(), queue.queue_id) for queue in queues]
        numbers: Any = np.column_stack(units).ravel()
        table, wrong = kernel.unit_records(buffer, base, memoryview(numbers), names)
        for row in wrong:
            queue = queues[int(units.owner[row])]
            reason = f"message {int(units.number[row])} of {queue} should lie here, and its record does not"
            self._damage(str(file.path), int(units.place[row]) - file.start, reason)
        self._file = file
        yield from self._maker.make(RecordColumns(buffer, table), "")

    def _map(self, file: StreamFile, what: object) -> memoryview | None:
        """Return a file of the log, mapped for as long as this task runs; None if it is gone and may be."""
        mapped = self._mapped.get(file.path)
        if mapped is None:
            try:
                with file.path.open("rb") as source:
                    mapped = memoryview(mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ))
            except FileNotFoundError:
                self._lost(what, f"{file.path} was deleted while the query ran")
                return None
            self._mapped[file.path] = mapped
        return mapped

    # -- through the log -------------------------------------------------------------------------------------------

    def segments(self, partition: SegmentPartition) -> Iterator[pa.RecordBatch]:
        """Yield the wanted messages of stretches of the log, in the order of the log."""
        queues = [part.queue for part in partition.wanted]
        for stretch in partition.stretches:
            file = self._log.find(stretch.start)
            if file is None:
                self._lost("of the log", f"offset {stretch.start} was deleted while the query ran")
                continue
            try:
                fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._lost("of the log", f"{file.path} was deleted while the query ran")
                continue
            try:
                for window in windows(partition.wanted, *stretch, self._unit_files, self._live):
                    for units in _pieces(window):
                        start = int(units.place[0])
                        end = int(units.place[-1] + units.size[-1])
                        data = os.pread(fd, end - start, start - file.start)
                        yield from self._checked(data, file, start, units, queues)
            finally:
                os.close(fd)

    def _unit_files(self, part: WantedRange | QueueRange) -> UnitFiles:
        directory = self._queues / part.queue.topic / str(part.queue.queue_id)
        return UnitFiles(read_stream((directory,)), self._files)

    # -- single places ---------------------------------------------------------------------------------------------

    def places(self, partition: PlacesPartition) -> Iterator[pa.RecordBatch]:
        """Yield the wanted ones of single records."""
        wanted = WantedRecords(partition.wanted)
        for place in partition.places:
            file = self._log.find(place)
            if file is None:
                continue  # it has expired, and so is in no wanted range
            alone = Stream(self._log.directories, [file], self._log.file_size)
            for part in read_log(alone, from_position=place - file.start, chunk_bytes=_PLACE_BYTES):
                if isinstance(part, LogBatch):
                    self._file = file
                    columns = RecordColumns(part.data, part.table)
                    if wanted.has(columns, 0, place):
                        yield from self._maker.make(columns.take(slice(1)), "")
                elif isinstance(part, Damage) and part.offset == place:
                    self._damage(str(file.path), part.position, part.reason)
                break

    # -- what is wrong ---------------------------------------------------------------------------------------------

    def _bad_record(self, columns: RecordColumns, row: int, reason: str) -> None:
        offset = int(columns.physical_offset[row])
        self._damage(str(self._file.path), offset - self._file.start, reason)

    def _damage(self, place: str, position: int, reason: str) -> None:
        if not self._options.skip_damage:
            raise DamagedStore(f"{place} at byte", position, reason)
        self.skipped[place] += 1

    def _lost(self, what: object, reason: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(what, reason)
        self._losses.add(what, reason)


def _pieces(window: Window) -> Iterator[Window]:
    """Cut a window into pieces for one batch each."""
    start, count = 0, len(window.place)
    while start < count:
        stop = int(np.searchsorted(window.place, window.place[start] + _CHUNK_BYTES))
        stop = min(max(stop, start + 1), start + LOG_BATCH_ROWS)
        yield Window(*(column[start:stop] for column in window))
        start = stop


def _slices(size: IntArray, low: int, high: int) -> Iterator[slice]:
    """Cut rows so that each slice has at most BATCH_BYTES, or one row."""
    total = np.cumsum(size[low:high])
    start = 0
    while start < high - low:
        limit = BATCH_BYTES + (int(total[start - 1]) if start else 0)
        stop = max(start + 1, int(np.searchsorted(total, limit, "right")))
        yield slice(low + start, low + stop)
        start = stop


def _codes_filter(asked: TagFilter, narrowing: Narrowing) -> TagFilter | None:
    """Return the filter on tag hashes that both the options and the filters of the query allow; None for all."""
    if narrowing.tags is None:
        return None if asked.matches_all else asked
    tags = narrowing.tags if asked.matches_all else narrowing.tags & asked.tags
    return TagFilter("", False, tags, frozenset(map(tags_code, tags)))
