"""The 20 bytes by which a queue names one message of the log (RocketMQ: ConsumeQueue).

    position  0        8       12        20
              +--------+--------+---------+
              | i64    | i32    | i64     |   big-endian
              +--------+--------+---------+
              physical  record    tags code
              offset    size

All zero means unwritten (no record has size 0). A queue whose first message is not number 0 starts its first file
with pre-blank units: offset 0, size 2147483647, code 0.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

UNIT_BYTES = 20
UNIT = struct.Struct(">qiq")
UNIT_DTYPE = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = UNIT.pack(0, PRE_BLANK_SIZE, 0)

assert UNIT.size == UNIT_DTYPE.itemsize == UNIT_BYTES

Units = NDArray[np.void]
"""A structured array of `UNIT_DTYPE`: fields physical_offset, size, tags_code."""

NO_UNITS: Units = np.empty(0, UNIT_DTYPE)


class ConsumeQueueUnit(NamedTuple):
    """One entry of a queue."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def end_offset(self) -> int:
        """Physical offset after the record."""
        return self.physical_offset + self.size

    @property
    def is_pre_blank(self) -> bool:
        """Whether the unit only fills the space before the queue's first message."""
        return self.size == PRE_BLANK_SIZE and self.physical_offset == 0


def unpack_unit(data: bytes) -> ConsumeQueueUnit:
    """Decode 20 bytes."""
    return ConsumeQueueUnit._make(UNIT.unpack(data))
