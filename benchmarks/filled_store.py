"""Fill store directories for benchmarks, in this process; each message has two keys."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import Block
from reput_broker.store.message_store import MessageStore
from reput_protocol.record.message import Message
from reput_protocol.record.message_id import Host, born_host_bytes
from reput_protocol.record.put_block import encode_put_block

TOPIC = "bench"
BATCH = 64
QUEUES = 4
_BORN_HOST = born_host_bytes("10.0.0.1", 40_000)
_HOST = Host("10.0.0.2", 10911)
_RANDOM_BYTES = 4096


def key_of(number: int) -> str:
    """Return the key of a message."""
    return f"order-{number:09d}"


def options_for(root: Path, *, file_size: int = 64 << 20) -> StoreOptions:
    """Return options of a store under `root` that does not wait for the disk."""
    return StoreOptions(data_dir=root, commit_log_file_size=file_size, host=_HOST, flush_sync=False)


def store_of(options: StoreOptions) -> MessageStore:
    """Return a store with the system clock, not opened yet."""
    return MessageStore(options, clock_ms=lambda: time.time_ns() // 1_000_000)


def opened(options: StoreOptions) -> MessageStore:
    """Open a store."""
    store = store_of(options)
    store.open()
    return store


def blocks(messages: int, size: int) -> Iterator[tuple[int, int, bytearray]]:
    """Yield (queue id, number of messages, block) for `messages` messages with bodies of `size` bytes."""
    random = os.urandom(size + _RANDOM_BYTES)
    for start in range(0, messages, BATCH):
        numbers = range(start, min(start + BATCH, messages))
        queue_id = start // BATCH % QUEUES
        block = encode_put_block(
            [
                Message(TOPIC, random[number % _RANDOM_BYTES :][:size], tag=f"tag{number % 8}", keys=[key_of(number)])
                for number in numbers
            ],
            TOPIC,
            queue_id,
            1_700_000_000_000,
            [f"{number:032X}" for number in numbers],
        )
        yield queue_id, len(numbers), bytearray(block)


def put(store: MessageStore, queue_id: int, count: int, block: bytearray) -> None:
    """Put one block, which must fit into the current file."""
    result = store.put_one(Block(block, TOPIC, queue_id, count, _BORN_HOST))
    assert result.status.name == "PUT_OK", result


def dispatch(store: MessageStore) -> int:
    """Dispatch all messages that are not dispatched; return their number."""
    dispatched = 0
    while count := store.reput_step():
        dispatched += count
    return dispatched


def fill(options: StoreOptions, messages: int, size: int) -> MessageStore:
    """Create a directory with `messages` messages, all dispatched; return its open store."""
    store = opened(options)
    behind = 0
    for queue_id, count, block in blocks(messages, size):
        put(store, queue_id, count, block)
        behind += count
        if behind >= 4096:
            dispatch(store)
            behind = 0
    dispatch(store)
    return store
