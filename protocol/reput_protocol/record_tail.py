"""The properties of a record without its body: its head tells where its tail begins, which ends with them."""

from __future__ import annotations

from typing import Final

from reput_protocol.buffers import Buffer
from reput_protocol.record_layout import (
    BORN_HOST_IPV6,
    FRONT,
    HEAD_BYTES,
    I16,
    I32,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SIZE_MAGIC,
    STORE_HOST_IPV6,
)

HEAD_BYTES_MAX: Final = HEAD_BYTES + 24
"""Everything before the body, with two IPv6 addresses."""


def properties_of(buffer: Buffer, position: int, size: int) -> bytes | None:
    """Return a copy of the properties text of the record at `position`, without a look at its body.

    None if no record of `size` bytes is there, or its lengths do not add up.
    """
    end = position + size
    if size < RECORD_BYTES_MIN or end > len(buffer):
        return None
    start = tail_position(buffer, position, size)
    return (
        None
        if start is None
        else properties_of_tail(buffer, start, end, SIZE_MAGIC.unpack_from(buffer, position)[1])
    )


def tail_position(buffer: Buffer, position: int, size: int) -> int | None:
    """Return where the tail of the record at `position` begins: TOPICLEN, TOPIC, PROPLEN, PROPERTIES.

    Of the record, which is said to have `size` bytes, `buffer` holds at least `HEAD_BYTES_MAX`, or all. The result
    counts from where `position` does; None if this is not the head of such a record.
    """
    if size < HEAD_BYTES:
        return None
    total, magic, _, _, _, _, _, sys_flag, _ = FRONT.unpack_from(buffer, position)
    head_bytes = HEAD_BYTES
    head_bytes += (12 if sys_flag & BORN_HOST_IPV6 else 0) + (12 if sys_flag & STORE_HOST_IPV6 else 0)
    if total != size or size < head_bytes or magic not in (MAGIC_V1, MAGIC_V2):
        return None
    (body_size,) = I32.unpack_from(buffer, position + head_bytes - I32.size)
    if not 0 <= body_size <= size - head_bytes:
        return None
    return position + head_bytes + int(body_size)


def properties_of_tail(buffer: Buffer, start: int, end: int, magic: int) -> bytes | None:
    """Return the properties text of a record with this magic whose tail fills `[start, end)` of `buffer`."""
    length_size = 1 if magic == MAGIC_V1 else 2
    topic = start + length_size
    if topic + 2 > end:
        return None
    topic_size = buffer[start] if length_size == 1 else I16.unpack_from(buffer, start)[0]
    properties = topic + topic_size + 2
    if not topic + 2 <= properties <= end:
        return None
    if properties + I16.unpack_from(buffer, properties - 2)[0] != end:
        return None
    return bytes(buffer[properties:end])
