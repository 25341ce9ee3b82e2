"""The head of a record, everything before its body: the one reader of these bytes outside the kernel.

Positions of the later fields depend on the two addresses, each of 8 or, for IPv6, 20 bytes (docs/formats.md).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from reput_protocol.buffers import Buffer
from reput_protocol.record.layout import (
    BACK,
    BORN_HOST_AT,
    BORN_HOST_IPV6,
    FRONT,
    HEAD_BYTES,
    I16,
    I32,
    I64,
    MAGIC_V1,
    MAGIC_V2,
    QUEUE_OFFSET_AT,
    RECORD_BYTES_MIN,
    SIZE_MAGIC,
    STORE_HOST_IPV6,
    SYS_FLAG_AT,
)

STORE_TIME_BYTES: Final = BORN_HOST_AT + 20 + I64.size
"""As much of a record as has its store time, whatever the addresses are."""

HOSTS_BYTES: Final = STORE_TIME_BYTES + 20
"""As much of a record as has both addresses, whatever they are."""


class Head(NamedTuple):
    """The fields at fixed positions, as they are in the buffer."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp_ms: int

    @property
    def is_message(self) -> bool:
        """Whether the magic is that of a message, and not of a blank record or of other bytes."""
        return self.magic in (MAGIC_V1, MAGIC_V2)


def read_head(buffer: Buffer, position: int = 0) -> Head:
    """Return the fields at fixed positions, of which nothing is checked; `buffer` has 48 bytes from `position` on."""
    return Head._make(FRONT.unpack_from(buffer, position))


def size_at(buffer: Buffer, position: int = 0) -> int:
    """Return the size that a record states."""
    return int(I32.unpack_from(buffer, position)[0])


def sys_flag_at(buffer: Buffer, position: int = 0) -> int:
    """Return the bits of MessageSysFlag."""
    return int(I32.unpack_from(buffer, position + SYS_FLAG_AT)[0])


def physical_offset_at(buffer: Buffer, position: int = 0) -> int:
    """Return the position in the log that a record states."""
    return int(I64.unpack_from(buffer, position + QUEUE_OFFSET_AT + I64.size)[0])


def born_host_bytes(sys_flag: int) -> int:
    """Return the size of the producer's address and port."""
    return 20 if sys_flag & BORN_HOST_IPV6 else 8


def store_host_bytes(sys_flag: int) -> int:
    """Return the size of the broker's address and port."""
    return 20 if sys_flag & STORE_HOST_IPV6 else 8


def head_bytes(sys_flag: int) -> int:
    """Return the size of everything before the body."""
    return HEAD_BYTES - 16 + born_host_bytes(sys_flag) + store_host_bytes(sys_flag)


def born_host_in(position: int, sys_flag: int) -> slice:
    """Return where the producer's address is, of a record at `position`."""
    start = position + BORN_HOST_AT
    return slice(start, start + born_host_bytes(sys_flag))


def store_host_in(body: int, sys_flag: int) -> slice:
    """Return where the broker's address is, of a record whose body begins at `body`."""
    end = body - BACK.size
    return slice(end - store_host_bytes(sys_flag), end)


def hosts_in(head: bytes) -> tuple[bytes, bytes]:
    """Return the producer's and the broker's address as stored; `head` has at least `HOSTS_BYTES` of the record."""
    sys_flag = sys_flag_at(head)
    born = born_host_in(0, sys_flag)
    begin = born.stop + I64.size
    return head[born], head[begin : begin + store_host_bytes(sys_flag)]


def is_brokers_own(head: bytes) -> bool:
    """Whether the broker that stored a message has made it itself: clients send from another address or port.

    `head` has at least `HOSTS_BYTES` of the record, or `HEAD_BYTES` if an IPv6 address may count as another one.
    """
    born, stored = hosts_in(head)
    return born == stored


def store_timestamp_at(buffer: Buffer, position: int = 0) -> int:
    """Return the store time in ms; `buffer` has `STORE_TIME_BYTES` from `position` on, or the whole record."""
    at = position + BORN_HOST_AT + born_host_bytes(sys_flag_at(buffer, position))
    return int(I64.unpack_from(buffer, at)[0])


def prepared_transaction_offset_at(buffer: Buffer) -> int:
    """Return the PREPARED_TRANSACTION_OFFSET of a record; `buffer` has everything before its body,
    or `HEAD_BYTES` of a record with IPv4 addresses.
    """
    at = head_bytes(sys_flag_at(buffer, 0)) - BACK.size
    return int(BACK.unpack_from(buffer, at)[1])


def body_size_at(buffer: Buffer, position: int, head_size: int = HEAD_BYTES) -> int:
    """Return the size of the body that a record with a head of `head_size` bytes states; it may be negative."""
    return int(I32.unpack_from(buffer, position + head_size - I32.size)[0])


def properties_of(buffer: Buffer, position: int, size: int) -> bytes | None:
    """Return a copy of the encoded properties of the record at `position`, without reading its body.

    None if there is no record of `size` bytes, or its lengths do not add up.
    """
    end = position + size
    if size < RECORD_BYTES_MIN or end > len(buffer):
        return None
    start = tail_position(buffer, position, size)
    if start is None:
        return None
    return properties_of_tail(buffer, start, end, SIZE_MAGIC.unpack_from(buffer, position)[1])


def tail_position(buffer: Buffer, position: int, size: int) -> int | None:
    """Return where the tail of the record at `position` begins: TOPICLEN, TOPIC, PROPLEN, PROPERTIES.

    It counts from `position`; None if this is not the head of a record of `size` bytes. `buffer` has all of the record
    or at least `HEAD_BYTES_MAX` bytes.
    """
    if size < HEAD_BYTES:
        return None
    head = read_head(buffer, position)
    before_body = head_bytes(head.sys_flag)
    if head.size != size or size < before_body or not head.is_message:
        return None
    body_size = body_size_at(buffer, position, before_body)
    if not 0 <= body_size <= size - before_body:
        return None
    return position + before_body + body_size


def properties_of_tail(buffer: Buffer, start: int, end: int, magic: int) -> bytes | None:
    """Return the encoded properties of a record with this magic whose tail is `[start, end)` of `buffer`."""
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
