"""The record: the one binary form of a message, on the wire, in the commit log and in every answer.

Its fields, the blank record that ends a log file and the whole-record checksum are in docs/formats.md (RocketMQ:
MessageExtEncoder, MessageDecoder). All integers are big-endian and signed. With two 4-byte addresses BODYLEN is at byte
84, and a record has 91 bytes plus body, topic and properties, one more in version 2, 12 more for each IPv6 address.
All-zero bytes are never a record.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from reput_protocol.buffers import Buffer
from reput_protocol.errors import InvalidMessage
from reput_protocol.kernel.records import crc32
from reput_protocol.properties import CRC32, CRC_PROPERTY_BYTES

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
    return (
        (MAGIC_V1, bytes((len(topic),)) + topic) if version == 1 else (MAGIC_V2, I16.pack(len(topic)) + topic)
    )


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
