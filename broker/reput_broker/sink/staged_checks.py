"""What is staged is checked as a put is, so that a commit has nothing left to refuse. Nothing here waits or is shared:
it runs in worker threads."""

from __future__ import annotations

from typing import NamedTuple

from reput_protocol.buffers import Buffer
from reput_protocol.errors import RecordMalformed
from reput_protocol.kernel import COLUMNS, scan_records
from reput_protocol.put_block import BlockLimits, check_put_block
from reput_protocol.staged_blocks import StagedBlock, staged_blocks


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
        _check_records(data, record_max)
    return CheckedBlocks(blocks, sealed)


def _check_records(data: memoryview, record_max: int) -> None:
    """Refuse records that no file of the log holds, and those without a unique id.

    By their unique ids a start knows what of a batch is in the log.
    """
    table, *_ = scan_records(data, 0, len(data))
    width = len(COLUMNS)
    sizes, id_sizes = table[COLUMNS.index("size") :: width], table[COLUMNS.index("unique_id_size") :: width]
    for index, (size, id_size) in enumerate(zip(sizes, id_sizes, strict=True)):
        if size > record_max:
            reason = (
                f"the record has {size} bytes, but a file of the log holds {record_max} "
                "(store.commit_log_file_size)"
            )
        elif not id_size:
            reason = "it has no unique id; give each record a property UNIQ_KEY"
        else:
            continue
        raise RecordMalformed(index, table[width * index], reason)
