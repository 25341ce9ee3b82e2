"""The records that a batch of RocketMQ's clients becomes (`client_batch` describes its units)."""

from __future__ import annotations

from collections.abc import Sequence

from reput_protocol.client_batch import UNIT_BYTES_MIN
from reput_protocol.kernel.put_blocks import batch_to_block
from reput_protocol.kernel.records import properties_have_any
from reput_protocol.put_block import BlockCheck, BlockLimits, topic_of_records


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
    """Return the records of a batch back to back; None if anything is wrong with it, which `decode_batch` names.

    The broker's fields are zeros (see `put_block.patch_block`); the properties are the units' as they are.

    Args:
        batch: the units.
        count_max: how many there may be.
        limits: of a body and its properties.
        unusual: a batch with one of these in the properties of a message gives None, too.

    Raises:
        InvalidMessage: no record can hold `topic`.
    """
    if len(batch) < UNIT_BYTES_MIN:
        return None
    magic, topic_bytes = topic_of_records(topic)
    found = batch_to_block(
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
    if unusual and properties_have_any(block, tuple(unusual)):
        return None
    return block, BlockCheck(count)
