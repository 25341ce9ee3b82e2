"""The same things done with Reput's store."""

from __future__ import annotations

import random
import struct
import time
from dataclasses import replace
from pathlib import Path

from conformance.apache import SMALL
from conformance.checks import Queue, View
from conformance.workload import Sent
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import Block, GetStatus, PutStatus
from reput_broker.store.message_store import MessageStore
from reput_protocol.properties import encode_properties
from reput_protocol.record.message import Message
from reput_protocol.record.message_id import Host
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.record.record import Record
from support.stores import BORN_HOST, PLENTY, FakeClock, dispatch_all, opened

REPUT_WRITES_INDEX = True
"""Whether Reput's store keeps `index/`. Until it does, RocketMQ is asked only for keys that it has indexed itself."""

_INDEX_SIZES = {"index_slots": SMALL.index_slots, "index_entries": SMALL.index_entries}


def store_options(data_dir: Path, *, record_crc: bool = False) -> StoreOptions:
    """Options with the sizes that RocketMQ is given."""
    options = StoreOptions(
        data_dir=data_dir,
        commit_log_file_size=SMALL.commit_log_file_size,
        consume_queue_entries=SMALL.consume_queue_entries,
        host=Host("127.0.0.1", 10911),
        record_crc=record_crc,
    )
    return replace(options, **_INDEX_SIZES) if REPUT_WRITES_INDEX else options  # type: ignore[arg-type]


class MovingClock(FakeClock):
    """A clock that stands still, or moves by up to seconds, from one look to the next; never ahead of the real one."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(int(time.time() * 1000) - 3_600_000)
        self._rng = rng

    def __call__(self) -> int:
        if self._rng.random() < 0.5:
            self.now_ms += self._rng.choice((1, 1, 7, 1500))
        return self.now_ms


def open_store(data_dir: Path, *, clock: FakeClock | None = None, record_crc: bool = False) -> MessageStore:
    """Open the directory; the clock stands at the present time unless there is another."""
    options = store_options(data_dir, record_crc=record_crc)
    return opened(options, clock or FakeClock(int(time.time() * 1000)))


def put_lists(store: MessageStore, lists: list[list[Sent]], *, dispatch: bool = True, blocks: bool = True) -> None:
    """Store messages, lists of more than one as batches, and flush and dispatch them as the services would.

    Args:
        store: where to.
        lists: the messages, in order.
        dispatch: without it the queues are left behind.
        blocks: put batches, and some of the others, as blocks that a client of Reput encoded.
    """
    for number, batch in enumerate(lists):
        if not blocks:
            assert store.put_records([_record(sent) for sent in batch]).status is PutStatus.PUT_OK
        elif len(batch) > 1 or (number % 3 == 0 and _can_travel_in_block(batch[0])):
            _put_block(store, batch)
        else:
            result = store.put_record(_record(batch[0]))
            assert result.status is PutStatus.PUT_OK
        if store.should_prepare_next_file():
            store.prepare_next_file()
        if dispatch and number % 16 == 0:
            dispatch_all(store)
    if dispatch:
        dispatch_all(store)


def _can_travel_in_block(sent: Sent) -> bool:
    special = {"DELAY", "REAL_TOPIC", "TRAN_MSG"}
    return not (sent.sys_flag or sent.reconsume_times or special & sent.properties.keys() or ":" in sent.born_ip)


def _put_block(store: MessageStore, batch: list[Sent]) -> None:
    topic, queue_id = batch[0].topic, batch[0].queue_id
    messages = [
        Message(
            topic,
            sent.body,
            tag=sent.properties.get("TAGS"),
            keys=sent.properties.get("KEYS", "").split(),
            properties={k: v for k, v in sent.properties.items() if k not in ("TAGS", "KEYS", "UNIQ_KEY")},
            flag=sent.flag,
            unique_id=sent.properties.get("UNIQ_KEY"),
        )
        for sent in batch
    ]
    block = bytearray(encode_put_block(messages, topic, queue_id, int(time.time() * 1000)))
    result = store.put_one(Block(block, topic, queue_id, len(batch), BORN_HOST))
    assert result.status is PutStatus.PUT_OK


def _record(sent: Sent) -> Record:
    return Record(
        topic=sent.topic,
        body=sent.body,
        queue_id=sent.queue_id,
        flag=sent.flag,
        sys_flag=sent.sys_flag,
        born_timestamp_ms=int(time.time() * 1000),
        born_host=Host(sent.born_ip, 40_000),
        reconsume_times=sent.reconsume_times,
        properties=encode_properties(sent.properties),
    )


def read_records(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    """Every record of a queue, as it is in the log."""
    records: list[bytes] = []
    offset = store.min_offset_in_queue(topic, queue_id)
    end = store.max_offset_in_queue(topic, queue_id)
    while offset < end:
        result = store.get_message(topic, queue_id, offset, 32, 1 << 24, limits=PLENTY)
        assert result.status is GetStatus.FOUND, f"{topic} {queue_id} {offset}: {result.status}"
        data = store.read_extents(result.extents, cold=result.cold)
        position = 0
        while position < len(data):
            (size,) = struct.unpack_from(">i", data, position)
            records.append(data[position : position + size])
            position += size
        offset = result.next_begin_offset
    return records


def view(store: MessageStore) -> View:
    """Everything that can be read by queue offset."""
    queues: View = {}
    for topic, queue_id in store.queues():
        end = store.max_offset_in_queue(topic, queue_id)
        if end > 0:
            begin = store.min_offset_in_queue(topic, queue_id)
            queues[topic, queue_id] = Queue(begin, end, read_records(store, topic, queue_id))
    return queues
