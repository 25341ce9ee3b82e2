"""Blocks of records: the one entry behind which the struct way and the column way hide.

Both ways do the same; which one runs depends only on how many records there are. `check_put_block` and `patch_block`
are the broker's, `encode_put_block` is the producer's, `scan_dispatch` follows the log.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final

import numpy as np

from reput_protocol.buffers import Buffer
from reput_protocol.checksum import crc32
from reput_protocol.columns import COLUMNS_THRESHOLD, patch_positions, patch_rows
from reput_protocol.dispatch_rows import DispatchGroup, DispatchRows, DispatchRun
from reput_protocol.dispatch_scan import scan_dispatch
from reput_protocol.message import Message, encode_properties_text
from reput_protocol.put_block import (
    BLOCK_BYTES_MAX,
    DEFAULT_LIMITS,
    BlockCheck,
    BlockLimits,
    RecordTooLarge,
    check_records,
    patch_records,
    seal_records,
)
from reput_protocol.put_block_columns import check_columns
from reput_protocol.record_layout import HEAD_BYTES, I16, PUT_HEAD, topic_field

__all__ = [
    "BLOCK_BYTES_MAX",
    "COLUMNS_THRESHOLD",
    "BlockCheck",
    "BlockLimits",
    "DispatchGroup",
    "DispatchRows",
    "DispatchRun",
    "RecordTooLarge",
    "check_put_block",
    "encode_put_block",
    "patch_block",
    "patch_run",
    "scan_dispatch",
]


def check_put_block(
    block: Buffer, *, topic: str, queue_id: int, count: int, limits: BlockLimits = DEFAULT_LIMITS
) -> BlockCheck:
    """Check the body of a PutMessage request whole, before anything of it is used.

    Sizes add up to exactly the block; `count` records; the version that fits the topic; every record of `topic` and
    `queue_id`; zeros in all that the broker fills in; no system flag but compression; body checksums; sizes within
    `limits`; properties canonical (see properties.py), UTF-8 and without names reserved for the broker.

    Raises:
        RecordTooLarge: a size is above a limit.
        RecordMalformed: index, position and reason of the first record that breaks a rule.
        InvalidMessage: no record can hold `topic` at all.

    The block is not changed, and no view of it is kept.
    """
    # `count` is the sender's word, but a wrong one costs only time: the block is then refused either way.
    if count < CHECK_COLUMNS_THRESHOLD:
        return check_records(block, topic, queue_id, count, limits)
    return check_columns(block, topic, queue_id, count, limits)


def patch_block(
    block: bytearray | memoryview,
    check: BlockCheck,
    *,
    first_queue_offset: int,
    first_physical_offset: int,
    store_timestamp_ms: int,
    born_host: bytes,
    store_host: bytes,
) -> None:
    """Write the broker's fields into a block that passed `check_put_block`.

    Record i gets queue offset `first_queue_offset + i` and the physical offset of its place when the block starts at
    `first_physical_offset`. Both hosts have 8 bytes (see `host.born_host_bytes`). No length changes. May be repeated
    with other values, for instance after the block had to move to the next file.
    """
    assert len(born_host) == len(store_host) == 8, "records of a block hold IPv4 hosts"
    hosts_and_time = born_host + store_timestamp_ms.to_bytes(8, "big") + store_host
    _patch(block, 0, len(block), check, first_queue_offset, first_physical_offset, hosts_and_time)


def patch_run(
    run: bytearray,
    blocks: Iterable[tuple[int, int, BlockCheck]],
    *,
    first_physical_offset: int,
    store_timestamp_ms: int,
    born_host: bytes,
    store_host: bytes,
) -> None:
    """Do what `patch_block` does for several blocks that lie back to back and go to the log together.

    `blocks` gives for each its size, the queue offset of its first record and its check, in the order of `run`.
    """
    assert len(born_host) == len(store_host) == 8, "records of a block hold IPv4 hosts"
    hosts_and_time = born_host + store_timestamp_ms.to_bytes(8, "big") + store_host
    start = 0
    for size, queue_offset, check in blocks:
        _patch(run, start, size, check, queue_offset, first_physical_offset + start, hosts_and_time)
        start += size


def _patch(
    buffer: bytearray | memoryview,
    start: int,
    size: int,
    check: BlockCheck,
    queue_offset: int,
    physical_offset: int,
    hosts_and_time: bytes,
) -> None:
    """Patch the block of `size` bytes at `start`, which lies in the log at `physical_offset`."""
    count = len(check.positions)
    if count < PATCH_COLUMNS_THRESHOLD:
        patch_records(buffer, check, queue_offset, physical_offset, hosts_and_time, start)
    elif check.row_bytes:
        patch_rows(buffer, start, check.row_bytes, count, queue_offset, physical_offset, hosts_and_time)
    else:
        positions = np.frombuffer(array("q", check.positions), np.int64)
        block = memoryview(buffer)[start : start + size]
        patch_positions(block, positions, queue_offset, physical_offset, hosts_and_time)
    if check.sealed:
        seal_records(buffer, check, start)


def encode_put_block(
    messages: Sequence[Message],
    topic: str,
    queue_id: int,
    born_timestamp_ms: int,
    unique_ids: Iterable[str | None] | None = None,
) -> bytes:
    """Return the block that puts `messages` into one queue, in order.

    `unique_ids` gives one id per message; a message that has its own keeps it. Without it none are added. The topics
    of the messages are not looked at: `topic` holds for all.

    Raises:
        InvalidMessage: a message whose properties do not fit, or a topic that fits no record.
    """
    magic, topic_bytes = topic_field(topic.encode())
    magic &= 0xFFFF_FFFF
    fixed = HEAD_BYTES + 2 + len(topic_bytes)
    pack_head = PUT_HEAD.pack
    pack_short = I16.pack
    parts: list[Buffer] = []
    add = parts.append
    for message, unique_id in zip(messages, repeat(None) if unique_ids is None else unique_ids, strict=False):
        properties = encode_properties_text(message, unique_id)
        body = message.body
        body_size = len(body)
        properties_size = len(properties)
        add(
            pack_head(
                fixed + body_size + properties_size,
                magic,
                crc32(body) & 0x7FFF_FFFF,
                queue_id,
                message.flag,
                0,
                born_timestamp_ms,
                body_size,
            )
        )
        add(body)
        add(topic_bytes)
        add(pack_short(properties_size))
        add(properties)
    return b"".join(parts)


# Where the two ways cost the same, measured as for COLUMNS_THRESHOLD. Records of one size and 1 KiB: 16 take 29 us by
# structs and 28 us by columns, 64 take 110 and 67, 256 take 442 and 222. Of different sizes (on a host twice as fast):
# 48 take 48 us by structs and 38 to 50 by columns, 256 take 254 and 110 to 150. Patching touches only fixed fields: 20
# records take 7 us either way, 256 take 92 us by structs and 15 us by columns.
CHECK_COLUMNS_THRESHOLD: Final = 24
PATCH_COLUMNS_THRESHOLD: Final = 20
