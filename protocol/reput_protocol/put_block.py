"""The broker's door: a block of records that a client puts, checked one by one.

A block is one or more records of one topic and one queue, back to back. Everything that the broker fills in must be
zero, everything that the broker relies on must hold, and the first record that breaks a rule refuses the whole block:
nothing behind this door looks at these bytes again before they are stored.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from reput_protocol.buffers import Buffer
from reput_protocol.checksum import crc32
from reput_protocol.errors import RecordMalformed
from reput_protocol.properties import (
    PROPERTIES_BYTES_MAX,
    ends_with_crc_property,
    is_plain_text,
    properties_fault,
)
from reput_protocol.record_layout import (
    BACK,
    BORN_HOST_AT,
    CLIENT_BITS,
    FRONT,
    HEAD_BYTES,
    I16,
    I64,
    MAGIC_V1,
    MESSAGE_BYTES_MAX,
    OFFSETS,
    QUEUE_OFFSET_AT,
    SIZE_MAGIC,
    topic_field,
)
from reput_protocol.record_scan import seal_record

BLOCK_BYTES_MAX: Final = 8 * 1024 * 1024


class RecordTooLarge(RecordMalformed):
    """A record or block is sound but larger than this broker takes."""


class BlockLimits(NamedTuple):
    """What a broker accepts, in bytes: body and properties text of a record, whole block."""

    body_bytes_max: int = MESSAGE_BYTES_MAX
    properties_bytes_max: int = PROPERTIES_BYTES_MAX
    block_bytes_max: int = BLOCK_BYTES_MAX


@dataclass(slots=True)
class BlockCheck:
    """A block that passed: where its records begin, and which of them end with a checksum of the whole record.

    `row_bytes` is the size of every record where all are known to have one, otherwise 0.
    """

    positions: list[int]
    sealed: list[int]
    row_bytes: int = field(default=0, compare=False)

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.positions)


DEFAULT_LIMITS: Final = BlockLimits()


@lru_cache(maxsize=1024)
def topic_of_records(topic: str) -> tuple[int, bytes]:
    """Return the magic and the length-prefixed topic that every record of a block for `topic` must have."""
    return topic_field(topic.encode())


def check_block_size(block: Buffer, limits: BlockLimits) -> None:
    """Refuse a block that is empty or too large as a whole."""
    if not len(block):
        raise RecordMalformed(0, 0, "the block is empty; it must hold at least one record")
    if len(block) > limits.block_bytes_max:
        raise RecordTooLarge(
            0,
            0,
            f"the block has {len(block)} bytes, but at most {limits.block_bytes_max} are accepted; split it",
        )


def check_records(block: Buffer, topic: str, queue_id: int, count: int, limits: BlockLimits) -> BlockCheck:
    """Check a block record by record; the meaning of `record_batch.check_put_block`."""
    body_max, properties_max, block_max = limits
    end = len(block)
    if not 0 < end <= block_max:
        check_block_size(block, limits)
    magic, topic_bytes = topic_of_records(topic)
    tail_size = len(topic_bytes) + 2
    view = memoryview(block)
    positions: list[int] = []
    sealed: list[int] = []
    position = 0
    # Never more records than announced: what a peer makes the broker look at is what the peer said it would.
    for index in range(count):
        if position >= end:
            break
        # The quick look takes what is right in every respect. Whatever it does not take, `_judge` names, or lets pass
        # because it is only unusual (properties that are not ASCII, a checksum property).
        if end - position >= HEAD_BYTES:
            (size, record_magic, crc, record_queue, offsets, sys_flag, broker_fields, body_size) = (
                _HEAD.unpack_from(block, position)
            )
            body = position + HEAD_BYTES
            body_end = body + body_size
            properties = body_end + tail_size
            stop = position + size
            if (
                record_magic == magic
                and record_queue == queue_id
                and offsets == _ZEROS_16
                and broker_fields == _ZEROS_36
                and not sys_flag & ~CLIENT_BITS
                and 0 <= body_size <= body_max
                and 0 <= stop - properties <= properties_max
                and stop <= end
                and view[body_end : properties - 2] == topic_bytes
                and _SHORT(block, properties - 2)[0] == stop - properties
                and crc32(view[body:body_end]) & 0x7FFF_FFFF == crc
                and (properties == stop or is_plain_text(block, properties, stop))
            ):
                positions.append(position)
                position = stop
                continue
        stop, is_sealed = judge(block, index, position, topic, queue_id, limits)
        if is_sealed:
            sealed.append(position)
        positions.append(position)
        position = stop
    if len(positions) != count or position != end:
        rest = f"{end - position} bytes follow" if position < end else "nothing follows"
        raise RecordMalformed(
            len(positions), position, f"the header says {count} records, but after {len(positions)} {rest}"
        )
    return BlockCheck(positions, sealed)


def passes_quick_look(
    block: Buffer, position: int, stop: int, topic: str, queue_id: int, limits: BlockLimits
) -> int | None:
    """Return where the properties of the record at `[position, stop)` start if all before them, but for the body's
    checksum, is right in every respect; None says nothing.
    """
    magic, topic_bytes = topic_of_records(topic)
    size, record_magic, _, record_queue, offsets, sys_flag, broker_fields, body_size = _HEAD.unpack_from(
        block, position
    )
    body_end = position + HEAD_BYTES + body_size
    properties: int = body_end + len(topic_bytes) + 2
    if (
        size == stop - position
        and record_magic == magic
        and record_queue == queue_id
        and offsets == _ZEROS_16
        and broker_fields == _ZEROS_36
        and not sys_flag & ~CLIENT_BITS
        and 0 <= body_size <= limits.body_bytes_max
        and 0 <= stop - properties <= limits.properties_bytes_max
        and memoryview(block)[body_end : properties - 2] == topic_bytes
        and _SHORT(block, properties - 2)[0] == stop - properties
    ):
        return properties
    return None


def judge(
    block: Buffer, index: int, position: int, topic: str, queue_id: int, limits: BlockLimits
) -> tuple[int, bool]:
    """Return where the record at `position` ends, and whether with a checksum property, if it may pass.

    Raises:
        RecordTooLarge: it is sound but larger than allowed.
        RecordMalformed: it breaks a rule. Rules are tried in the order of the fields, lengths first, so that every
            reader of a block names the same one.
    """

    def refuse(reason: str) -> RecordMalformed:
        return RecordMalformed(index, position, reason)

    magic, topic_bytes = topic_of_records(topic)
    left = len(block) - position
    least = HEAD_BYTES + len(topic_bytes) + 2
    if left < least:
        raise refuse(f"{left} bytes are left, but a record of topic {topic!r} has at least {least}")
    size, record_magic = SIZE_MAGIC.unpack_from(block, position)
    if record_magic != magic:
        version = 1 if magic == MAGIC_V1 else 2
        raise refuse(
            f"MAGIC is {record_magic & 0xFFFF_FFFF:#010x}, but a topic of {len(topic)} characters takes "
            f"version {version}, {magic & 0xFFFF_FFFF:#010x}"
        )
    if not least <= size <= left:
        raise refuse(f"TOTALSIZE is {size}, but it must be {least} to {left}, the bytes that are left")
    (_, _, crc, record_queue, _, queue_offset, physical_offset, sys_flag, _) = FRONT.unpack_from(
        block, position
    )
    if sys_flag & ~CLIENT_BITS:
        raise refuse(
            f"SYSFLAG is {sys_flag & 0xFFFF_FFFF:#x}, but a client may set only bits of {CLIENT_BITS:#x}"
        )
    reconsume_times, prepared_offset, body_size = BACK.unpack_from(block, position + HEAD_BYTES - BACK.size)
    stop: int = position + size
    body = position + HEAD_BYTES
    body_end = body + body_size
    properties = body_end + len(topic_bytes) + 2
    if body_size < 0 or properties > stop:
        raise refuse(f"BODYLEN is {body_size}, but TOTALSIZE {size} leaves room for 0 to {size - least}")
    if body_size > limits.body_bytes_max:
        raise RecordTooLarge(
            index,
            position,
            f"the body has {body_size} bytes, but at most {limits.body_bytes_max} are accepted",
        )
    view = memoryview(block)
    if view[body_end : properties - 2] != topic_bytes:
        raise refuse(f"TOPICLEN and TOPIC are not those of {topic!r}, the topic in the header")
    properties_size = I16.unpack_from(block, properties - 2)[0]
    if properties_size != stop - properties:
        raise refuse(
            f"PROPLEN is {properties_size}, but TOTALSIZE {size} leaves {stop - properties} bytes for it"
        )
    if properties_size > limits.properties_bytes_max:
        raise RecordTooLarge(
            index,
            position,
            f"the properties have {properties_size} bytes, but at most {limits.properties_bytes_max} are accepted",
        )
    if record_queue != queue_id:
        raise refuse(f"QUEUEID is {record_queue}, but the header says {queue_id}")
    store_timestamp = I64.unpack_from(block, position + 56)[0]
    for name, value in (
        ("QUEUEOFFSET", queue_offset),
        ("PHYSICALOFFSET", physical_offset),
        ("STORETIMESTAMP", store_timestamp),
        ("RECONSUMETIMES", reconsume_times),
        ("PREPARED_TRANSACTION_OFFSET", prepared_offset),
    ):
        if value:
            raise refuse(f"{name} is {value}, but it must be 0: the broker fills it in")
    for name, at in (("BORNHOST", 48), ("STOREHOST", 64)):
        host = bytes(view[position + at : position + at + 8])
        if host != bytes(8):
            raise refuse(f"{name} is {host.hex()}, but it must be 8 zero bytes: the broker fills it in")
    body_crc = crc32(view[body:body_end]) & 0x7FFF_FFFF
    if crc != body_crc:
        raise refuse(f"BODYCRC is {crc & 0xFFFF_FFFF:#010x}, but the body's CRC is {body_crc:#010x}")
    text = bytes(view[properties:stop])
    fault = properties_fault(text)
    if fault is not None:
        raise refuse(fault)
    return stop, ends_with_crc_property(text)


def patch_records(
    buffer: bytearray | memoryview,
    check: BlockCheck,
    first_queue_offset: int,
    first_physical_offset: int,
    hosts_and_time: bytes,
    start: int = 0,
) -> None:
    """Write the broker's fields into a checked block, record by record.

    The block lies at `start` in `buffer`, and in the log at `first_physical_offset`.
    """
    queue_offset = first_queue_offset
    for position in check.positions:
        at = start + position
        _PACK_OFFSETS(buffer, at + QUEUE_OFFSET_AT, queue_offset, first_physical_offset + position)
        buffer[at + BORN_HOST_AT : at + _HOSTS_END] = hosts_and_time
        queue_offset += 1


def seal_records(buffer: bytearray | memoryview, check: BlockCheck, start: int = 0) -> None:
    """Renew the whole-record checksums of those records of a patched block that have one."""
    for position in check.sealed:
        seal_record(buffer, start + position)


_HEAD: Final = struct.Struct(">iiii4x16si8x36si")
_SHORT: Final = I16.unpack_from
_PACK_OFFSETS: Final = OFFSETS.pack_into
_ZEROS_16: Final = bytes(16)
_ZEROS_36: Final = bytes(36)
_HOSTS_END: Final = BORN_HOST_AT + 24
assert _HEAD.size == HEAD_BYTES
