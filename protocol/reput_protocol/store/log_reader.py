"""Read the log file by file: batches of records, damage, and the end.

Unlike recovery this does not stop at damage: it searches for the next valid record.
"""

from __future__ import annotations

import mmap
import os
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from reput_protocol.kernel.records import scan_records
from reput_protocol.record.layout import RECORD_BYTES_MIN, physical_offset_at
from reput_protocol.record.scan import POSITION, SIZE, TOPIC, WIDTH, RecordScan, ScanStatus, locate
from reput_protocol.store.files import end_of_data, is_all_zero, open_file, read_at
from reput_protocol.store.layout import Stream, StreamFile

CHUNK_BYTES = 2 << 20
"""Bytes read and examined at a time: a verification takes 8 % longer with 1 MiB, 6 % with 4 MiB (1 MiB of L2 cache a
core, bodies of 300 bytes)."""
_MAGIC = re.compile(rb"\xda\xa3\x20[\xa7\xab]")


@dataclass(slots=True)
class LogBatch:
    """Adjacent records of one file, each with valid lengths and at the place that it names."""

    file: StreamFile
    position: int
    """Start of the first one in the file."""
    data: bytes
    """Begins with the first record; may be longer than the records."""
    table: array[int]
    """`len(COLUMNS)` numbers of each record; positions count from the start of `data`."""

    def __len__(self) -> int:
        return len(self.table) // WIDTH

    @property
    def offset(self) -> int:
        """Log offset of the first record."""
        return self.file.start + self.position

    @property
    def end(self) -> int:
        """End of the last record in `data`."""
        return self.table[POSITION - WIDTH] + self.table[SIZE - WIDTH]

    def column(self, number: int) -> array[int]:
        """Return one number of every record, by its place in `record.scan`."""
        return self.table[number::WIDTH]

    def topic(self, row: int) -> bytes:
        """Return the topic of a record."""
        at = WIDTH * row + TOPIC
        return self.data[self.table[at] : self.table[at] + self.table[at + 1]]


class Damage(NamedTuple):
    """Bytes of the log in place of a valid record."""

    file: StreamFile
    position: int
    end_position: int
    """Start of the next valid record, or end of the file's data."""
    reason: str
    is_tail: bool
    """Whether nothing valid follows anywhere, as after a crash."""
    is_framed: bool = False
    """Whether lengths, place and topic are valid, so that it is known which message this was."""

    @property
    def offset(self) -> int:
        """Log offset of the first damaged byte."""
        return self.file.start + self.position

    @property
    def size(self) -> int:
        """Number of damaged bytes."""
        return self.end_position - self.position

    @property
    def end_offset(self) -> int:
        """Log offset after the last damaged byte."""
        return self.file.start + self.end_position


class LogEnd(NamedTuple):
    """End of the valid records; always the last item of a reading."""

    offset: int


class BlankEnd(NamedTuple):
    """A blank record: the log continues in the next file."""

    file: StreamFile
    position: int


LogPart = LogBatch | Damage | BlankEnd | LogEnd


def read_log(
    stream: Stream,
    from_index: int = 0,
    *,
    to_index: int | None = None,
    from_position: int = 0,
    chunk_bytes: int = CHUNK_BYTES,
) -> Iterator[LogPart]:
    """Read the stream's files in order, the first one from a record's position on.

    With `to_index` only the files before that one are read. Reading all parts of the files this way yields the same
    items as one reading, except for the ends; a missing file before a part belongs to that part.

    Checks sizes, magic numbers, inner lengths and PHYSICALOFFSET, but not checksums (`checksum_faults`).
    """
    last = last_file_with_data(stream)
    end = LogEnd(stream.min_offset)
    for index in range(from_index, len(stream.files) if to_index is None else to_index):
        file = stream.files[index]
        if index > (from_index if to_index is None else 0):
            before = stream.files[index - 1]
            if file.start != before.start + stream.file_size and index <= last:
                gap = StreamFile(before.path.with_name(f"{before.start + stream.file_size:020d}"), before.end, 0)
                yield Damage(gap, 0, file.start - before.end, "the file is missing", False)
        if index > last and index > (from_index if to_index is None else 0):
            break  # made ahead and never used
        reading = _FileReading(stream, file, index >= last, chunk_bytes)
        try:
            yield from reading.parts(from_position if index == from_index else 0)
        finally:
            reading.close()
        end = LogEnd(file.start + reading.end_position)
        if reading.ended_here and index >= last:
            break
    yield end


def last_file_with_data(stream: Stream) -> int:
    """Index of the last file that is not all zero, -1 if there is none."""
    for index in range(len(stream.files) - 1, -1, -1):
        fd = open_file(stream.files[index].path)
        try:
            if not is_all_zero(fd, 0, stream.files[index].size):
                return index
        finally:
            os.close(fd)
    return -1


class _FileReading:
    def __init__(self, stream: Stream, file: StreamFile, is_last: bool, chunk_bytes: int) -> None:
        self._file = file
        self._file_size = stream.file_size
        self._is_last = is_last
        self._chunk_bytes = chunk_bytes
        self._fd = open_file(file.path)
        self.end_position = 0
        """End of the valid records."""
        self.ended_here = False
        """Whether only zeros follow, instead of a blank record or the end of the file."""

    def close(self) -> None:
        os.close(self._fd)

    def parts(self, position: int = 0) -> Iterator[LogPart]:
        want = self._chunk_bytes
        size = self._file.size
        while position < size:
            data = read_at(self._fd, min(want, size - position), position)
            batch, consumed = self._batch(data, position)
            if batch is not None:
                yield batch
                position += consumed
                self.end_position = position
                want = self._chunk_bytes
                if consumed == len(data):
                    continue
                data = data[consumed:]
            reaches_end = position + len(data) >= size
            scan, reason = self._judge(data, position)
            if scan.status is ScanStatus.TRUNCATED and not reaches_end:
                if batch is None:
                    want = max(2 * len(data), scan.size if scan.size <= size - position else 0)
                continue
            if scan.status is ScanStatus.BLANK and not reason:
                yield BlankEnd(self._file, position)
                return
            if not reaches_end and scan.status is not ScanStatus.RECORD and len(data) < scan.size:
                continue
            if self._is_zero_from(position):
                if self._is_last:
                    self.ended_here = True
                else:
                    yield Damage(
                        self._file, position, size, "no record is there, but the log continues in a later file", False
                    )
                return
            damage = self._damage(position, scan, reason)
            yield damage
            if damage.is_tail:
                self.ended_here = True
                return
            position = damage.end_position
            if position < size:
                self.end_position = position
            want = self._chunk_bytes
        if size < self._file_size:
            reason = f"the file ends here, with {size} bytes of {self._file_size}"
            yield Damage(self._file, size, size, reason, self._is_last)

    def _batch(self, data: bytes, position: int) -> tuple[LogBatch | None, int]:
        table, end, *_ = scan_records(data, 0, len(data), self._file.start + position)
        if not table:
            return None, 0
        return LogBatch(self._file, position, data, table), end

    def _judge(self, data: bytes, position: int) -> tuple[RecordScan, str]:
        scan, extent = locate(data, 0, len(data), check_crc=False)
        if extent is not None:
            claimed = physical_offset_at(data)
            return scan, f"PHYSICALOFFSET is {claimed}, but the record is at {self._file.start + position}"
        if scan.status is ScanStatus.BLANK:
            left = self._file_size - position
            if scan.size == left:
                return scan, ""
            return scan, f"a blank record there names {scan.size} bytes, but {left} are left in the file"
        return scan, scan.reason

    def _is_zero_from(self, position: int) -> bool:
        return is_all_zero(self._fd, position, self._file.size)

    def _damage(self, position: int, scan: RecordScan, reason: str) -> Damage:
        size = self._file.size
        with mmap.mmap(self._fd, size, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            follower = position + scan.size
            if scan.size >= RECORD_BYTES_MIN and follower < size and self._is_sound(view, follower):
                return Damage(self._file, position, follower, reason, False)
            for match in _MAGIC.finditer(view, position + 5):
                start = match.start() - 4
                if self._is_sound(view, start) and start > position:
                    return Damage(self._file, position, start, reason, False)
        if self._is_last:
            data_end = end_of_data(self._fd, position, size)
            whole = position + scan.size if scan.status is ScanStatus.RECORD else data_end
            return Damage(self._file, position, min(max(data_end, whole), size), reason, True)
        return Damage(self._file, position, size, reason, False)

    def _is_sound(self, view: memoryview, position: int) -> bool:
        scan, extent = locate(view, position, self._file.size, check_crc=False)
        if extent is not None:
            return physical_offset_at(view, position) == self._file.start + position
        return scan.status is ScanStatus.BLANK and scan.size == self._file_size - position
