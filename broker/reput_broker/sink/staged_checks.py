"""What is staged is checked as a put is, so that a commit has nothing left to refuse. Nothing here waits or is shared:
it runs in worker threads."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput_protocol.buffers import Buffer
from reput_protocol.errors import RecordMalformed
from reput_protocol.properties import UNIQ_KEY
from reput_protocol.record_batch import BlockCheck, BlockLimits, check_put_block
from reput_protocol.record_layout import HEAD_BYTES, I32, topic_field
from reput_protocol.record_view import RecordView
from reput_protocol.staged_blocks import StagedBlock, staged_blocks

_FIRST: Final = np.frombuffer(f"{UNIQ_KEY}\x01".encode(), np.uint8)


class CheckedBlocks(NamedTuple):
    """The blocks of a request that pass."""

    blocks: list[StagedBlock]
    sealed: bool
    """Whether a record of them holds a checksum over itself."""


def queues_of(checked: CheckedBlocks) -> set[tuple[str, int]]:
    """Return the topics and queues of blocks."""
    return {(block.topic, block.queue_id) for block in checked.blocks}


def check_staged(body: Buffer, limits: BlockLimits, record_max: int) -> CheckedBlocks:
    """Check the blocks of a request.

    Args:
        body: whole staged blocks and nothing else.
        limits: of a block.
        record_max: bytes that a file of the log holds.

    Raises:
        RecordMalformed: a block or record breaks a rule.
    """
    blocks = list(staged_blocks(body))
    sealed = False
    for block in blocks:
        data = memoryview(body)[block.start : block.end]
        check = check_put_block(
            data, topic=block.topic, queue_id=block.queue_id, count=block.messages, limits=limits
        )
        sealed = sealed or bool(check.sealed)
        _check_unique_ids(data, block, check)
        if block.size > record_max:
            _check_sizes(data, check, record_max)
    return CheckedBlocks(blocks, sealed)


def _check_sizes(data: memoryview, check: BlockCheck, record_max: int) -> None:
    for index, position in enumerate(check.positions):
        (size,) = I32.unpack_from(data, position)
        if size > record_max:
            raise RecordMalformed(
                index,
                position,
                f"the record has {size} bytes, but a file of the log holds {record_max} "
                "(store.commit_log_file_size)",
            )


def _check_unique_ids(data: memoryview, block: StagedBlock, check: BlockCheck) -> None:
    """Refuse records without a unique id, by which a start knows what of a batch is in the log.

    It is the first property nearly always, which one look at all of them tells.
    """
    middle = len(topic_field(block.topic.encode())[1]) + 2
    for index in _without_first(data, check, middle):
        position = check.positions[index]
        if RecordView(data, position).unique_key is None:
            raise RecordMalformed(
                index, position, "it has no unique id; give each record a property UNIQ_KEY"
            )


def _without_first(data: memoryview, check: BlockCheck, middle: int) -> list[int]:
    """Return which records do not have the unique id as their first property; `middle` bytes follow each body."""
    row, count = check.row_bytes, check.count
    if row:  # such records are alike but for their contents: all bodies are as long as the first
        start = HEAD_BYTES + I32.unpack_from(data, HEAD_BYTES - 4)[0] + middle
        if start + len(_FIRST) > row:
            return list(range(count))
        rows: NDArray[np.uint8] = np.ndarray((count, len(_FIRST)), np.uint8, data, start, (row, 1))
        same = rows == _FIRST
    else:
        places = np.array(check.positions, np.int64)
        raw: NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        sizes = raw[places[:, None] + np.arange(HEAD_BYTES - 4, HEAD_BYTES)].copy().view(">i4").ravel()
        properties = places + HEAD_BYTES + sizes + middle
        same = raw[np.minimum(properties[:, None] + np.arange(len(_FIRST)), len(raw) - 1)] == _FIRST
    return np.flatnonzero(~same.all(axis=1)).tolist()
