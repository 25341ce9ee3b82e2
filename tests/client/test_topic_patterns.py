"""Consumers of all topics that match a pattern, with every API."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from reput_broker.background import BackgroundBroker
from reput_client import Message
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.topic import BrokerData, QueueData, TopicList, TopicRoute
from support.faces import Face, scenario
from support.fake_pops import POP, Pops
from support.fakes import Answer, FakeBroker


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("subscriptions", "rebalance"):
        monkeypatch.setattr(f"reput_client.consume.group.{module}.INTERVAL_S", 0.2)


async def send(face: Face, real_broker: BackgroundBroker, topic: str, *bodies: bytes, tag: str | None = None) -> None:
    async with face.Producer(real_broker.address) as producer:
        await producer.send_batch([Message(topic, body, tag) for body in bodies], queue_id=0)


@scenario
async def test_topics_that_match_are_consumed_also_later_ones(face: Face, real_broker: BackgroundBroker) -> None:
    name = face.name
    await send(face, real_broker, f"{name}-orders-eu", b"eu")
    await send(face, real_broker, f"{name}-orders", b"not the whole name")
    await send(face, real_broker, f"old-{name}-orders-eu", b"nor this")
    pattern = re.compile(f"{name}-orders-.+")
    async with face.Consumer(real_broker.address, group=f"{name}-all", topics=pattern, start="latest") as consumer:
        assert consumer.topics == (f"{name}-orders-eu",)
        await send(face, real_broker, f"{name}-orders-us", b"us 0", b"us 1")
        seen: list[Any] = []
        while len(seen) < 2:
            seen += await consumer.receive_many(10, 10.0)
        assert [message.body for message in seen] == [b"us 0", b"us 1"], "a new topic is read from its beginning"
        assert {message.topic for message in seen} == {f"{name}-orders-us"}
        assert consumer.topics == (f"{name}-orders-eu", f"{name}-orders-us")


@scenario
async def test_a_deleted_topic_ends_nothing(face: Face, real_broker: BackgroundBroker) -> None:
    name = face.name
    for topic in (f"{name}-kept", f"{name}-gone"):
        await send(face, real_broker, topic, b"1")
    pattern = re.compile(f"{name}-(kept|gone)")
    async with face.Consumer(real_broker.address, group=f"{name}-some", topics=pattern) as consumer:
        seen: list[Any] = []
        while len(seen) < 2:
            seen += await consumer.receive_many(10, 10.0)
        async with face.Admin(real_broker.address) as admin:
            await admin.delete_topic(f"{name}-gone")
        await face.until(lambda: consumer.topics == (f"{name}-kept",))
        await send(face, real_broker, f"{name}-kept", b"2")
        (message,) = await consumer.receive_many(1, 10.0)
        assert message.body == b"2"
        await send(face, real_broker, f"{name}-gone", b"3")
        (message,) = await consumer.receive_many(1, 10.0)
        assert (message.topic, message.body) == (f"{name}-gone", b"3")


@scenario
async def test_topics_of_the_system_do_not_match(face: Face, real_broker: BackgroundBroker) -> None:
    group, topic = f"{face.name}-every", f"{face.name}-one"
    await send(face, real_broker, topic, b"0")
    async with face.Consumer(real_broker.address, group=group, topics=re.compile(".*"), tags="none") as consumer:
        assert topic in consumer.topics
        assert not [name for name in consumer.topics if name.startswith(("%", "rmq_sys_", "TBW102", "SCHEDULE"))]
        assert "DefaultCluster" not in consumer.topics


@scenario
async def test_members_divide_the_topics_and_what_fails_comes_back(face: Face, real_broker: BackgroundBroker) -> None:
    name = face.name
    options = {"group": f"{name}-two", "topics": re.compile(f"{name}-shared-.*")}
    async with (
        face.Consumer(real_broker.address, **options) as first,
        face.Consumer(real_broker.address, **options) as other,
    ):
        assert first.topics == ()
        assert first.topic == ""
        await send(face, real_broker, f"{name}-shared-a", b"a")
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
async def test_a_pattern_has_one_filter(face: Face, real_broker: BackgroundBroker) -> None:
    name = face.name
    await send(face, real_broker, f"{name}-tagged-1", b"paid", tag="paid")
    await send(face, real_broker, f"{name}-tagged-2", b"new", tag="new")
    pattern = re.compile(f"{name}-tagged-.")
    async with face.Consumer(real_broker.address, group=f"{name}-paid", topics=pattern, tags="paid") as consumer:
        (message,) = await consumer.receive_many(1, 10.0)
        assert message.body == b"paid"


@scenario
async def test_popped_topics_that_match_are_consumed_also_later_ones(face: Face, real_broker: BackgroundBroker) -> None:
    name = face.name
    await send(face, real_broker, f"{name}-pops-eu", b"before the group, which begins at the end", tag="paid")
    await send(face, real_broker, f"old-{name}-pops-eu", b"not the whole name", tag="paid")
    pattern = re.compile(f"{name}-pops-.+")
    async with face.PopConsumer(
        real_broker.address, group=f"{name}-popping", topics=pattern, tags="paid", start="latest"
    ) as consumer:
        assert consumer.topics == (f"{name}-pops-eu",)
        assert consumer.topic == f"{name}-pops-eu"
        assert await consumer.receive(wait_s=0.0) == []
        await send(face, real_broker, f"{name}-pops-us", b"us", tag="paid")
        await send(face, real_broker, f"{name}-pops-us", b"another tag")
        await send(face, real_broker, f"{name}-pops-eu", b"eu", tag="paid")
        seen: dict[str, bytes] = {}
        while len(seen) < 2:
            for message in await consumer.receive(wait_s=10.0):
                assert message.topic not in seen
                seen[message.topic] = message.body
                await message.ack()
        assert seen == {f"{name}-pops-eu": b"eu", f"{name}-pops-us": b"us"}, "a new topic is read from its beginning"
        assert sorted(consumer.topics) == [f"{name}-pops-eu", f"{name}-pops-us"]


@scenario
async def test_a_popped_topic_that_is_deleted_is_forgotten(face: Face, real_broker: BackgroundBroker) -> None:
    name = face.name
    for topic in (f"{name}-popkept", f"{name}-popgone"):
        await send(face, real_broker, topic, b"1")
    pattern = re.compile(f"{name}-pop(kept|gone)")
    async with face.PopConsumer(
        real_broker.address, group=f"{name}-pops", topics=pattern, wait_for_topic=False
    ) as consumer:
        seen: list[Any] = []
        while len(seen) < 2:
            seen += await consumer.receive(wait_s=10.0)
        for message in seen:
            await message.ack()
        async with face.Admin(real_broker.address) as admin:
            await admin.delete_topic(f"{name}-popgone")
        await send(face, real_broker, f"{name}-popkept", b"2")
        (message,) = await consumer.receive(wait_s=10.0)
        assert message.body == b"2"
        await message.ack()
        assert await consumer.receive(wait_s=0.0) == [], "which asks for both topics"
        assert consumer.topics == (f"{name}-popkept",)
        await send(face, real_broker, f"{name}-popgone", b"3")
        (message,) = await consumer.receive(wait_s=10.0)
        assert (message.topic, message.body) == (f"{name}-popgone", b"3")


NOT_THERE = Answer(ResponseCode.TOPIC_NOT_EXIST, remark="UNKNOWN_TOPIC: not here")


@scenario
async def test_a_popped_topic_of_unknown_state_does_not_keep_others_back(face: Face) -> None:
    with FakeBroker(queues=1) as broker:
        pops = Pops(broker)
        broker.behave(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Answer(body=TopicList(["t", "u"]).to_json()))
        async with face.PopConsumer(broker.address, group="g", topics=re.compile("t|u"), orderly=False) as consumer:
            assert await consumer.receive(wait_s=0.0) == []
            broker.behave(POP, lambda header, body: NOT_THERE if header.ext["topic"] == "u" else pops.pop(header, body))
            # Whether there is a master that knows better is not known either.
            broker.behave(RequestCode.GET_BROKER_CLUSTER_INFO, Answer(ResponseCode.SYSTEM_ERROR, remark="away"))
            pops.waiting = [b"0", b"1"]
            for _ in range(2):
                (message,) = await consumer.receive(1, wait_s=10.0)
                await message.ack()
            assert await consumer.receive(wait_s=0.0) == []
            assert consumer.topics == ("t", "u")


@scenario
async def test_messages_are_popped_without_delay_while_the_topics_cannot_be_listed(face: Face) -> None:
    with FakeBroker(queues=1) as home, FakeBroker(queues=1) as other:
        addresses = {"home": home, "other": other}
        route = TopicRoute(
            [QueueData(name, 1, 1, 6, 0) for name in addresses],
            [BrokerData("c", name, {0: broker.address}) for name, broker in addresses.items()],
        )
        for name, broker in addresses.items():
            broker.broker_name = name
            broker.behave(RequestCode.GET_ROUTEINFO_BY_TOPIC, Answer(body=route.to_json()))
        home.behave(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, Answer(body=TopicList(["t"]).to_json()))
        Pops(home)
        pops = Pops(other)
        async with face.PopConsumer(home.address, group="g", topics=re.compile("t"), orderly=False) as consumer:
            assert await consumer.receive(wait_s=0.0) == []
            home.stop()
            await face.sleep(0.3)  # the topics are due to be listed
            for number in range(10):
                pops.waiting = [b"%d" % number]
                began_at = time.monotonic()
                (message,) = await consumer.receive(1, wait_s=10.0)
                assert time.monotonic() - began_at < 1.0
                await message.ack()
                await face.sleep(0.1)


@scenario
async def test_a_handler_gets_popped_messages_of_a_topic_that_is_created_meanwhile(
    face: Face, real_broker: BackgroundBroker
) -> None:
    name = face.name
    seen: list[bytes] = []

    async def handle(message: Any) -> None:
        seen.append(message.body)
        consumer.stop()

    async with face.PopConsumer(
        real_broker.address, group=f"{name}-handling", topics=re.compile(f"{name}-handled-.*")
    ) as consumer:
        assert consumer.topics == ()
        assert consumer.topic == ""

        async def create() -> None:
            await send(face, real_broker, f"{name}-handled-a", b"a")

        await face.together(lambda: consumer.run(handle), create)
    assert seen == [b"a"]
