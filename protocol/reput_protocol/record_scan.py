"""Is there a record at this position, and is it whole? The question of recovery, dispatch and every reader.

(RocketMQ: CommitLog.checkMessageAndReturnSize.) The answer is a value, not an exception: the end of a log is normal.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from reput_protocol.buffers import Buffer
from reput_protocol.checksum import crc32
from reput_protocol.properties import CRC_PROPERTY_BYTES, ends_with_crc_property
from reput_protocol.record_layout import (
    BACK,
    BORN_HOST_AT,
    BORN_HOST_IPV6,
    FRONT,
    HEAD_BYTES,
    I16,
    I64,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    OFFSETS,
    QUEUE_OFFSET_AT,
    SIZE_MAGIC,
    STORE_HOST_IPV6,
    SYS_FLAG_AT,
    crc_property,
)


class ScanStatus(Enum):
    """What lies at a position."""

    RECORD = "record"
    BLANK = "blank"
    """The end of a file: go on at the start of the next one."""
    INVALID = "invalid"
    TRUNCATED = "truncated"
    """The beginning of a record, or too little to tell."""


class RecordScan(NamedTuple):
    """The verdict on one position.

    `size` is that of the record, or what a blank record says is left of its file. An invalid record whose outer frame
    holds has one too, so that a reader may skip it, and so has a truncated one whose size can be read; else it is 0.
    """

    status: ScanStatus
    size: int
    reason: str = ""


class Extent(NamedTuple):
    """Where the variable parts of one sound record lie, as positions in its buffer."""

    body: int
    body_size: int
    topic: int
    topic_size: int
    properties: int
    properties_size: int
    store_timestamp: int


def scan_record(
    buffer: Buffer, position: int, end: int, *, check_crc: bool, check_properties_crc: bool = False
) -> RecordScan:
    """Judge what lies at `[position, end)` of `buffer`.

    `check_crc` verifies the body's CRC, and the whole-record one where the record has it. `check_properties_crc`
    also calls a record invalid that has none: for a store that is known to write it always. Never raises for what it
    finds, whatever the bytes are.
    """
    return locate(buffer, position, end, check_crc=check_crc, check_properties_crc=check_properties_crc)[0]


def locate(
    buffer: Buffer, position: int, end: int, *, check_crc: bool, check_properties_crc: bool = False
) -> tuple[RecordScan, Extent | None]:
    """Judge as `scan_record` does, and say where the parts of a sound record lie."""
    left = end - position
    if left < 8:
        return RecordScan(
            _TRUNCATED, 0, f"{max(left, 0)} bytes are left, too few for a size and a magic"
        ), None
    size, magic = SIZE_MAGIC.unpack_from(buffer, position)
    if magic == MAGIC_BLANK:
        return RecordScan(ScanStatus.BLANK, size), None
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return RecordScan(_INVALID, 0, f"magic {magic & 0xFFFF_FFFF:#010x} is not that of a record"), None
    length_size = 1 if magic == MAGIC_V1 else 2
    if size < HEAD_BYTES + length_size + 3:
        return RecordScan(_INVALID, 0, f"TOTALSIZE {size} is too small for a record"), None
    if size > left:
        return RecordScan(_TRUNCATED, size, f"TOTALSIZE is {size}, but only {left} bytes are left"), None

    front = FRONT.unpack_from(buffer, position)
    sys_flag = front[7]
    hosts = position + BORN_HOST_AT
    store_timestamp = hosts + (20 if sys_flag & BORN_HOST_IPV6 else 8)
    back = store_timestamp + 8 + (20 if sys_flag & STORE_HOST_IPV6 else 8)
    body = back + BACK.size
    stop = position + size
    # What is left for body, topic and properties when each is as short as it can be.
    spare = stop - body - length_size - 3
    if spare < 0:
        return RecordScan(_INVALID, size, f"TOTALSIZE {size} is too small for a record with IPv6 hosts"), None
    body_size = BACK.unpack_from(buffer, back)[2]
    if not 0 <= body_size <= spare:
        return RecordScan(_INVALID, size, f"BODYLEN {body_size} does not fit into TOTALSIZE {size}"), None
    topic = body + body_size + length_size
    topic_size = I16.unpack_from(buffer, topic - 2)[0] if length_size == 2 else buffer[topic - 1]
    if length_size == 1 and topic_size > 127:
        topic_size -= 256
    if not 0 < topic_size <= stop - topic - 2:
        return RecordScan(_INVALID, size, f"TOPICLEN {topic_size} does not fit into TOTALSIZE {size}"), None
    properties = topic + topic_size + 2
    properties_size = I16.unpack_from(buffer, properties - 2)[0]
    if properties_size < 0 or properties + properties_size != stop:
        reason = f"PROPLEN is {properties_size}, but TOTALSIZE {size} leaves {stop - properties} bytes for it"
        return RecordScan(_INVALID, size, reason), None
    if front[3] < 0:
        return RecordScan(_INVALID, size, f"QUEUEID {front[3]} is negative"), None

    if check_crc or check_properties_crc:
        view = memoryview(buffer)
        if check_crc:
            crc = crc32(view[body : body + body_size]) & 0x7FFF_FFFF
            if crc != front[2]:
                reason = f"BODYCRC is {front[2] & 0xFFFF_FFFF:#010x}, but the body's CRC is {crc:#010x}"
                return RecordScan(_INVALID, size, reason), None
        text = bytes(view[max(properties, stop - CRC_PROPERTY_BYTES - 1) : stop])
        if ends_with_crc_property(text):
            expected = crc_property(view[position : stop - CRC_PROPERTY_BYTES])
            if text[-CRC_PROPERTY_BYTES:] != expected:
                reason = f"the record's checksum property is {text[-CRC_PROPERTY_BYTES:]!r}, should be {expected!r}"
                return RecordScan(_INVALID, size, reason), None
        elif check_properties_crc:
            return RecordScan(_INVALID, size, "the record has no checksum property"), None
    extent = Extent(body, body_size, topic, topic_size, properties, properties_size, store_timestamp)
    return RecordScan(ScanStatus.RECORD, size), extent


def patch_record(
    buffer: bytearray | memoryview,
    position: int,
    *,
    queue_offset: int,
    physical_offset: int,
    store_timestamp_ms: int,
    born_host: bytes | None,
    store_host: bytes | None,
) -> None:
    """Write the broker's fields into the sound record at `position`, and its whole-record checksum if it has one.

    A host of None stays as it is; one that is given must have the length of the one it replaces.
    """
    OFFSETS.pack_into(buffer, position + QUEUE_OFFSET_AT, queue_offset, physical_offset)
    sys_flag = buffer[position + SYS_FLAG_AT + 3]
    born_host_end = position + BORN_HOST_AT + (20 if sys_flag & BORN_HOST_IPV6 else 8)
    I64.pack_into(buffer, born_host_end, store_timestamp_ms)
    if born_host is not None:
        assert len(born_host) == born_host_end - position - BORN_HOST_AT, "a host of another length"
        buffer[position + BORN_HOST_AT : born_host_end] = born_host
    if store_host is not None:
        store_host_end = born_host_end + 8 + (20 if sys_flag & STORE_HOST_IPV6 else 8)
        assert len(store_host) == store_host_end - born_host_end - 8, "a host of another length"
        buffer[born_host_end + 8 : store_host_end] = store_host
    seal_record(buffer, position)


def seal_record(buffer: bytearray | memoryview, position: int) -> None:
    """Recompute the whole-record checksum of the sound record at `position`; without one, do nothing."""
    view = memoryview(buffer)
    stop = position + SIZE_MAGIC.unpack_from(buffer, position)[0]
    # One byte does to rule out nearly every record before anything is copied: "__CRC32#" starts with an underscore.
    at = stop - CRC_PROPERTY_BYTES
    if view[at] != 0x5F or view[stop - 1] != 2 or bytes(view[at : at + 9]) != b"__CRC32#\x01":
        return
    extent = locate(buffer, position, stop, check_crc=False)[1]
    if extent is not None and ends_with_crc_property(bytes(view[extent.properties : stop])):
        view[at:stop] = crc_property(view[position:at])


_INVALID: Final = ScanStatus.INVALID
_TRUNCATED: Final = ScanStatus.TRUNCATED
