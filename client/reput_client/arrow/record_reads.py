"""Copy the records to which units point out of a log file, and check them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from reput_client.arrow.queues import QueueKey
from reput_protocol.kernel.records import unit_records
from reput_protocol.record.columns import BoolArray, IntArray, RecordColumns
from reput_protocol.record.layout import I32
from reput_protocol.store.layout import StreamFile
from reput_protocol.store.unit_files import FileReads

_GAP_BYTES: Final = 16 << 10
"""Bytes between two records that are read with them: a copy of more takes longer than a read of its own."""
_LARGE_BYTES: Final = 4 << 20
"""A unit that names more bytes is compared with the record's own size before these are read."""


class Units(NamedTuple):
    """Units whose records are read together, in log order."""

    place: IntArray
    size: IntArray
    number: IntArray
    """The queue offset of each record."""
    owner: IntArray
    """The index of the queue of each record."""


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
        sound = _sound(self._files, file, units)
        rows, lost = np.flatnonzero(sound), np.flatnonzero(~sound).tolist()
        chosen = Units(*(column[rows] for column in units)) if lost else units
        if not len(rows):
            return RecordColumns(b"", array("q")), lost
        firsts = np.flatnonzero(~_joined(chosen.place, chosen.size))
        edges = [*firsts.tolist(), len(rows)]
        starts = chosen.place[firsts]
        lengths = (chosen.place + chosen.size)[np.array(edges[1:]) - 1] - starts
        data = self._filled(file, (starts - file.start).tolist(), lengths.tolist())
        names = [(queue.topic.encode(), queue.queue_id) for queue in queues]
        flat: Any = np.column_stack(chosen).ravel()
        numbers = memoryview(flat)
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
                lost += rows[[first + row for row in wrong]].tolist()
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


def read_bytes(place: IntArray, size: IntArray) -> IntArray:
    """Return how many bytes are read for each record, with those before it."""
    total = size.copy()
    joined = _joined(place, size)[1:]
    total[1:][joined] += (place[1:] - (place + size)[:-1])[joined]
    return total


def _joined(place: IntArray, size: IntArray) -> BoolArray:
    """Tell which records are read together with the one before."""
    joined = np.zeros(len(place), np.bool_)
    gap = place[1:] - (place + size)[:-1]
    joined[1:] = (gap >= 0) & (gap <= _GAP_BYTES)
    return joined


def _sound(files: FileReads, file: StreamFile, units: Units) -> BoolArray:
    """Tell which units point into the file, and do not make a reading large without a large record."""
    place, size = units.place, units.size
    sound: BoolArray = (place >= file.start) & (size <= file.size) & (place <= file.end - size)
    doubtful = sound & (size > _LARGE_BYTES)
    doubtful[:-1] |= sound[:-1] & (place[1:] < (place + size)[:-1])
    for row in np.flatnonzero(doubtful).tolist():
        own = files.read_at(file.path, I32.size, int(place[row]) - file.start)
        sound[row] = len(own) == I32.size and I32.unpack(own)[0] == size[row]
    return sound
