"""Reading in bulk from a real broker: ranges, bounds, durable and expired messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reput_broker.background import BackgroundBroker
from reput_client import Ack
from reput_client.blocking import Admin, Message, Producer
from reput_client.blocking.bulk import BulkReader
from reput_client.consume.fetch_records import FetchedBlock
from reput_client.consume.pull import read_records
from reput_protocol.errors import BrokerError, FilterRefused, TopicNotFound
from reput_protocol.record.columns import RecordColumns

TOPIC = "bulk"


@pytest.fixture
def broker(new_reput_broker: Callable[..., BackgroundBroker]) -> BackgroundBroker:
    return new_reput_broker(store={"flush": "sync"})


def send(address: str, count: int, size: int = 100, ack: Ack = "flushed") -> None:
    with Admin(address) as admin:
        admin.create_topic(TOPIC, queues=2)
    with Producer(address, group="p") as producer:
        for queue_id in range(2):
            messages = [Message(TOPIC, b"%06d" % number + b"x" * size, tag=f"t{number % 2}") for number in range(count)]
            producer.send_batch(messages, queue_id=queue_id, ack=ack)


def columns(block: FetchedBlock) -> RecordColumns:
    return RecordColumns(block.records, read_records(bytes(block.records)))


def test_a_range_comes_in_blocks_that_follow_each_other(broker: BackgroundBroker) -> None:
    send(broker.address, 1000)
    with BulkReader(broker.address) as reader:
        assert reader.cluster().masters.keys() == {"broker-a"}
        assert TOPIC in reader.topics()
        table = reader.queue_bounds([TOPIC, "nobody"])
        assert (table.broker_name, table.topics) == ("broker-a", {TOPIC: [(0, 0, 1000), (1, 0, 1000)]})
        offset = 17
        found: list[int] = []
        blocks = 0
        while offset < 900:
            block = reader.fetch(TOPIC, 1, offset, 900, max_bytes=50_000)
            assert len(block.records) <= 50_000
            found += columns(block).queue_offset.tolist()
            offset = block.next_offset
            blocks += 1
        assert found == list(range(17, 900))
        assert blocks > 2
        large = reader.fetch(TOPIC, 0, 0, 1000, max_bytes=1)
        assert columns(large).queue_offset.tolist() == [0]


def test_tags_are_chosen_by_the_broker(broker: BackgroundBroker) -> None:
    send(broker.address, 100)
    with BulkReader(broker.address) as reader:
        block = reader.fetch(TOPIC, 0, 10, 20, tags="t1")
        assert columns(block).queue_offset.tolist() == [11, 13, 15, 17, 19]
        assert block.next_offset == 20
        nothing = reader.fetch(TOPIC, 0, 10, 20, tags="nobody")
        assert (len(nothing.records), nothing.next_offset, nothing.moved) == (0, 20, False)


def test_what_is_outside_the_queue_is_said(broker: BackgroundBroker) -> None:
    send(broker.address, 10)
    with BulkReader(broker.address) as reader:
        assert reader.fetch(TOPIC, 0, 10, 20)[1:] == (10, 0, 10, False)
        assert reader.fetch(TOPIC, 0, 11, 20)[1:] == (10, 0, 10, True)
        assert reader.fetch(TOPIC, 0, 5, 100).next_offset == 10
        with pytest.raises(TopicNotFound):
            reader.fetch("nobody", 0, 0, 1)
        for queue_id, start, end in ((2, 0, 1), (0, -1, 1), (0, 5, 4)):
            with pytest.raises(BrokerError):
                reader.fetch(TOPIC, queue_id, start, end)
        with pytest.raises(FilterRefused):
            reader.fetch(TOPIC, 0, 0, 1, tags="||")


def test_only_what_is_durable_is_there(new_reput_broker: Callable[..., BackgroundBroker]) -> None:
    broker = new_reput_broker(store={"flush": "async", "flush_interval": "10m", "flush_thorough_interval": "10m"})
    send(broker.address, 10, ack="page_cache")
    with Admin(broker.address) as admin, BulkReader(broker.address) as reader:
        assert admin.max_offset(TOPIC, 1) == 10
        assert [queue.max_offset for queue in reader.queue_bounds([TOPIC]).topics[TOPIC]] == [0, 0]
        assert reader.fetch(TOPIC, 1, 0, 10)[1:] == (0, 0, 0, False)
        with Producer(broker.address, group="p") as producer:
            producer.send(Message(TOPIC, b"flushed"), queue_id=0, ack="flushed")
        assert [queue.max_offset for queue in reader.queue_bounds([TOPIC]).topics[TOPIC]] == [11, 10]
        assert columns(reader.fetch(TOPIC, 1, 0, 10)).queue_offset.tolist() == list(range(10))


def test_what_was_asked_for_ahead_is_taken_or_dropped(broker: BackgroundBroker) -> None:
    send(broker.address, 100)
    with BulkReader(broker.address) as reader:
        for queue_id in range(2):
            reader.prefetch(TOPIC, queue_id, 10, 60)
        assert columns(reader.fetch(TOPIC, 1, 10, 60)).queue_offset.tolist() == list(range(10, 60))
        assert columns(reader.fetch(TOPIC, 0, 20, 30)).queue_offset.tolist() == list(range(20, 30))
        assert columns(reader.fetch(TOPIC, 0, 10, 60)).queue_offset.tolist() == list(range(10, 60))
        reader.prefetch(TOPIC, 0, 10, 60)
        broker.stop()
        broker.start()
        assert columns(reader.fetch(TOPIC, 0, 10, 60)).queue_offset.tolist() == list(range(10, 60))


def test_a_topic_that_was_created_again_is_not_the_one_that_was_asked_about(broker: BackgroundBroker) -> None:
    send(broker.address, 10)
    with BulkReader(broker.address) as reader, Admin(broker.address) as admin:
        first = reader.queue_bounds([TOPIC]).generations[TOPIC]
        assert reader.fetch(TOPIC, 0, 0, 10, generation=first).next_offset == 10
        admin.delete_topic(TOPIC)
        send(broker.address, 20)
        with pytest.raises(TopicNotFound, match="was deleted and created again"):
            reader.fetch(TOPIC, 0, 0, 10, generation=first)
        second = reader.queue_bounds([TOPIC]).generations[TOPIC]
        assert first != second
        assert len(columns(reader.fetch(TOPIC, 0, 0, 20, generation=second))) == 20
        assert len(columns(reader.fetch(TOPIC, 0, 0, 20, generation=""))) == 20, "it is not known"
