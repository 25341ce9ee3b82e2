"""Messages as columns: the same as message by message, for messages of any form."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from reput_broker.background import BackgroundBroker
from reput_client import Message, PullStatus
from reput_client.blocking import Admin, Producer, PullConsumer
from reput_client.consume.columns import MessageColumns
from reput_client.errors import DamagedMessage
from reput_protocol.codes import MessageSysFlag, RequestCode
from reput_protocol.errors import FilterSyntaxError, TopicNotFound
from reput_protocol.wire.header import HeaderType
from support.faces import FACES, Face, scenario
from support.raw_client import RawClient, in_letters

TOPIC = "columns"


@pytest.fixture
def broker(new_reput_broker: Callable[..., BackgroundBroker]) -> BackgroundBroker:
    made = new_reput_broker(store={"flush": "sync"})
    with Admin(made.address) as admin:
        admin.create_topic(TOPIC, queues=2)
    return made


def some_messages(seed: int, count: int) -> list[Message]:
    chance = random.Random(seed)
    equal = chance.random() < 0.3
    return [
        Message(
            TOPIC,
            chance.randbytes(64 if equal else chance.choice((0, 1, 7, 64, 3000))),
            tag=chance.choice((None, "a", "b", "a tag like äöü", "AaAa", "BBBB")),
            keys=chance.choice(([], ["k1"], ["k1", "k2"])),
            properties={"name": "x" * chance.randrange(1, 9)} if chance.random() < 0.5 else {},
            flag=chance.randrange(5),
        )
        for _ in range(count)
    ]


def by_columns(consumer: PullConsumer, **options: Any) -> list[tuple[Any, ...]]:
    """Queue 0 read as columns, one row per message."""
    rows: list[tuple[Any, ...]] = []
    offset = 0
    while True:
        result = consumer.pull_columns(TOPIC, 0, offset, wait_s=0.0, **options)
        columns = result.columns
        data, bounds = columns.bodies()
        rows += zip(
            columns.queue_offset.tolist(),
            columns.physical_offset.tolist(),
            columns.store_timestamp_ms.tolist(),
            columns.born_timestamp_ms.tolist(),
            columns.flag.tolist(),
            columns.reconsume_times.tolist(),
            (data[start:end].tobytes() for start, end in pairwise(bounds)),
            columns.tags(),
            columns.keys(),
            columns.values_of("name"),
            strict=True,
        )
        if result.status is PullStatus.NO_NEW_MESSAGE:
            assert not len(columns)
            return rows
        assert result.next_begin_offset > offset
        offset = result.next_begin_offset


def by_messages(consumer: PullConsumer, **options: Any) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    offset = 0
    while True:
        result = consumer.pull(TOPIC, 0, offset, wait_s=0.0, **options)
        rows += [
            (
                message.queue_offset,
                message.physical_offset,
                message.store_timestamp_ms,
                message.born_timestamp_ms,
                message.flag,
                message.reconsume_times,
                message.body,
                message.tag,
                " ".join(message.keys) or None,
                message.properties.get("name"),
            )
            for message in result.messages
        ]
        if result.status is PullStatus.NO_NEW_MESSAGE:
            return rows
        offset = result.next_begin_offset


@pytest.mark.parametrize("seed", range(6))
def test_columns_say_what_messages_say(broker: BackgroundBroker, seed: int) -> None:
    with Producer(broker.address, group="p") as producer:
        producer.send_batch(some_messages(seed, 300), queue_id=0)
    with PullConsumer(broker.address, group="g") as consumer:
        expected = by_messages(consumer)
        assert len(expected) == 300
        assert by_columns(consumer) == expected
        assert by_columns(consumer, max_bytes=5000, read_ahead=bool(seed % 2)) == expected
        for tags in ("a", "b || AaAa", "nobody"):  # AaAa and BBBB have one hash
            assert by_columns(consumer, tags=tags) == by_messages(consumer, tags=tags)


def test_arrow_has_the_same(broker: BackgroundBroker) -> None:
    pytest.importorskip("pyarrow")
    messages = some_messages(3, 200)
    with Producer(broker.address, group="p") as producer:
        producer.send_batch(messages, queue_id=0)
    with PullConsumer(broker.address, group="g") as consumer:
        columns = consumer.pull_columns(TOPIC, 0, 0).columns
        table = columns.to_arrow().to_pydict()
        pulled = list(consumer.pull(TOPIC, 0, 0).messages)
    assert table["body"] == [message.body for message in messages]
    assert table["tags"] == columns.tags() == [message.tag for message in messages]
    assert table["keys"] == columns.keys()
    assert table["queueOffset"] == list(range(200))
    assert [dict(found) for found in table["properties"]] == [dict(message.properties) for message in pulled]
    assert [round(time.timestamp() * 1000) for time in table["storeTimestamp"]] == [
        message.store_timestamp_ms for message in pulled
    ]
    few = columns.to_arrow(("body", "flag"))
    assert few.schema.names == ["body", "flag"]
    with pytest.raises(ValueError, match="there is no column 'bodies'; did you mean 'body'"):
        columns.to_arrow(("bodies",))


def test_bodies_of_one_size_are_a_table_over_what_came(broker: BackgroundBroker) -> None:
    with Producer(broker.address, group="p") as producer:
        producer.send_batch([Message(TOPIC, bytes([number]) * 10) for number in range(50)], queue_id=0)
    with PullConsumer(broker.address, group="g") as consumer:
        columns = consumer.pull_columns(TOPIC, 0, 0).columns
    table = columns.body_matrix()
    assert table is not None
    assert table.shape == (50, 10)
    assert (table == np.arange(50, dtype=np.uint8)[:, None]).all()
    assert not table.flags.owndata
    some = columns.take(np.array([3, 4, 40]))
    assert some.body_matrix() is not None
    assert some.bodies()[0].tobytes() == b"".join(bytes([number]) * 10 for number in (3, 4, 40))
    assert len(columns.take(slice(0, 0)).bodies()[0]) == 0


def test_compressed_bodies_come_as_they_were(broker: BackgroundBroker) -> None:
    plain = b"a body that was compressed " * 20
    with Producer(broker.address, group="p") as producer:
        producer.send(Message(TOPIC, b"plain"), queue_id=0)
    with RawClient(broker.address, HeaderType.JSON) as raw:
        fields = in_letters(TOPIC, f=str(int(MessageSysFlag.COMPRESSED)))  # as Java's client
        header, _ = raw.request(RequestCode.SEND_MESSAGE_V2, fields, zlib.compress(plain))
        assert header.code == 0, header.remark
    with PullConsumer(broker.address, group="g") as consumer:
        columns = consumer.pull_columns(TOPIC, 0, 0).columns
    assert columns.compressed.tolist() == [False, True]
    assert columns.body_matrix() is None
    data, bounds = columns.bodies()
    assert data[bounds[1] :].tobytes() == plain
    pytest.importorskip("pyarrow")
    assert columns.to_arrow(("body",)).to_pydict()["body"] == [b"plain", plain]


@pytest.mark.parametrize("face", [Face(name) for name in FACES], ids=FACES)
@scenario
async def test_a_pull_at_the_end_waits(broker: BackgroundBroker, face: Face) -> None:
    async with (
        face.Producer(broker.address, group="p") as producer,
        face.PullConsumer(broker.address, group="g") as consumer,
    ):
        nothing = await consumer.pull_columns(TOPIC, 1, 0, wait_s=0.0)
        assert (nothing.status, len(nothing.columns)) == (PullStatus.NO_NEW_MESSAGE, 0)
        found: list[MessageColumns] = []

        async def wait() -> None:
            found.append((await consumer.pull_columns(TOPIC, 1, 0, wait_s=20.0)).columns)

        async def send() -> None:
            await producer.send(Message(TOPIC, b"late", tag="t"), queue_id=1)

        await face.together(wait, send)
        assert found[0].bodies()[0].tobytes() == b"late"
        assert found[0].tags() == ["t"]


def test_what_is_not_durable_yet_comes_too(new_reput_broker: Callable[..., BackgroundBroker]) -> None:
    broker = new_reput_broker(store={"flush": "async", "flush_interval": "10m", "flush_thorough_interval": "10m"})
    with Producer(broker.address, group="p") as producer, PullConsumer(broker.address, group="g") as consumer:
        producer.send_batch([Message(TOPIC, b"%d" % number) for number in range(10)], queue_id=0, ack="page_cache")
        for offset in (0, 4):
            result = consumer.pull_columns(TOPIC, 0, offset, wait_s=0.0)
            assert result.columns.queue_offset.tolist() == list(range(offset, 10))
        assert consumer.pull_columns(TOPIC, 0, 10, wait_s=0.0).status is PullStatus.NO_NEW_MESSAGE
        beyond = consumer.pull_columns(TOPIC, 0, 11, wait_s=0.0)
        assert (beyond.status, beyond.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 10)


def test_bad_arguments_are_refused(broker: BackgroundBroker) -> None:
    with PullConsumer(broker.address, group="g") as consumer:
        with pytest.raises(TopicNotFound):
            consumer.pull_columns("nobody", 0, 0)
        with pytest.raises(FilterSyntaxError):
            consumer.pull_columns(TOPIC, 0, 0, tags="||")
        for arguments in ({"offset": -1}, {"offset": 0, "wait_s": -1.0}, {"offset": 0, "max_bytes": 0}):
            with pytest.raises(ValueError, match="must be 0 or more"):
                consumer.pull_columns(TOPIC, 0, **arguments)


def test_a_damaged_message_is_named_and_hides_no_other(broker: BackgroundBroker) -> None:
    with Producer(broker.address, group="p") as producer:
        receipts = producer.send_batch(
            [Message(TOPIC, b"body %d" % number, tag="last" if number == 8 else None) for number in range(9)],
            queue_id=0,
        )
    log = next((broker.config.data_dir / "commitlog").iterdir())
    with log.open("r+b") as file:
        for number in (0, 5, 8):
            file.seek(receipts[number].physical_offset + 90)
            file.write(b"x")
    with PullConsumer(broker.address, group="g") as consumer:
        with pytest.raises(DamagedMessage) as raised:
            consumer.pull_columns(TOPIC, 0, 0)
        assert raised.value.queue_offset == 0
        result = consumer.pull_columns(TOPIC, 0, 1)
        assert result.columns.queue_offset.tolist() == [1, 2, 3, 4]
        assert result.next_begin_offset == 5
        with pytest.raises(DamagedMessage):
            consumer.pull_columns(TOPIC, 0, 5)
        assert consumer.pull_columns(TOPIC, 0, 6).columns.queue_offset.tolist() == [6, 7]
        with pytest.raises(DamagedMessage) as raised:
            consumer.pull_columns(TOPIC, 0, 0, tags="last")
        assert raised.value.queue_offset == 8, "the first that was asked for"
