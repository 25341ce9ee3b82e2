"""The record: the one binary form of a message, on the wire, in the commit log and in every answer.

Its fields, the blank record that ends a log file and the whole-record checksum are in docs/formats.md (RocketMQ:
MessageExtEncoder, MessageDecoder). All integers are big-endian and signed. With two 4-byte addresses BODYLEN is at byte
84, and a record has 91 bytes plus body, topic and properties, one more in version 2, 12 more for each IPv6 address.
All-zero bytes are never a record.

Outside the kernel, only the functions here read the head of a record, everything before its body. Positions of its
later fields depend on the two addresses, each of 8 or, for IPv6, 20 bytes (docs/formats.md).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from reput_protocol.buffers import Buffer
from reput_protocol.errors import InvalidMessage
from reput_protocol.kernel.records import crc32
from reput_protocol.kernel.tables import java_hash
from reput_protocol.properties import CRC32, CRC_PROPERTY_BYTES, split_keys

MAGIC_V1: Final = -626_843_481
MAGIC_V2: Final = -626_843_477
MAGIC_BLANK: Final = -875_286_124
BLANK_BYTES: Final = 8
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Default maximum size of a body."""

BORN_HOST_IPV6: Final = 0x10
STORE_HOST_IPV6: Final = 0x20
HOST_BITS: Final = BORN_HOST_IPV6 | STORE_HOST_IPV6
TRANSACTION_BITS: Final = 0xC
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC

QUEUE_ID_AT: Final = 12
QUEUE_OFFSET_AT: Final = 20
SYS_FLAG_AT: Final = 36
BORN_HOST_AT: Final = 48
HEAD_BYTES: Final = 88
"""Everything before the body, with two 4-byte addresses."""
RECORD_BYTES_MIN: Final = HEAD_BYTES + 1 + 1 + 2
"""Version 1, a one-byte topic, nothing else."""

SIZE_MAGIC: Final = struct.Struct(">ii")
FRONT: Final = struct.Struct(">iiiiiqqiq")
"""TOTALSIZE to BORNTIMESTAMP, at fixed positions."""
BACK: Final = struct.Struct(">iqi")
"""RECONSUMETIMES to BODYLEN."""
OFFSETS: Final = struct.Struct(">qq")
I64: Final = struct.Struct(">q")
I32: Final = struct.Struct(">i")
I16: Final = struct.Struct(">h")

_TOPIC_V1_MAX: Final = 127
_TOPIC_V2_MAX: Final = 32_767
HEAD_BYTES_MAX: Final = HEAD_BYTES + 24
"""Everything before the body, with two IPv6 addresses."""


def crc31(data: Buffer) -> int:
    """Return the CRC-32 of `data` with the top bit cleared, this format's only checksum."""
    return crc32(data) & 0x7FFF_FFFF


def record_version_for(topic: str) -> int:
    """Return 2 for a topic longer than 127 UTF-16 units, else 1 (RocketMQ: CommitLog)."""
    if len(topic) <= 63 or topic.isascii():
        return 2 if len(topic) > _TOPIC_V1_MAX else 1
    return 2 if len(topic.encode("utf-16-le", "surrogatepass")) // 2 > _TOPIC_V1_MAX else 1


@lru_cache(maxsize=1024)
def topic_field(topic: bytes, version: int = 0) -> tuple[int, bytes]:
    """Return the magic of a record with `topic`, and the length-prefixed topic; cached, as topics are few.

    `version` 0 chooses as RocketMQ does.

    Raises:
        InvalidMessage: the topic is empty, not UTF-8, or too long for the version.
    """
    try:
        version = version or record_version_for(topic.decode())
    except UnicodeDecodeError:
        raise InvalidMessage(f"topic {topic[:80]!r} is not UTF-8") from None
    limit = _TOPIC_V1_MAX if version == 1 else _TOPIC_V2_MAX
    if not 0 < len(topic) <= limit:
        raise InvalidMessage(
            f"a topic of {len(topic)} bytes does not fit into version {version} of a record; it has 1 to {limit}"
        )
    return (MAGIC_V1, bytes((len(topic),)) + topic) if version == 1 else (MAGIC_V2, I16.pack(len(topic)) + topic)


def record_bytes(body_size: int, topic: str, properties_size: int) -> int:
    """Return the size of a record whose addresses are IPv4."""
    return HEAD_BYTES + 2 + len(topic_field(topic.encode())[1]) + body_size + properties_size


def encode_blank(size: int) -> bytes:
    """Return the 8 bytes that end a file in which `size` bytes, including these, are left."""
    return SIZE_MAGIC.pack(size, MAGIC_BLANK)


def crc_property(record_without_it: Buffer) -> bytes:
    """Return the 20 bytes of the whole-record checksum for the bytes before them."""
    digits = str(crc31(record_without_it))[::-1].ljust(10, "0")
    return f"{CRC32}\x01{digits}\x02".encode()


assert len(CRC32) + 12 == CRC_PROPERTY_BYTES
assert FRONT.size == BORN_HOST_AT


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


_I32_MIN = -0x8000_0000


@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """Return a ConsumeQueue unit's tags code: the hash of `tag`, or 0 (RocketMQ: MessageExtBrokerInner)."""
    return java_hash(tag) if tag else 0


def index_hash(key: str) -> int:
    """Return the non-negative hash of `key` in the index (RocketMQ: IndexFile); 0 for -2^31."""
    value = java_hash(key)
    return 0 if value == _I32_MIN else abs(value)


def index_keys(topic: str, unique_key: str | None, keys: str | None) -> list[str]:
    """Return a record's index keys, by its topic and the values of `UNIQ_KEY` and `KEYS`."""
    texts = [f"{topic}#{unique_key}"] if unique_key else []
    return texts + [f"{topic}#{key}" for key in split_keys(keys)]
