"""Blocks put together lie in the log as if they had been put one by one; a run with a fault in it is not begun."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from reput_broker.store.message_store import MessageStore
from reput_broker.store.results import PutStatus
from reput_protocol.codes import AckLevel
from reput_protocol.commands import PutMessageHeader
from reput_protocol.message import Message
from reput_protocol.put_block import encode_put_block
from stores import BORN_HOST, T0, bodies, dispatch_all, opened, put, small_options

Blocks = list[tuple[PutMessageHeader, bytes]]


def block(
    topic: str, queue_id: int, *messages: bytes, properties: dict[str, str] | None = None
) -> tuple[PutMessageHeader, bytes]:
    data = encode_put_block(
        [Message(topic, body, tag="a", properties=properties) for body in messages], topic, queue_id, T0
    )
    return PutMessageHeader(topic, queue_id, len(messages), AckLevel.PAGE_CACHE), data


def some_blocks() -> Blocks:
    """Several queues and topics, one block for each way of patching, properties that get a checksum."""
    many = [b"%03d" % number for number in range(40)]
    return [
        block("T", 0, b"one"),
        block("T", 1, b"two", b"three"),
        block("T", 0, *many),
        block("U", 0, b"four"),
        block("T", 0, b"five", properties={"k": "v"}),
    ]


def put_run(store: MessageStore, blocks: Blocks) -> list[tuple[int, int]] | None:
    result = store.put_run([header for header, _ in blocks], [data for _, data in blocks], BORN_HOST)
    if result is None:
        return None
    assert result.store_timestamp_ms == T0
    assert result.end_offset == store.max_physical_offset
    return list(zip(result.queue_offsets, result.physical_offsets, strict=True))


def put_each(store: MessageStore, blocks: Blocks) -> list[tuple[int, int]]:
    places = []
    for header, data in blocks:
        result = store.put_block(
            bytearray(data),
            topic=header.topic,
            queue_id=header.queue_id,
            count=header.count,
            born_host=BORN_HOST,
        )
        assert result.status is PutStatus.PUT_OK
        places.append((result.queue_offset, result.physical_offset))
    return places


def put_counts(store: MessageStore) -> dict[str, int]:
    return {name: value for name, value in asdict(store.stats).items() if name.startswith("put_")}


def log_bytes(store: MessageStore) -> bytes:
    directory = store.options.data_dir / "commitlog"
    return b"".join(file.read_bytes() for file in sorted(directory.iterdir()))


@pytest.mark.parametrize("record_crc", [False, True])
def test_a_run_is_stored_byte_for_byte_as_its_blocks_one_by_one(tmp_path: Path, record_crc: bool) -> None:
    stores = [
        opened(small_options(tmp_path / name, commit_log_file_size=65_536, record_crc=record_crc))
        for name in ("run", "each")
    ]
    blocks = some_blocks()
    for store in stores:
        put(store, b"first", topic="T", queue_id=1)
    assert put_run(stores[0], blocks) == put_each(stores[1], blocks)
    for store in stores:
        assert put(store, b"last", topic="T", queue_id=0).queue_offset == 42
        dispatch_all(store)
    assert log_bytes(stores[0]) == log_bytes(stores[1])
    for topic, queue_id in (("T", 0), ("T", 1), ("U", 0)):
        assert bodies(stores[0], topic, queue_id) == bodies(stores[1], topic, queue_id)
    assert put_counts(stores[0]) == put_counts(stores[1])
    for store in stores:
        store.close()


def spoiled(blocks: Blocks, index: int) -> Blocks:
    header, data = blocks[index]
    return [*blocks[:index], (header, data[:-1] + b"\xff"), *blocks[index + 1 :]]


def test_a_run_with_one_bad_block_stores_nothing(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path / "s", commit_log_file_size=65_536))
    put(store, b"before")
    end, counts = store.max_physical_offset, put_counts(store)
    for index in range(len(some_blocks())):
        assert put_run(store, spoiled(some_blocks(), index)) is None
    assert (store.max_physical_offset, put_counts(store)) == (end, counts)
    assert put(store, b"after").queue_offset == 1
    dispatch_all(store)
    assert bodies(store) == [b"before", b"after"]
    store.close()


def test_a_run_that_does_not_fit_into_the_file_is_left_to_single_puts(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path / "s", commit_log_file_size=8192))
    put(store, b"x" * 2000)
    assert put_run(store, [block("T", 0, b"y" * 3000), block("T", 1, b"z" * 3000)]) is None
    assert put_run(store, [block("T", 0, b"y" * 3000)]) is not None
    store.close()


def test_the_first_put_of_a_store_is_no_run(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path / "s"))
    assert put_run(store, some_blocks()) is None
    assert store.max_physical_offset == 0
    store.close()
