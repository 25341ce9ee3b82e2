"""The body of RocketMQ's batch send (320, and 310 with its batch flag): units, back to back.

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
from collections.abc import Iterable
from typing import Final, NamedTuple

from reput_protocol.buffers import Buffer
from reput_protocol.errors import InvalidMessage, RecordMalformed
from reput_protocol.properties import PROPERTIES_BYTES_MAX

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
            raise InvalidMessage(
                f"properties of {len(properties)} bytes, but at most {PROPERTIES_BYTES_MAX} fit"
            )
        size = UNIT_BYTES_MIN + len(body) + len(properties)
        parts += (
            _HEAD.pack(size, 0, 0, flag, len(body)),
            body,
            _PROPERTIES_SIZE.pack(len(properties)),
            properties,
        )
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
                count_max,
                position,
                f"at most {count_max} messages are taken in a batch; send several smaller ones",
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
        items.append(
            BatchItem(flag, bytes(view[body_at : body_at + body_size]), bytes(view[properties_at:stop]))
        )
        position = stop
    return items
