"""One unit of the timer log: a parked message, and the slot of the wheel that it was put into (RocketMQ: TimerLog).

    position  0      4          12      16       24      28         36       40      44         52
              +------+----------+-------+--------+-------+----------+--------+-------+----------+
              | i32  | i64      | i32   | i64    | i32   | i64      | i32    | i32   | i64      |   big-endian
              +------+----------+-------+--------+-------+----------+--------+-------+----------+
              size,  previous   magic   write    delay   physical   record   hash of  reserved,
              52     unit, -1            time     ms      offset     size     topic    0

Units of one slot are chained backwards, and the wheel knows the last one. Write time plus delay is the slot's time.
Where a file has no room for a unit and 16 bytes more, a blank unit (rest of the file, 0, `CBD43194`) ends it. A unit
whose size is 0 was never written.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from reput_protocol.record_layout import MAGIC_BLANK

UNIT = struct.Struct(">iqiqiqiiq")
UNIT_BYTES = 52
BLANK = struct.Struct(">iqi")
BLANK_BYTES = 16

NO_POSITION = -1
"""Stands where there is no unit: before the first of a slot."""
MAGIC_DEFAULT = 1
MAGIC_ROLL = 2
"""The slot is not the message's own: it is parked anew when the slot's time comes."""
MAGIC_DELETE = 4
"""The message cancels another one of its slot."""
_MAGIC_BITS = 0xF

assert UNIT.size == UNIT_BYTES
assert BLANK.size == BLANK_BYTES


class TimerUnit(NamedTuple):
    """The fields that mean something, in their order."""

    previous: int
    """Position of the unit before it in its slot, -1 if it is the first."""
    magic: int
    write_time_ms: int
    delay_ms: int
    physical_offset: int
    """Where the parked record lies in the log."""
    record_size: int
    topic_hash: int
    """Java's hash of the topic that the message is for."""

    @property
    def slot_ms(self) -> int:
        """The time of the slot."""
        return self.write_time_ms + self.delay_ms

    @property
    def rolls(self) -> bool:
        """Whether the message is parked anew instead of delivered."""
        return bool(self.magic & MAGIC_ROLL)

    @property
    def cancels(self) -> bool:
        """Whether the message cancels another one, now that its own slot has come."""
        return self.magic & (MAGIC_DELETE | MAGIC_ROLL) == MAGIC_DELETE

    def pack(self) -> bytes:
        """Return the 52 bytes."""
        return UNIT.pack(UNIT_BYTES, *self, 0)


def unpack_timer_unit(data: bytes, position: int = 0) -> TimerUnit | None:
    """Decode the unit at `position` of `data`; None if what lies there is none."""
    if len(data) - position < UNIT_BYTES:
        return None
    size, *fields, _ = UNIT.unpack_from(data, position)
    unit = TimerUnit._make(fields)
    return unit if size == UNIT_BYTES and is_magic(unit.magic) else None


def is_magic(magic: int) -> bool:
    """Whether a unit may have this magic (RocketMQ: TimerMessageStore.isMagicOK)."""
    return magic | _MAGIC_BITS == _MAGIC_BITS


def is_blank(data: bytes, position: int) -> bool:
    """Whether a blank unit lies there, which ends a file."""
    return len(data) - position >= BLANK_BYTES and BLANK.unpack_from(data, position)[2] == MAGIC_BLANK


def encode_blank_unit(size: int) -> bytes:
    """Return the blank unit that says that `size` bytes of the file are left."""
    return BLANK.pack(size, 0, MAGIC_BLANK)
