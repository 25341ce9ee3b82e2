"""Blocks put together are in the log as if they had been put one by one; one with a fault is left out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from reput_broker.store.base.results import Block, PutResult, PutStatus
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import RecordMalformed
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from support.stores import BORN_HOST, T0, bodies, dispatch_all, opened, put, small_options


def block(topic: str, queue_id: int, *messages: bytes, properties: dict[str, str] | None = None) -> Block:
    data = encode_put_block(
        [Message(topic, body, tag="a", properties=properties) for body in messages], topic, queue_id, T0
    )
    return Block(bytes(data), topic, queue_id, len(messages), BORN_HOST)


def some_blocks() -> list[Block]:
    """Several queues and topics, one record and many, properties that get a checksum."""
    many = [b"%03d" % number for number in range(40)]
    return [
        block("T", 0, b"one"),
        block("T", 1, b"two", b"three"),
        block("T", 0, *many),
        block("U", 0, b"four"),
        block("T", 0, b"five", properties={"k": "v"}),
    ]


def places_of(store: MessageStore, blocks: list[Block]) -> list[tuple[int, int]]:
    places = []
    for result in store.put(blocks):
        assert isinstance(result, PutResult)
        assert result.status is PutStatus.PUT_OK
        assert result.store_timestamp_ms == T0
        places.append((result.queue_offset, result.physical_offset))
    return places


def put_counts(store: MessageStore) -> dict[str, int]:
    return {name: value for name, value in asdict(store.stats).items() if name.startswith("put_")}


def log_bytes(store: MessageStore) -> bytes:
    directory = store.options.data_dir / "commitlog"
    return b"".join(file.read_bytes() for file in sorted(directory.iterdir()))


@pytest.mark.parametrize("file_size", [65_536, 4096])
def test_blocks_are_stored_byte_for_byte_as_one_by_one_also_across_files(tmp_path: Path, file_size: int) -> None:
    stores = [opened(small_options(tmp_path / name, commit_log_file_size=file_size)) for name in ("all", "each")]
    blocks = [*some_blocks(), *(block("T", 0, bytes(900)) for _ in range(5))]
    for store in stores:
        put(store, b"first", topic="T", queue_id=1)
    assert places_of(stores[0], blocks) == [place for one in blocks for place in places_of(stores[1], [one])]
    for store in stores:
        assert put(store, b"last", topic="T", queue_id=0).queue_offset == 47
        dispatch_all(store)
    assert log_bytes(stores[0]) == log_bytes(stores[1])
    for topic, queue_id in (("T", 0), ("T", 1), ("U", 0)):
        assert bodies(stores[0], topic, queue_id) == bodies(stores[1], topic, queue_id)
    assert put_counts(stores[0]) == put_counts(stores[1])
    for store in stores:
        store.close()


def test_a_bad_block_is_left_out_and_the_others_are_stored(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path / "s", commit_log_file_size=1 << 20))
    for index in range(len(some_blocks())):
        blocks = some_blocks()
        blocks[index].data = bytes(blocks[index].data[:-1]) + b"\xff"
        counts, end = put_counts(store), store.max_physical_offset
        results = store.put(blocks)
        assert isinstance(results[index], RecordMalformed)
        stored = [result for number, result in enumerate(results) if number != index]
        assert all(isinstance(result, PutResult) and result.status is PutStatus.PUT_OK for result in stored)
        assert put_counts(store)["put_blocks"] == counts["put_blocks"] + len(stored)
        size = sum(len(one.data) for number, one in enumerate(blocks) if number != index)
        assert store.max_physical_offset == end + size
    dispatch_all(store)
    assert bodies(store, "U", 0) == [b"four"] * 4
    store.close()


def test_a_buffer_that_can_be_written_to_gets_the_brokers_fields_in_place(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path / "s"))
    one = block("T", 0, b"one", b"two")
    one.data = bytearray(one.data)
    places_of(store, [one])
    assert log_bytes(store).startswith(one.data)
    store.close()
