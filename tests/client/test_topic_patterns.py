"""Consumers of all topics that match a pattern, with every API."""

from __future__ import annotations

import re
from typing import Any

import pytest

from reput_broker.background import BackgroundBroker
from reput_client import Message
from support.faces import FACES, Face, scenario


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("topic_search", "rebalance"):
        monkeypatch.setattr(f"reput_client.consume.group.{module}.INTERVAL_S", 0.2)


async def send(
    face: Face, broker: BackgroundBroker, topic: str, *bodies: bytes, tag: str | None = None
) -> None:
    async with face.Producer(broker.address) as producer:
        await producer.send_batch([Message(topic, body, tag) for body in bodies], queue_id=0)


@scenario
async def test_topics_that_match_are_consumed_also_later_ones(face: Face, broker: BackgroundBroker) -> None:
    name = face.name
    await send(face, broker, f"{name}-orders-eu", b"eu")
    await send(face, broker, f"{name}-orders", b"not the whole name")
    await send(face, broker, f"old-{name}-orders-eu", b"nor this")
    pattern = re.compile(f"{name}-orders-.+")
    async with face.Consumer(broker.address, group=f"{name}-all", topics=pattern, start="latest") as consumer:
        assert consumer.topics == (f"{name}-orders-eu",)
        await send(face, broker, f"{name}-orders-us", b"us 0", b"us 1")
        seen: list[Any] = []
        while len(seen) < 2:
            seen += await consumer.receive_many(10, 10.0)
        assert [message.body for message in seen] == [b"us 0", b"us 1"], (
            "a new topic is read from its beginning"
        )
        assert {message.topic for message in seen} == {f"{name}-orders-us"}
        assert consumer.topics == (f"{name}-orders-eu", f"{name}-orders-us")


@scenario
async def test_a_deleted_topic_ends_nothing(face: Face, broker: BackgroundBroker) -> None:
    name = face.name
    for topic in (f"{name}-kept", f"{name}-gone"):
        await send(face, broker, topic, b"1")
    pattern = re.compile(f"{name}-(kept|gone)")
    async with face.Consumer(broker.address, group=f"{name}-some", topics=pattern) as consumer:
        seen: list[Any] = []
        while len(seen) < 2:
            seen += await consumer.receive_many(10, 10.0)
        async with face.Admin(broker.address) as admin:
            await admin.delete_topic(f"{name}-gone")
        await face.until(lambda: consumer.topics == (f"{name}-kept",))
        await send(face, broker, f"{name}-kept", b"2")
        (message,) = await consumer.receive_many(1, 10.0)
        assert message.body == b"2"
        await send(face, broker, f"{name}-gone", b"3")
        (message,) = await consumer.receive_many(1, 10.0)
        assert (message.topic, message.body) == (f"{name}-gone", b"3")


@scenario
async def test_topics_of_the_system_do_not_match(face: Face, broker: BackgroundBroker) -> None:
    group, topic = f"{face.name}-every", f"{face.name}-one"
    await send(face, broker, topic, b"0")
    async with face.Consumer(broker.address, group=group, topics=re.compile(".*"), tags="none") as consumer:
        assert topic in consumer.topics
        assert not [
            name for name in consumer.topics if name.startswith(("%", "rmq_sys_", "TBW102", "SCHEDULE"))
        ]
        assert "DefaultCluster" not in consumer.topics


@scenario
async def test_members_divide_the_topics_and_what_fails_comes_back(
    face: Face, broker: BackgroundBroker
) -> None:
    name = face.name
    options = {"group": f"{name}-two", "topics": re.compile(f"{name}-shared-.*")}
    async with (
        face.Consumer(broker.address, **options) as first,
        face.Consumer(broker.address, **options) as other,
    ):
        assert first.topics == ()
        assert first.topic == ""
        await send(face, broker, f"{name}-shared-a", b"a")
        wanted = {(f"{name}-shared-a", queue_id) for queue_id in range(4)}

        def assigned(consumer: Any) -> set[tuple[str, int]]:
            return {(queue.topic, queue.queue_id) for queue in consumer.assignment if queue.topic[0] != "%"}

        await face.until(lambda: len(assigned(first)) == len(assigned(other)) == 2)
        assert assigned(first) | assigned(other) == wanted
        owner = first if (f"{name}-shared-a", 0) in assigned(first) else other
        (message,) = await owner.receive_many(1, 10.0)
        await message.nack(1.0)
        seen: list[Any] = []
        while not seen:
            for consumer in (first, other):
                seen += await consumer.receive_many(1, 0.2)
        assert seen[0].body == b"a"
        assert seen[0].reconsume_times == 1


@scenario
async def test_a_pattern_has_one_filter(face: Face, broker: BackgroundBroker) -> None:
    name = face.name
    await send(face, broker, f"{name}-tagged-1", b"paid", tag="paid")
    await send(face, broker, f"{name}-tagged-2", b"new", tag="new")
    pattern = re.compile(f"{name}-tagged-.")
    async with face.Consumer(broker.address, group=f"{name}-paid", topics=pattern, tags="paid") as consumer:
        (message,) = await consumer.receive_many(1, 10.0)
        assert message.body == b"paid"


def test_a_pop_consumer_takes_names(face: Face) -> None:
    with pytest.raises(ValueError, match="a Consumer takes a pattern"):
        face.PopConsumer("127.0.0.1", group="g", topics=re.compile("t.*"))
