"""Copy the records to which units point out of a log file, and check them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np

from reput_client.arrow.queues import QueueKey
from reput_protocol.kernel.records import unit_records
from reput_protocol.kernel.units import doubtful_units, unit_runs
from reput_protocol.record.columns import IntArray, RecordColumns
from reput_protocol.record.layout import I32
from reput_protocol.store.layout import StreamFile
from reput_protocol.store.unit_files import FileReads

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

    def read(
        self, file: StreamFile, units: Units, queues: Sequence[QueueKey]
    ) -> tuple[RecordColumns, list[int]]:
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
