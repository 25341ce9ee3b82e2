"""Blocks as a broker stores them: the kernel's `patch_block` over a whole block."""

from __future__ import annotations

from reput_protocol.kernel import records
from reput_protocol.record.put_block import BlockCheck


def patch_block(
    buffer: bytearray | memoryview,
    check: BlockCheck,
    *,
    first_queue_offset: int,
    first_physical_offset: int,
    store_timestamp_ms: int,
    born_host: bytes,
    store_host: bytes,
    start: int = 0,
    size: int | None = None,
) -> None:
    """Write the broker's fields into a block that passed `check_put_block`: the `size` bytes at `start` of `buffer`.

    Record i gets queue offset `first_queue_offset + i` and its physical offset in a block at `first_physical_offset`.
    Both hosts have 8 bytes (see `message_id.born_host_bytes`). No length changes. May be repeated with other values,
    for example after the block had to move to the next file.
    """
    assert len(born_host) == len(store_host) == 8, "records of a block hold IPv4 hosts"
    stop = len(buffer) if size is None else start + size
    hosts = born_host + store_host
    records.patch_block(
        buffer, start, stop, first_queue_offset, 1, first_physical_offset, store_timestamp_ms, hosts, check.sealed > 0
    )
