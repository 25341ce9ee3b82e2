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

UNIT_BYTES = 20
UNIT = struct.Struct(">qiq")
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = UNIT.pack(0, PRE_BLANK_SIZE, 0)

assert UNIT.size == UNIT_BYTES


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


def unpack_unit(data: bytes, number: int = 0) -> ConsumeQueueUnit:
    """Decode the unit that is number `number` in `data`."""
    return ConsumeQueueUnit._make(UNIT.unpack_from(data, number * UNIT_BYTES))


def unpack_units(data: bytes | bytearray) -> list[ConsumeQueueUnit]:
    """Decode units that lie behind each other."""
    return list(map(ConsumeQueueUnit._make, UNIT.iter_unpack(data)))
