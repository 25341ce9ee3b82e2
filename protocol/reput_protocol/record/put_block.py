"""Put blocks: the records of one topic and queue, back to back, sent in one request.

A producer encodes a block with zeros in the broker's fields. The broker validates it as a whole, fills in its fields
and stores it as it is.

The body of RocketMQ's batch send (320, and 310 with its batch flag): units, back to back.

    size  field
    ----  ------------------------------------
       4  unit size, this field included
       4  0 (magic, unused)
       4  0 (body CRC, unused)
       4  flag
     4+n  body length, body
     2+p  properties length, properties text

The broker makes an ordinary record of every unit. (RocketMQ: MessageDecoder.encodeMessages.)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Final, NamedTuple

from msgspec import Struct

from reput_protocol.buffers import Buffer
from reput_protocol.errors import InvalidMessage, RecordMalformed
from reput_protocol.kernel import put_blocks, records
from reput_protocol.properties import PROPERTIES_BYTES_MAX, SENT_PROPERTIES_BYTES_MAX
from reput_protocol.record.layout import MESSAGE_BYTES_MAX, topic_field
from reput_protocol.record.message import Message, encode_properties_text
from reput_protocol.record.message_id import IdRun

_HEAD: Final = struct.Struct(">iiiii")
_PROPERTIES_SIZE: Final = struct.Struct(">h")
UNIT_BYTES_MIN: Final = _HEAD.size + _PROPERTIES_SIZE.size


class BatchItem(NamedTuple):
    """One message of a client batch: flag, body as sent, encoded properties."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """Return the request body for `items`, in order. Raises `InvalidMessage`: properties of more than 32767 bytes."""
    parts: list[Buffer] = []
    for flag, body, properties in items:
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise InvalidMessage(f"properties of {len(properties)} bytes, but at most {PROPERTIES_BYTES_MAX} fit")
        size = UNIT_BYTES_MIN + len(body) + len(properties)
        parts += (_HEAD.pack(size, 0, 0, flag, len(body)), body, _PROPERTIES_SIZE.pack(len(properties)), properties)
    return b"".join(parts)


def decode_batch(body: Buffer, count_max: int | None = None) -> list[BatchItem]:
    """Return the units of a batch as copies; at most `count_max`. Like RocketMQ, ignores the unused fields.

    Raises:
        RecordMalformed: a unit's lengths do not add up, the body ends within a unit, or there are too many.
    """
    items: list[BatchItem] = []
    view = memoryview(body)
    end = len(view)
    position = 0
    while position < end:
        left = end - position
        if count_max is not None and len(items) == count_max:
            raise RecordMalformed(
                count_max, position, f"at most {count_max} messages are taken in a batch; send several smaller ones"
            )
        if left < UNIT_BYTES_MIN:
            raise RecordMalformed(len(items), position, f"{left} bytes are left, too few for a unit")
        size, _, _, flag, body_size = _HEAD.unpack_from(view, position)
        if not UNIT_BYTES_MIN <= size <= left:
            raise RecordMalformed(len(items), position, f"unit size {size}, but {left} bytes are left")
        if not 0 <= body_size <= size - UNIT_BYTES_MIN:
            raise RecordMalformed(len(items), position, f"body length {body_size} in a unit of {size} bytes")
        body_at = position + _HEAD.size
        properties_at = body_at + body_size + 2
        (properties_size,) = _PROPERTIES_SIZE.unpack_from(view, properties_at - 2)
        stop = position + size
        if properties_size < 0 or properties_at + properties_size != stop:
            raise RecordMalformed(
                len(items),
                position,
                f"properties length {properties_size}, but unit size {size} leaves {stop - properties_at}",
            )
        items.append(BatchItem(flag, bytes(view[body_at : body_at + body_size]), bytes(view[properties_at:stop])))
        position = stop
    return items


BLOCK_BYTES_MAX: Final = 8 * 1024 * 1024


class RecordTooLarge(RecordMalformed):
    """A record or block is valid but larger than this broker accepts."""


class BlockLimits(NamedTuple):
    """Maximum bytes: body and encoded properties of a record, whole block."""

    body_bytes_max: int = MESSAGE_BYTES_MAX
    properties_bytes_max: int = SENT_PROPERTIES_BYTES_MAX
    block_bytes_max: int = BLOCK_BYTES_MAX


class BlockCheck(Struct, frozen=True, gc=False):
    """A valid block: how many records, and how many that end with a whole-record checksum."""

    count: int
    sealed: int = 0


DEFAULT_LIMITS: Final = BlockLimits()


@lru_cache(maxsize=1024)
def topic_of_records(topic: str) -> tuple[int, bytes]:
    """Return magic and length-prefixed topic of every record of a block for `topic`."""
    return topic_field(topic.encode())


def check_put_block(
    block: Buffer, *, topic: str, queue_id: int, count: int, limits: BlockLimits = DEFAULT_LIMITS
) -> BlockCheck:
    """Validate the body of a PutMessage request as a whole, before any of it is used.

    The rules are in docs/formats.md, What a producer may put. The block is not changed, and no view of it is kept.

    Raises:
        RecordTooLarge: a size exceeds a limit.
        RecordMalformed: index, position and reason of the first invalid record.
        InvalidMessage: `topic` does not fit into a record.
    """
    body_max, properties_max, block_max = limits
    size = len(block)
    if not size:
        raise RecordMalformed(0, 0, "the block is empty; it must hold at least one record")
    if size > block_max:
        raise RecordTooLarge(0, 0, f"the block has {size} bytes, but at most {block_max} are accepted; split it")
    magic, topic_bytes = topic_of_records(topic)
    try:
        sealed = put_blocks.check_block(block, magic, topic_bytes, queue_id, count, body_max, properties_max)
    except put_blocks.Refusal as refusal:
        kind = RecordTooLarge if refusal.is_size else RecordMalformed
        raise kind(refusal.index, refusal.position, refusal.reason) from None
    return BlockCheck(count, sealed)


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
    """Return the block that puts one or more `bodies` into one queue, in order, and where each record begins.

    Args:
        bodies: the `len` of each must be its size in bytes (see `message.checked_body`).
        texts: the encoded properties of each record (see `message.encode_properties_text`), or one for all.
        ids: as many unique ids as bodies. Properties that begin with a unique id keep it.
        flags: of each record, or one for all.

    Raises:
        InvalidMessage: for the first properties that do not fit, or a topic that does not.
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

    `unique_ids` has one id per message, used if the message has none; without it none are added. `topic` replaces the
    messages' own topics.

    Raises:
        InvalidMessage: a message's properties, or the topic, do not fit into a record.
    """
    texts = list(map(encode_properties_text, messages, repeat(None) if unique_ids is None else unique_ids))
    bodies = [message.body for message in messages]
    flags = [message.flag for message in messages]
    block, _ = encode_block(bodies, texts, topic, queue_id, born_timestamp_ms, flags=flags)
    return block


def records_of_batch(
    batch: bytes,
    *,
    topic: str,
    queue_id: int,
    sys_flag: int,
    born_timestamp_ms: int,
    count_max: int,
    limits: BlockLimits,
    unusual: Sequence[bytes] = (),
) -> tuple[bytearray, BlockCheck] | None:
    """Return the records of a batch back to back; None if it is malformed (`decode_batch` has the reason).

    The broker's fields are zero (see `kernel.records.patch_block`); the properties are those of the units.

    Args:
        count_max: maximum number of units.
        limits: of a body and its properties.
        unusual: also return None if the properties of a message have one of these names.

    Raises:
        InvalidMessage: `topic` does not fit into a record.
    """
    if len(batch) < UNIT_BYTES_MIN:
        return None
    magic, topic_bytes = topic_of_records(topic)
    found = put_blocks.batch_to_block(
        batch,
        magic,
        topic_bytes,
        queue_id,
        sys_flag,
        born_timestamp_ms,
        count_max,
        limits.body_bytes_max,
        limits.properties_bytes_max,
    )
    if found is None:
        return None
    block, count = found
    if unusual and records.properties_have_any(block, tuple(unusual)):
        return None
    return block, BlockCheck(count)
