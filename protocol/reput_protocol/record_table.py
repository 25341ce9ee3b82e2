"""Records of one size and one shape, back to back: a table with a row for each.

Messages that one producer sends in bulk are often like that. Where each part lies is then read from the first record
alone, and all that the others have to show is that they are like it. Where sizes differ, see `record_run`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput_protocol.properties_table import PropertiesTexts, read_texts, table_of
from reput_protocol.record_columns import HEAD_DTYPE, IntArray
from reput_protocol.record_layout import HEAD_BYTES, HOST_BITS
from reput_protocol.record_scan import RecordScan, locate


class RecordTable(NamedTuple):
    """`rows` records of `size` bytes, from the start of the buffer on, all of one topic."""

    rows: int
    size: int
    head: NDArray[Any]
    """The fixed fields of every record (`HEAD_DTYPE`)."""
    physical_offset: IntArray
    """Where each record says that it lies in the log."""
    topic: bytes
    properties: int
    """Where in each record the properties text begins."""
    stopped_by: RecordScan | None
    """What lies behind the table: None is the end of the buffer."""

    @property
    def end(self) -> int:
        """Where the table ends."""
        return self.rows * self.size

    @property
    def position(self) -> IntArray:
        """Where each record starts."""
        return np.arange(0, self.rows * self.size, self.size)

    @property
    def sizes(self) -> IntArray:
        """Bytes of each whole record."""
        return np.full(self.rows, self.size, np.int64)

    @property
    def sys_flag(self) -> IntArray:
        """The system flag of each record."""
        return np.full(self.rows, self.head["sys_flag"][0], np.int64)

    @property
    def properties_position(self) -> IntArray:
        """Where each properties text starts."""
        return np.arange(self.properties, self.rows * self.size + self.properties, self.size)

    @property
    def properties_size(self) -> IntArray:
        """Bytes of each properties text."""
        return np.full(self.rows, self.size - self.properties, np.int64)

    def texts(self, data: bytes) -> PropertiesTexts:
        """Read the properties of the scanned bytes."""
        shape, steps = (self.rows, self.size - self.properties), (self.size, 1)
        view: NDArray[np.uint8] = np.ndarray(shape, np.uint8, data, self.properties, steps)
        return table_of(view) or read_texts(data, self.properties_position, self.properties_size)


def read_table(data: bytes, base_physical_offset: int | None, least: int) -> RecordTable | None:
    """Return the table that all whole records of `data` form; None if they do not, or are fewer than `least`.

    With `base_physical_offset`, the log offset of the first byte, every record must say that it lies where it does.
    None says nothing about the records: they may be sound or not.
    """
    end = len(data)
    scan, extent = locate(data, 0, end, check_crc=False)
    size = scan.size
    if extent is None or size * least > end or data[_SYS_FLAG_LOW] & HOST_BITS:
        return None
    count = end // size
    sizes = np.ndarray((count,), ">i4", data, 0, (size,)).tobytes()
    if sizes != sizes[:4] * count:
        same = np.frombuffer(sizes, ">i4") == size
        count = int(same.argmin())
        if count < least:
            return None
    stopped_by: RecordScan | None = None
    if count * size < end:
        stopped_by, other = locate(data, count * size, end, check_crc=False)
        if other is not None:
            return None  # a record of another size
    head = np.ndarray((count,), _HEAD_VOID, data, 0, (size,)).copy()
    alike = (head.view(np.uint64).reshape(count, -1) & _ALIKE).tobytes()
    topic_end = extent.topic + extent.topic_size + 2  # with the length of the properties
    body_end = extent.body + extent.body_size
    tail_type = np.dtype((np.void, topic_end - body_end))
    tails = np.ndarray((count,), tail_type, data, body_end, (size,)).tobytes()
    if alike != alike[:HEAD_BYTES] * count or tails != tails[: topic_end - body_end] * count:
        return None
    fields = head.view(HEAD_DTYPE)
    physical_offset = fields["physical_offset"].astype(np.int64)
    if base_physical_offset is not None:
        expected = np.arange(base_physical_offset, base_physical_offset + count * size, size)
        if (physical_offset != expected).any():
            return None
    if (fields["queue_id"] < 0).any():
        return None
    topic = data[extent.topic : extent.topic + extent.topic_size]
    return RecordTable(count, size, fields, physical_offset, topic, topic_end, stopped_by)


_HEAD_VOID: Final = np.dtype((np.void, HEAD_BYTES))
_SYS_FLAG_LOW: Final = 39
# The bits of a head on which the places of all parts depend: size, magic, system flag and size of the body.
_ALIKE_BYTES: Final = np.zeros(HEAD_BYTES, np.uint8)
_ALIKE_BYTES[0:8] = _ALIKE_BYTES[36:40] = _ALIKE_BYTES[84:88] = 0xFF
_ALIKE: Final = _ALIKE_BYTES.view(np.uint64)
