"""The same door for large blocks: array operations for the fixed fields, one loop for what needs every byte."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from reput_protocol.buffers import Buffer
from reput_protocol.columns import all_equal, chain, gather
from reput_protocol.properties import is_plain_text
from reput_protocol.put_block import (
    BlockCheck,
    BlockLimits,
    check_block_size,
    check_records,
    judge,
    topic_of_records,
)
from reput_protocol.record_layout import CLIENT_BITS, HEAD_BYTES


def check_columns(block: Buffer, topic: str, queue_id: int, count: int, limits: BlockLimits) -> BlockCheck:
    """Check a block with array operations; the meaning of `record_batch.check_put_block`.

    It only ever says yes. A block with anything wrong is checked again record by record, so that both ways refuse
    it for the same record and in the same words; refusals need not be fast.
    """
    check_block_size(block, limits)
    end = len(block)
    positions, stop = chain(block, 0, end)
    if stop != end or len(positions) != count:
        return check_records(block, topic, queue_id, count, limits)
    columns, sound = gather(block, positions)
    head = columns.head
    magic, topic_bytes = topic_of_records(topic)
    sound &= head["magic"] == magic
    sound &= head["queue_id"] == queue_id
    sound &= (head["sys_flag"] & ~CLIENT_BITS) == 0
    body_end_column = columns.body_position + columns.body_size
    sound &= columns.properties_position == body_end_column + (len(topic_bytes) + 2)
    sound &= columns.body_size <= limits.body_bytes_max
    sound &= columns.properties_size <= limits.properties_bytes_max
    raw = head.view(np.uint8).reshape(-1, HEAD_BYTES)
    zeros = not raw[:, 20:36].any() and not raw[:, 48:84].any()
    if not (zeros and sound.all() and all_equal(block, body_end_column, topic_bytes)):
        return check_records(block, topic, queue_id, count, limits)

    bodies = columns.body_position.tolist()
    body_ends = body_end_column.tolist()
    properties_starts = columns.properties_position.tolist()
    stops = (columns.properties_position + columns.properties_size).tolist()
    crcs = head["body_crc"].tolist()
    view = memoryview(block)
    sealed: list[int] = []
    for index, (body, body_end, properties, stop, crc) in enumerate(
        zip(bodies, body_ends, properties_starts, stops, crcs, strict=True)
    ):
        if crc32(view[body:body_end]) & 0x7FFF_FFFF != crc:
            return check_records(block, topic, queue_id, count, limits)
        if properties != stop and not is_plain_text(block, properties, stop):
            _, is_sealed = judge(block, index, positions[index], topic, queue_id, limits)
            if is_sealed:
                sealed.append(positions[index])
    return BlockCheck(positions, sealed)
