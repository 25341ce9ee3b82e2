"""The same door for blocks of records of different sizes: tags, keys and bodies differ in length.

Where each record begins follows from the sizes alone. Then what all records share is compared with the first one's,
which is looked at itself; the lengths of their parts are columns that have to add up; and topics and properties are
laid beneath each other by their places.
"""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np

from reput_protocol.buffers import Buffer
from reput_protocol.checksum import crc32
from reput_protocol.properties_plain import texts_of_any_size_pass, texts_pass
from reput_protocol.put_block import BlockLimits, passes_quick_look, topic_of_records
from reput_protocol.record_columns import HEAD_DTYPE, I16_TYPE
from reput_protocol.record_layout import CLIENT_BITS, HEAD_BYTES, I32
from reput_protocol.rows_at import rows_at, windows


def positions_of_sound(
    block: Buffer, topic: str, queue_id: int, count: int, limits: BlockLimits
) -> list[int] | None:
    """Return where the `count` records of a block begin if there is nothing to say against any; None says nothing."""
    positions = _follow(block, count)
    if positions is None or not _records_pass(block, positions, topic, queue_id, limits):
        return None
    return positions


def _follow(block: Buffer, count: int) -> list[int] | None:
    """Return where `count` records begin that fill the block, going by nothing but their sizes."""
    end = len(block)
    last_start = end - HEAD_BYTES
    unpack = I32.unpack_from
    positions: list[int] = []
    append = positions.append
    position = 0
    # Never more records than announced: what a peer makes the broker look at is what the peer said it would.
    for _ in range(count):
        if position > last_start:
            return None
        append(position)
        (size,) = unpack(block, position)
        if size < HEAD_BYTES:
            return None
        position += size
    return positions if position == end else None


def _records_pass(
    block: Buffer, positions: list[int], topic: str, queue_id: int, limits: BlockLimits
) -> bool:
    end, count = len(block), len(positions)
    second = positions[1] if count > 1 else end
    if passes_quick_look(block, 0, second, topic, queue_id, limits) is None:
        return False
    position = np.frombuffer(array("q", positions), np.int64)
    heads = windows(block, HEAD_BYTES)[position]
    alike = (heads.view(np.uint64).reshape(count, -1) & _ALIKE).tobytes()
    if alike != alike[:HEAD_BYTES] * count:
        return False
    head = heads.view(HEAD_DTYPE)
    _, topic_bytes = topic_of_records(topic)
    body_size = head["body_size"].astype(np.int64)
    body = position + HEAD_BYTES
    body_end = body + body_size
    properties = body_end + (len(topic_bytes) + 2)
    properties_size = position + head["size"] - properties
    # Nothing lies outside of its record, and so outside of the block, if no size is negative. As unsigned it would be
    # larger than any limit.
    smallest, largest = int(properties_size.min()), int(properties_size.max())
    if (
        int(body_size.view(np.uint64).max()) > limits.body_bytes_max
        or smallest < 0
        or largest > limits.properties_bytes_max
    ):
        return False
    if windows(block, len(topic_bytes))[body_end].tobytes() != topic_bytes * count:
        return False
    if (np.ndarray((end - 1,), I16_TYPE, block, 0, (1,))[properties - 2] != properties_size).any():
        return False
    if smallest == largest:
        if smallest and not texts_pass(rows_at(block, properties, smallest).tobytes(), count):
            return False
    else:
        filled = slice(None) if smallest else properties_size > 0
        if not texts_of_any_size_pass(block, properties[filled], properties_size[filled]):
            return False
    view = memoryview(block)
    sums = [
        crc32(view[start:stop]) & 0x7FFF_FFFF
        for start, stop in zip(body.tolist(), body_end.tolist(), strict=True)
    ]
    stated: list[int] = head["body_crc"].tolist()
    return sums == stated


# Every bit of a head that is the same in all records of a block, whatever their sizes: all but the sizes of record and
# body, checksum, flag, born time, and what the body is compressed by.
_ALIKE_BYTES: Final = np.full(HEAD_BYTES, 0xFF, np.uint8)
_ALIKE_BYTES[0:4] = _ALIKE_BYTES[8:12] = _ALIKE_BYTES[16:20] = _ALIKE_BYTES[40:48] = _ALIKE_BYTES[84:88] = 0
_ALIKE_BYTES[36:40] = np.frombuffer((~CLIENT_BITS & 0xFFFF_FFFF).to_bytes(4, "big"), np.uint8)
_ALIKE: Final = _ALIKE_BYTES.view(np.uint64)
