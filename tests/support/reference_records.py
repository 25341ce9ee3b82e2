"""An independent reading of records, by `struct` and one at a time: the kernel must have the same results."""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

from reput_protocol.codes import MessageSysFlag
from reput_protocol.errors import RecordMalformed
from reput_protocol.kernel.tables import java_hash
from reput_protocol.names import DLQ_PREFIX, RETRY_PREFIX
from reput_protocol.properties import decode_properties, ends_with_crc_property
from reput_protocol.property_rules import properties_fault
from reput_protocol.record.layout import MAGIC_V1, index_hash, index_keys, topic_field
from reput_protocol.record.put_block import BlockLimits, RecordTooLarge

_HEAD = struct.Struct(">iiiiiqqiq8sq8siqi")
_ZERO_HOST = bytes(8)


def check_block(block: bytes, topic: str, queue_id: int, count: int, limits: BlockLimits) -> int:
    """Return how many records of a put block end with a whole-record checksum; raise as `check_put_block` does."""
    if not block:
        raise RecordMalformed(0, 0, "the block is empty; it must hold at least one record")
    if len(block) > limits.block_bytes_max:
        reason = f"the block has {len(block)} bytes, but at most {limits.block_bytes_max} are accepted; split it"
        raise RecordTooLarge(0, 0, reason)
    index = position = sealed = 0
    while index < count and position < len(block):
        size, is_sealed = _judge(block[position:], index, position, topic, queue_id, limits)
        position += size
        sealed += is_sealed
        index += 1
    if index != count or position != len(block):
        left = len(block) - position
        rest = f"{left} bytes follow" if left else "nothing follows"
        raise RecordMalformed(index, position, f"the header says {count} records, but after {index} {rest}")
    return sealed


def _judge(data: bytes, index: int, position: int, topic: str, queue_id: int, limits: BlockLimits) -> tuple[int, bool]:
    magic, field = topic_field(topic.encode())
    least = 90 + len(field)
    if len(data) < least:
        reason = f"{len(data)} bytes are left, but a record of topic {topic!r} has at least {least}"
        raise RecordMalformed(index, position, reason)
    (
        size, found_magic, crc, queue, _flag, queue_offset, physical_offset, sys_flag, _born, born_host, stored,
        store_host, reconsumed, prepared, body_size,
    ) = _HEAD.unpack_from(data)  # fmt: skip
    body_end = 88 + body_size
    properties = body_end + len(field) + 2
    spare = size - least
    rules = [
        (
            found_magic == magic,
            f"MAGIC is {found_magic & 0xFFFFFFFF:#010x}, but a topic of {len(topic)} characters takes version "
            f"{1 if magic == MAGIC_V1 else 2}, {magic & 0xFFFFFFFF:#010x}",
        ),
        (
            least <= size <= len(data),
            f"TOTALSIZE is {size}, but it must be {least} to {len(data)}, the bytes that are left",
        ),
        (
            not sys_flag & ~MessageSysFlag.PUT_MASK,
            f"SYSFLAG is {sys_flag & 0xFFFFFFFF:#x}, but a client may set only bits of {MessageSysFlag.PUT_MASK:#x}",
        ),
        (0 <= body_size <= spare, f"BODYLEN is {body_size}, but TOTALSIZE {size} leaves room for 0 to {spare}"),
    ]
    _refuse_first(rules, index, position)
    if body_size > limits.body_bytes_max:
        reason = f"the body has {body_size} bytes, but at most {limits.body_bytes_max} are accepted"
        raise RecordTooLarge(index, position, reason)
    text_size = struct.unpack_from(">h", data, properties - 2)[0]
    rules = [
        (
            data[body_end : properties - 2] == field,
            f"TOPICLEN and TOPIC are not those of {topic!r}, the topic in the header",
        ),
        (
            text_size == size - properties,
            f"PROPLEN is {text_size}, but TOTALSIZE {size} leaves {size - properties} bytes for it",
        ),
    ]
    _refuse_first(rules, index, position)
    if text_size > limits.properties_bytes_max:
        reason = f"the properties have {text_size} bytes, but at most {limits.properties_bytes_max} are accepted"
        raise RecordTooLarge(index, position, reason)
    rules = [(queue == queue_id, f"QUEUEID is {queue}, but the header says {queue_id}")]
    rules += [
        (value == 0, f"{name} is {value}, but it must be 0: the broker fills it in")
        for name, value in (
            ("QUEUEOFFSET", queue_offset),
            ("PHYSICALOFFSET", physical_offset),
            ("STORETIMESTAMP", stored),
            ("RECONSUMETIMES", reconsumed),
            ("PREPARED_TRANSACTION_OFFSET", prepared),
        )
    ]
    rules += [
        (host == _ZERO_HOST, f"{name} is {host.hex()}, but it must be 8 zero bytes: the broker fills it in")
        for name, host in (("BORNHOST", born_host), ("STOREHOST", store_host))
    ]
    actual = crc32(data[88:body_end]) & 0x7FFFFFFF
    rules.append((crc == actual, f"BODYCRC is {crc & 0xFFFFFFFF:#010x}, but the body's CRC is {actual:#010x}"))
    fault = properties_fault(data[properties:size], in_retries=topic.startswith((RETRY_PREFIX, DLQ_PREFIX)))
    rules.append((fault is None, fault or ""))
    _refuse_first(rules, index, position)
    return size, ends_with_crc_property(data[properties:size])


def _refuse_first(rules: list[tuple[bool, str]], index: int, position: int) -> None:
    for holds, reason in rules:
        if not holds:
            raise RecordMalformed(index, position, reason)


def is_sound(data: bytes) -> bool:
    """Tell whether `data` begins with a record whose lengths add up."""
    if len(data) < 8:
        return False
    size, magic = struct.unpack_from(">iI", data)
    if magic not in (0xDAA320A7, 0xDAA320AB) or not 92 <= size <= len(data):
        return False
    (queue_id,) = struct.unpack_from(">i", data, 12)
    (sys_flag,) = struct.unpack_from(">i", data, 36)
    body = 88 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
    length = struct.Struct(">b" if magic == 0xDAA320A7 else ">h")
    if body + length.size + 3 > size:
        return False
    (body_size,) = struct.unpack_from(">i", data, body - 4)
    topic = body + body_size + length.size
    if body_size < 0 or topic + 3 > size:
        return False
    (topic_size,) = length.unpack_from(data, topic - length.size)
    properties = topic + topic_size + 2
    if topic_size <= 0 or properties > size:
        return False
    properties_size: int = struct.unpack_from(">h", data, properties - 2)[0]
    return properties_size >= 0 and properties + properties_size == size and bool(queue_id >= 0)


class ReadRecord(NamedTuple):
    """What the log says of one record."""

    position: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp_ms: int
    transaction: int
    properties: bytes
    tags_code: int
    keys: list[int]


def parts_of(data: bytes) -> tuple[str, bytes, bytes]:
    """Return topic, body and properties text of the sound record at the start of `data`."""
    (sys_flag,) = struct.unpack_from(">i", data, 36)
    body = 88 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
    end = body + struct.unpack_from(">i", data, body - 4)[0]
    length = struct.Struct(">b" if data[7] == 0xA7 else ">h")
    topic = end + length.size
    properties = topic + length.unpack_from(data, end)[0] + 2
    (size,) = struct.unpack_from(">i", data)
    return data[topic : properties - 2].decode("utf-8", "replace"), data[body:end], data[properties:size]


def read_log(data: bytes, base: int | None) -> list[ReadRecord]:
    """Return the sound records at the start of `data`; with `base`, those that are where they say."""
    found: list[ReadRecord] = []
    position = 0
    while is_sound(data[position:]):
        size, _, _, queue_id, _, queue_offset, physical_offset, sys_flag = struct.unpack_from(
            ">iiiiiqqi", data, position
        )
        if base is not None and physical_offset != base + position:
            break
        topic, _, properties = parts_of(data[position:])
        values = decode_properties(properties)
        tag = values.get("TAGS")
        names = index_keys(topic, values.get("UNIQ_KEY"), values.get("KEYS"))
        found.append(
            ReadRecord(
                position,
                size,
                topic,
                queue_id,
                queue_offset,
                physical_offset,
                struct.unpack_from(">q", data, position + (68 if sys_flag & 0x10 else 56))[0],
                sys_flag & 0xC,
                properties,
                java_hash(tag) if tag else 0,
                [] if sys_flag & 0xC == 0xC else [index_hash(name) for name in names],
            )
        )
        position += size
    return found
