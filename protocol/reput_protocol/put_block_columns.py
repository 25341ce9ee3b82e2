"""The same door for blocks of many records: array operations for the fixed fields, comparisons for the rest.

Where messages are of one size, a block is a table with a row for each record, in which every field is a column. What is
the same in all rows is looked at in the first and compared in the others: a part of every row, laid end to end, is that
part of the first row so many times. Blocks of records of different sizes are for `put_block_sizes`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from reput_protocol.buffers import Buffer
from reput_protocol.checksum import crc32
from reput_protocol.properties_plain import texts_pass
from reput_protocol.put_block import (
    BlockCheck,
    BlockLimits,
    check_block_size,
    check_records,
    passes_quick_look,
)
from reput_protocol.put_block_sizes import positions_of_sound
from reput_protocol.record_layout import HEAD_BYTES, I32
from reput_protocol.rows_at import void_type


def check_columns(block: Buffer, topic: str, queue_id: int, count: int, limits: BlockLimits) -> BlockCheck:
    """Check a block with array operations; the meaning of `record_batch.check_put_block`.

    It only ever says yes. Whatever has anything wrong or unusual is checked record by record, so that all ways refuse a
    block for the same record and in the same words; refusals need not be fast.
    """
    check_block_size(block, limits)
    end = len(block)
    size = end // count if count > 0 else 0
    if size >= HEAD_BYTES:
        if size * count == end and _rows_pass(block, topic, queue_id, size, limits):
            return BlockCheck(list(range(0, end, size)), [], size)
        if count >= SIZES_THRESHOLD:
            positions = positions_of_sound(block, topic, queue_id, count, limits)
            if positions is not None:
                return BlockCheck(positions, [])
    return check_records(block, topic, queue_id, count, limits)


def _rows_pass(block: Buffer, topic: str, queue_id: int, size: int, limits: BlockLimits) -> bool:
    """Whether a block is a table of records of `size` bytes that differ only where records may."""
    properties = passes_quick_look(block, 0, size, topic, queue_id, limits)
    if properties is None:
        return False
    count = len(block) // size
    heads = np.ndarray((count,), _HEAD, block, 0, (size,)).copy()
    alike = (heads.view(np.uint64).reshape(count, -1) & _ALIKE).tobytes()
    if alike != alike[:HEAD_BYTES] * count:
        return False
    body_size: int = I32.unpack_from(block, HEAD_BYTES - 4)[0]
    body_end = HEAD_BYTES + body_size
    if not _are_equal(block, body_end, properties - body_end, size, count):
        return False
    if properties < size and not texts_pass(
        _column(block, properties, size - properties, size, count), count
    ):
        return False
    stated: list[int] = heads.view(">i4")[_CRC_WORD::_HEAD_WORDS].tolist()
    if 0 < body_size <= _COPIED_BODY_MAX:
        bodies = np.ndarray((count,), void_type(body_size), block, HEAD_BYTES, (size,)).tolist()
        return stated == [crc32(body) & 0x7FFF_FFFF for body in bodies]
    rows: Any = np.ndarray((count, body_size), np.uint8, block, HEAD_BYTES, (size, 1))
    return stated == [crc32(row) & 0x7FFF_FFFF for row in rows]


def _are_equal(block: Buffer, position: int, length: int, size: int, count: int) -> bool:
    """Whether the `length` bytes at `position` of each of `count` rows of `size` bytes are those of the first row."""
    parts = _column(block, position, length, size, count)
    return parts == parts[:length] * count


def _column(block: Buffer, position: int, length: int, size: int, count: int) -> bytes:
    return np.ndarray((count,), void_type(length), block, position, (size,)).tobytes()


# From here on records of different sizes are checked by columns at no higher cost, as `record_batch` says.
SIZES_THRESHOLD: Final = 48
# Making a bytes object of each body at once takes a third less than a view of each, as long as copying costs little.
_COPIED_BODY_MAX: Final = 2048
_HEAD: Final = np.dtype((np.void, HEAD_BYTES))
_HEAD_WORDS: Final = HEAD_BYTES // 4
_CRC_WORD: Final = 2
# Every bit of a head that is the same in all records of such a block: all but checksum, flag and born time.
_ALIKE_BYTES: Final = np.full(HEAD_BYTES, 0xFF, np.uint8)
_ALIKE_BYTES[8:12] = _ALIKE_BYTES[16:20] = _ALIKE_BYTES[40:48] = 0
_ALIKE: Final = _ALIKE_BYTES.view(np.uint64)
