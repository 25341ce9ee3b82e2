"""The records that a batch of RocketMQ's clients becomes, made in one go; client_batch.py draws its units.

A unit has what a record has behind its head, but for the topic: body, and properties with their length. Messages that
are sent together tend to be of one size; then units and records are two tables, and parts of the one are columns of
the other.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from reput_protocol.checksum import crc32
from reput_protocol.client_batch import UNIT_BYTES_MIN
from reput_protocol.put_block import BlockCheck, BlockLimits, topic_of_records
from reput_protocol.record_layout import HEAD_BYTES, I16, PUT_HEAD


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
    """Return the records of a batch back to back, and where they are; None if anything is wrong with it.

    What is wrong `decode_batch` says. The broker's fields are zeros (see `record_batch.patch_block`); the properties
    are the units' as they are.

    Args:
        batch: the units.
        count_max: how many there may be.
        limits: of a body and its properties.
        unusual: a batch with one of these anywhere in its properties gives None, too.

    Raises:
        InvalidMessage: no record can hold `topic`.
    """
    if len(batch) < UNIT_BYTES_MIN:
        return None
    size, _, _, _, body_size = _UNIT.unpack_from(batch)
    magic, topic_bytes = topic_of_records(topic)
    head = (magic & 0xFFFF_FFFF, queue_id, sys_flag, born_timestamp_ms)
    count, rest = divmod(len(batch), size) if size >= UNIT_BYTES_MIN else (0, 1)
    if not rest and _TABLE_MIN <= count <= count_max and UNIT_BYTES_MIN <= size - body_size <= size:
        table = _table(batch, count, size, body_size, topic_bytes, head, limits, unusual)
        if table is not None:
            return table
    return _one_by_one(batch, topic_bytes, head, count_max, limits, unusual)


def _table(
    batch: bytes,
    count: int,
    size: int,
    body_size: int,
    topic_bytes: bytes,
    head: tuple[int, int, int, int],
    limits: BlockLimits,
    unusual: Sequence[bytes],
) -> tuple[bytearray, BlockCheck] | None:
    """Return the records of units of one size whose bodies are of one size, too; None if they are not."""
    text_size = size - UNIT_BYTES_MIN - body_size
    if body_size > limits.body_bytes_max or text_size > limits.properties_bytes_max:
        return None
    units: Any = np.ndarray((count, size), np.uint8, batch)
    numbers = np.ndarray((count, _UNIT.size // 4), ">i4", batch, 0, (size, 4))
    text_sizes = np.ndarray((count,), ">i2", batch, _UNIT.size + body_size, (size,))
    if (
        (numbers[:, 0] != size).any()
        or (numbers[:, _BODY_SIZE_UNIT] != body_size).any()
        or (text_sizes != text_size).any()
        or _has_any(units[:, size - text_size :].tobytes(), unusual)
    ):
        return None
    magic, queue_id, sys_flag, born_timestamp_ms = head
    topic_end = HEAD_BYTES + body_size + len(topic_bytes)
    row_bytes = topic_end + size - _UNIT.size - body_size
    block = bytearray(count * row_bytes)
    rows: Any = np.ndarray((count, row_bytes), np.uint8, block)
    first = PUT_HEAD.pack(row_bytes, magic, 0, queue_id, 0, sys_flag, born_timestamp_ms, body_size)
    rows[:, :HEAD_BYTES] = np.frombuffer(first, np.uint8)
    rows[:, HEAD_BYTES + body_size : topic_end] = np.frombuffer(topic_bytes, np.uint8)
    rows[:, HEAD_BYTES : HEAD_BYTES + body_size] = units[:, _UNIT.size : _UNIT.size + body_size]
    rows[:, topic_end:] = units[:, _UNIT.size + body_size :]
    words: Any = np.ndarray((count, HEAD_BYTES // 4), ">u4", block, 0, (row_bytes, 4))
    if body_size:
        bodies = np.ndarray((count,), np.dtype((np.void, body_size)), batch, _UNIT.size, (size,)).tolist()
        words[:, _CRC_WORD] = np.fromiter(map(crc32, bodies), np.uint32, count) & 0x7FFF_FFFF
    words[:, _FLAG_WORD] = numbers[:, _FLAG_UNIT].astype(np.uint32)
    return block, BlockCheck(list(range(0, len(block), row_bytes)), [], row_bytes)


def _one_by_one(
    batch: bytes,
    topic_bytes: bytes,
    head: tuple[int, int, int, int],
    count_max: int,
    limits: BlockLimits,
    unusual: Sequence[bytes],
) -> tuple[bytearray, BlockCheck] | None:
    magic, queue_id, sys_flag, born_timestamp_ms = head
    fixed = HEAD_BYTES + len(topic_bytes) - _UNIT.size
    end, position, at = len(batch), 0, 0
    parts: list[bytes] = []
    texts: list[bytes] = []
    positions: list[int] = []
    while position < end:
        if len(positions) == count_max or end - position < UNIT_BYTES_MIN:
            return None
        size, _, _, flag, body_size = _UNIT.unpack_from(batch, position)
        text_size = size - UNIT_BYTES_MIN - body_size
        stop = position + size
        if not (
            UNIT_BYTES_MIN <= size <= end - position
            and 0 <= body_size <= limits.body_bytes_max
            and 0 <= text_size <= limits.properties_bytes_max
            and _SHORT(batch, stop - text_size - 2)[0] == text_size
        ):
            return None
        body = batch[position + _UNIT.size : stop - text_size - 2]
        text = batch[stop - text_size - 2 : stop]
        record_size = fixed + size
        parts += (
            PUT_HEAD.pack(
                record_size,
                magic,
                crc32(body) & 0x7FFF_FFFF,
                queue_id,
                flag,
                sys_flag,
                born_timestamp_ms,
                body_size,
            ),
            body,
            topic_bytes,
            text,
        )
        texts.append(text)
        positions.append(at)
        at += record_size
        position = stop
    if _has_any(b"".join(texts), unusual):
        return None
    return bytearray().join(parts), BlockCheck(positions, [])


def _has_any(texts: bytes, unusual: Sequence[bytes]) -> bool:
    return any(name in texts for name in unusual)


_UNIT: Final = struct.Struct(">iiiii")
_SHORT: Final = I16.unpack_from
_FLAG_UNIT: Final = 3
_BODY_SIZE_UNIT: Final = 4
_CRC_WORD: Final = 2
_FLAG_WORD: Final = 4
_TABLE_MIN: Final = 8
"""Fewer units are quicker one by one."""
