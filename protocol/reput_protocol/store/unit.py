"""The entries of a queue: units, and extended units for fields that these have no room for.

docs/formats.md has the layout of both (RocketMQ: ConsumeQueue, ConsumeQueueExt.CqExtUnit). A unit of zeros was never
written, as no record has size 0. A queue whose first message is not number 0 starts its first file with pre-blank
units: offset 0, size 2147483647, code 0.

Extended units are adjacent and never span files. The queue's own entry then holds the unit's address in place of its
tags code: its position in the stream minus 2^63. Tags codes are at least -2^31, or timestamps, so the two differ.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

UNIT_BYTES = 20
UNIT = struct.Struct(">qiq")
PRE_BLANK_SIZE = 0x7FFFFFFF
PRE_BLANK = UNIT.pack(0, PRE_BLANK_SIZE, 0)

assert UNIT.size == UNIT_BYTES

EXT_UNIT_BYTES_MIN = 20
EXT_UNIT = struct.Struct(">hqqh")
END_BLANK_BYTES = 4
"""Bytes that a unit must leave free in its file (RocketMQ: END_BLANK_DATA_LENGTH)."""
END_OF_FILE = struct.pack(">h", -1)
MIN_ADDRESS = -(1 << 63)
MAX_ADDRESS = -(1 << 31) - 1
"""The highest value that is an address (RocketMQ: MAX_ADDR)."""

assert EXT_UNIT.size == EXT_UNIT_BYTES_MIN


class ConsumeQueueUnit(NamedTuple):
    """One unit."""

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
    """Decode unit `number` of `data`."""
    return ConsumeQueueUnit._make(UNIT.unpack_from(data, number * UNIT_BYTES))


def unpack_units(data: bytes | bytearray) -> list[ConsumeQueueUnit]:
    """Decode adjacent units."""
    return list(map(ConsumeQueueUnit._make, UNIT.iter_unpack(data)))


class ConsumeQueueExtUnit(NamedTuple):
    """One extended unit."""

    tags_code: int
    store_timestamp_ms: int
    bit_map: bytes = b""

    def encode(self) -> bytes:
        """Return the unit's bytes."""
        size = EXT_UNIT_BYTES_MIN + len(self.bit_map)
        return EXT_UNIT.pack(size, self.tags_code, self.store_timestamp_ms, len(self.bit_map)) + self.bit_map


def is_address(tags_code: int) -> bool:
    """Whether the tags code of a unit is the address of an extended entry."""
    return tags_code <= MAX_ADDRESS


def address_of(position: int) -> int:
    """The address of the unit at a position of the stream (RocketMQ: decorate)."""
    return position + MIN_ADDRESS


def position_of(address: int) -> int:
    """The position in the stream of an address (RocketMQ: unDecorate)."""
    return address - MIN_ADDRESS
