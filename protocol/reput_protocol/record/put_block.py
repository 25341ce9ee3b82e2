"""Put blocks: the records of one topic and queue, back to back, that a producer sends in one request.

A producer encodes a block, with zeros where the broker's fields go. The broker checks it as a whole and fills in its
fields; after that the block is stored as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Final, NamedTuple

from msgspec import Struct

from reput_protocol.buffers import Buffer
from reput_protocol.errors import RecordMalformed
from reput_protocol.kernel import put_blocks, records
from reput_protocol.properties import PROPERTIES_BYTES_MAX
from reput_protocol.record.layout import MESSAGE_BYTES_MAX, topic_field
from reput_protocol.record.message import Message, encode_properties_text
from reput_protocol.record.message_id import IdRun

BLOCK_BYTES_MAX: Final = 8 * 1024 * 1024


class RecordTooLarge(RecordMalformed):
    """A record or block is sound but larger than this broker accepts."""


class BlockLimits(NamedTuple):
    """What a broker accepts, in bytes: body and properties text of a record, whole block."""

    body_bytes_max: int = MESSAGE_BYTES_MAX
    properties_bytes_max: int = PROPERTIES_BYTES_MAX
    block_bytes_max: int = BLOCK_BYTES_MAX


class BlockCheck(Struct, frozen=True, gc=False):
    """A block that passed: how many records it has, and how many end with a checksum of the whole record."""

    count: int
    sealed: int = 0


DEFAULT_LIMITS: Final = BlockLimits()


@lru_cache(maxsize=1024)
def topic_of_records(topic: str) -> tuple[int, bytes]:
    """Return the magic and the length-prefixed topic that every record of a block for `topic` must have."""
    return topic_field(topic.encode())


def check_put_block(
    block: Buffer, *, topic: str, queue_id: int, count: int, limits: BlockLimits = DEFAULT_LIMITS
) -> BlockCheck:
    """Check the body of a PutMessage request as a whole, before anything of it is used.

    Sizes add up to exactly the block; `count` records; the version that fits the topic; every record of `topic` and
    `queue_id`; zeros in all that the broker fills in; no system flag but compression; body checksums; sizes within
    `limits`; properties canonical (see properties.py), UTF-8 and without names reserved for the broker.

    Raises:
        RecordTooLarge: a size is above a limit.
        RecordMalformed: index, position and reason of the first record that breaks a rule.
        InvalidMessage: no record can hold `topic` at all.

    The block is not changed, and no view of it is kept.
    """
    body_max, properties_max, block_max = limits
    size = len(block)
    if not size:
        raise RecordMalformed(0, 0, "the block is empty; it must hold at least one record")
    if size > block_max:
        raise RecordTooLarge(
            0, 0, f"the block has {size} bytes, but at most {block_max} are accepted; split it"
        )
    magic, topic_bytes = topic_of_records(topic)
    try:
        sealed = put_blocks.check_block(block, magic, topic_bytes, queue_id, count, body_max, properties_max)
    except put_blocks.Refusal as refusal:
        kind = RecordTooLarge if refusal.is_size else RecordMalformed
        raise kind(refusal.index, refusal.position, refusal.reason) from None
    return BlockCheck(count, sealed)


def patch_block(
    buffer: bytearray | memoryview,
    check: BlockCheck,
    *,
    first_queue_offset: int,
    first_physical_offset: int,
    store_timestamp_ms: int,
    born_host: bytes,
    store_host: bytes,
    start: int = 0,
    size: int | None = None,
) -> None:
    """Write the broker's fields into a block that passed `check_put_block`: the `size` bytes at `start` of `buffer`.

    Record i gets queue offset `first_queue_offset + i` and the physical offset of its place when the block starts at
    `first_physical_offset`. Both hosts have 8 bytes (see `host.born_host_bytes`). No length changes. May be repeated
    with other values, for instance after the block had to move to the next file.
    """
    assert len(born_host) == len(store_host) == 8, "records of a block hold IPv4 hosts"
    stop = len(buffer) if size is None else start + size
    hosts = born_host + store_host
    records.patch_block(
        buffer,
        start,
        stop,
        first_queue_offset,
        1,
        first_physical_offset,
        store_timestamp_ms,
        hosts,
        check.sealed > 0,
    )


def encode_block(
    bodies: Sequence[Buffer],
    texts: Sequence[bytes],
    topic: str,
    queue_id: int,
    born_timestamp_ms: int,
    *,
    ids: IdRun | None = None,
    flags: Sequence[int] = (0,),
) -> tuple[bytearray, Sequence[int]]:
    """Return the block that puts `bodies`, one or more, into one queue, in order, and where each record begins.

    Args:
        bodies: of each, `len` must be its bytes (see `message.checked_body`).
        texts: the properties of each record, encoded (see `message.encode_properties_text`); one is that of all.
        ids: as many unique ids as bodies. A text that begins with an id of its own keeps it.
        flags: of each record; one is that of all.

    Raises:
        InvalidMessage: the first properties that do not fit, or a topic that fits no record.
    """
    magic, topic_bytes = topic_of_records(topic)
    prefix, number = (b"", 0) if ids is None else (ids.prefix.encode(), ids.first)
    return put_blocks.encode_block(
        bodies, texts, flags, magic, topic_bytes, queue_id, born_timestamp_ms, prefix, number
    )


def encode_put_block(
    messages: Sequence[Message],
    topic: str,
    queue_id: int,
    born_timestamp_ms: int,
    unique_ids: Iterable[str | None] | None = None,
) -> bytearray:
    """Return the block that puts `messages` into one queue, in order.

    `unique_ids` gives one id per message; a message that has its own keeps it. Without it none are added. The topics
    of the messages are not looked at: `topic` holds for all.

    Raises:
        InvalidMessage: a message whose properties do not fit, or a topic that fits no record.
    """
    texts = list(map(encode_properties_text, messages, repeat(None) if unique_ids is None else unique_ids))
    bodies = [message.body for message in messages]
    flags = [message.flag for message in messages]
    block, _ = encode_block(bodies, texts, topic, queue_id, born_timestamp_ms, flags=flags)
    return block
