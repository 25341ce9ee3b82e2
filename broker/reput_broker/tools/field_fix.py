"""Fix damaged fields of a record whose right value follows from the rest.

A record is partly redundant: its place, its size (the sum of its parts), what its checksum covers. If one such field is
wrong and with another value everything fits, checksums included, that was its value.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from reput_broker.store.log.walk import can_be_topic
from reput_broker.tools.layout import Stream
from reput_broker.tools.log_reader import Damage
from reput_protocol.properties import CRC_PROPERTY_BYTES, ends_with_crc_property
from reput_protocol.record.head import body_size_at, head_bytes, physical_offset_at, read_head
from reput_protocol.record.layout import (
    I16,
    I32,
    I64,
    MAGIC_V1,
    MAGIC_V2,
    QUEUE_OFFSET_AT,
    RECORD_BYTES_MIN,
    crc31,
)
from reput_protocol.record.scan import locate

_RECORD_BYTES_MAX = 16 << 20
_PHYSICAL_OFFSET_AT = 28


class FieldFix(NamedTuple):
    """Wrong bytes of a file, and the right ones."""

    file: Path
    position: int
    wrong: bytes
    right: bytes
    field: str

    def __str__(self) -> str:
        return (
            f"{self.file} at byte {self.position}: {self.field} {self.wrong.hex()} becomes {self.right.hex()}"
        )


def find_fix(damage: Damage) -> FieldFix | None:
    """Find the one field whose correction makes a damaged record valid; None if there is none."""
    if not damage.file.size:
        return None
    with damage.file.path.open("rb") as file:
        file.seek(damage.position)
        data = file.read(_RECORD_BYTES_MAX)
    if len(data) < RECORD_BYTES_MIN:
        return None
    place = damage.file.start + damage.position
    for at, right, field in _candidates(data, place):
        wrong = data[at : at + len(right)]
        fixed = data[:at] + right + data[at + len(right) :]
        if wrong != right and _is_valid(fixed, place, damage):
            return FieldFix(damage.file.path, damage.position + at, wrong, right, field)
    return None


def renumber(log: Stream, offset: int, number: int) -> FieldFix:
    """Correct a record's queue offset, which its unit determines."""
    path, position = log.place(offset + QUEUE_OFFSET_AT)
    with path.open("rb") as file:
        file.seek(position)
        return FieldFix(path, position, file.read(8), I64.pack(number), "QUEUEOFFSET")


def _candidates(data: bytes, place: int) -> Iterator[tuple[int, bytes, str]]:
    yield _PHYSICAL_OFFSET_AT, I64.pack(place), "PHYSICALOFFSET"
    yield 4, I32.pack(MAGIC_V1), "MAGIC"
    yield 4, I32.pack(MAGIC_V2), "MAGIC"
    parts = _sum_of_parts(data)
    if parts is not None:
        yield 0, I32.pack(parts), "TOTALSIZE"
    scan, extent = locate(data, 0, len(data), check_crc=False)
    if extent is None:
        return
    body = data[extent.body : extent.body + extent.body_size]
    actual, stored = crc31(body), read_head(data).body_crc
    # A wrong byte of the body changes about half of the checksum's bits; a single changed bit is in
    # the checksum itself. A checksum of the whole record makes this certain.
    text = data[extent.properties : scan.size]
    if (actual ^ stored).bit_count() == 1 or ends_with_crc_property(text[-CRC_PROPERTY_BYTES - 1 :]):
        yield 8, I32.pack(actual), "BODYCRC"


def _sum_of_parts(data: bytes) -> int | None:
    head = read_head(data)
    body = head_bytes(head.sys_flag)
    if body > len(data):
        return None
    body_size = body_size_at(data, 0, body)
    at = body + body_size
    if body_size < 0 or at + 4 > len(data):
        return None
    if head.magic == MAGIC_V1:
        at += 1 + data[at]
    else:
        at += 2 + max(0, I16.unpack_from(data, at)[0])
    return int(at + 2 + max(0, I16.unpack_from(data, at)[0])) if at + 2 <= len(data) else None


def _is_valid(data: bytes, place: int, damage: Damage) -> bool:
    scan, extent = locate(data, 0, len(data), check_crc=True)
    if extent is None or physical_offset_at(data) != place:
        return False
    topic = data[extent.topic : extent.topic + extent.topic_size]
    return scan.size == damage.size and can_be_topic(topic)
