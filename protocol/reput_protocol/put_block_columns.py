"""The same door for blocks of records of one size: array operations for the fixed fields, one search for all texts.

Messages of one producer tend to be of one size, and then a block is a table with a row for each record, in which every
field is a column.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from reput_protocol.buffers import Buffer
from reput_protocol.checksum import crc32
from reput_protocol.properties import is_plain_text
from reput_protocol.put_block import (
    BlockCheck,
    BlockLimits,
    check_block_size,
    check_records,
    passes_quick_look,
)
from reput_protocol.record_layout import HEAD_BYTES, I32


def check_columns(block: Buffer, topic: str, queue_id: int, count: int, limits: BlockLimits) -> BlockCheck:
    """Check a block with array operations; the meaning of `record_batch.check_put_block`.

    It only ever says yes. Whatever is not of one size, or has anything wrong or unusual, is checked record by record,
    so that both ways refuse a block for the same record and in the same words; refusals need not be fast.
    """
    check_block_size(block, limits)
    end = len(block)
    size = end // count if count > 0 else 0
    if size < HEAD_BYTES or size * count != end or not _rows_pass(block, topic, queue_id, size, limits):
        return check_records(block, topic, queue_id, count, limits)
    return BlockCheck(list(range(0, end, size)), [])


def _rows_pass(block: Buffer, topic: str, queue_id: int, size: int, limits: BlockLimits) -> bool:
    """Whether a block is a table of records of `size` bytes that differ only where records may."""
    properties = passes_quick_look(block, 0, size, topic, queue_id, limits)
    if properties is None:
        return False
    table = np.frombuffer(block, np.uint8).reshape(-1, size)
    body_size: int = I32.unpack_from(block, HEAD_BYTES - 4)[0]
    body_end = HEAD_BYTES + body_size
    heads, tails = table[:, :HEAD_BYTES], table[:, body_end:properties]
    if ((heads ^ heads[0]) & _ALIKE).any() or (tails != tails[0]).any():
        return False
    # With a separator at the end of each, texts are in order one by one if they are in order as one.
    if properties < size and not (
        (table[:, -1] == _VALUE_END).all() and is_plain_text(table[:, properties:].tobytes())
    ):
        return False
    view = memoryview(block)
    stated: list[int] = heads[:, 8:12].copy().view(">i4").ravel().tolist()
    body_starts = range(HEAD_BYTES, len(block), size)
    return stated == [crc32(view[at : at + body_size]) & 0x7FFF_FFFF for at in body_starts]


_VALUE_END: Final = 2
# Every bit of a head that is the same in all records of such a block: all but checksum, flag and born time.
_ALIKE: Final = np.full(HEAD_BYTES, 0xFF, np.uint8)
_ALIKE[8:12] = _ALIKE[16:20] = _ALIKE[40:48] = 0
