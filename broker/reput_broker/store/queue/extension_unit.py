"""The extended queue entry: what 20 bytes of a ConsumeQueue have no room for (RocketMQ: ConsumeQueueExt.CqExtUnit).

    position  0      2           10             18       20
              +------+-----------+--------------+--------+-----------+
              | i16  | i64       | i64          | i16    | b bytes   |   big-endian
              +------+-----------+--------------+--------+-----------+
              20 + b tags code   store time     b        bit map of
                                 of the message          consumers' filters

Units lie one behind the other and never across the end of a file: where the next one would not leave 4 bytes free, the
file ends with an i16 of -1. The queue's own entry then holds, in the place of its tags code, the unit's address: its
position in the stream minus 2^63. Tags codes are at least -2^31, or points in time, so the two cannot be confused.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

EXT_UNIT_BYTES_MIN = 20
EXT_UNIT_BYTES_MAX = 0x7FFF
EXT_UNIT = struct.Struct(">hqqh")
END_BLANK_BYTES = 4
"""What a unit must leave free in its file (RocketMQ: END_BLANK_DATA_LENGTH)."""
END_OF_FILE = struct.pack(">h", -1)
MIN_ADDRESS = -(1 << 63)
MAX_ADDRESS = -(1 << 31) - 1
"""The highest value that is an address (RocketMQ: MAX_ADDR)."""

assert EXT_UNIT.size == EXT_UNIT_BYTES_MIN


class ConsumeQueueExtUnit(NamedTuple):
    """One extended entry."""

    tags_code: int
    store_timestamp_ms: int
    bit_map: bytes = b""

    def encode(self) -> bytes:
        """Return the unit's bytes."""
        size = EXT_UNIT_BYTES_MIN + len(self.bit_map)
        return EXT_UNIT.pack(size, self.tags_code, self.store_timestamp_ms, len(self.bit_map)) + self.bit_map


def is_address(tags_code: int) -> bool:
    """Whether what stands in the place of a tags code is the address of an extended entry."""
    return tags_code <= MAX_ADDRESS


def address_of(position: int) -> int:
    """The address of the unit at a position of the stream (RocketMQ: decorate)."""
    return position + MIN_ADDRESS


def position_of(address: int) -> int:
    """The position in the stream that an address means (RocketMQ: unDecorate)."""
    return address - MIN_ADDRESS
