"""Members of the bundled client at a real broker, with every API, and administration of their group."""

from __future__ import annotations

import itertools
import logging
import urllib.request
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest

from reput_client import GiveBack, Message
from reput_protocol.errors import FilterRefused
from support.broker_process import BrokerProcess
from support.faces import FACES, Face, scenario

pytestmark = pytest.mark.process

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def quiet_broker(module_path: Path) -> Iterator[BrokerProcess]:
    """One that tells members of a reset only in the answers to their pulls."""
    environment = {"REPUT_GROUPS__RESET_TELLS_MEMBERS": "false"}
    with BrokerProcess(module_path / "quiet", environment=environment) as process:
        yield process


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


@pytest.fixture
def names() -> tuple[str, str]:
    """A topic and a group of the test's own."""
    number = next(NUMBERS)
    return f"topic{number}", f"group{number}"


async def fill(face: Face, address: str, topic: str, count: int, queues: int = 2) -> None:
    async with face.Admin(address, timeout_s=30.0) as admin:
        await admin.create_topic(topic, queues=queues)
    async with face.Producer(address, timeout_s=30.0) as producer:
        for queue_id in range(queues):
            await producer.send_batch(
                [Message(topic, b"%d" % n, properties={"n": str(n)}) for n in range(count)], queue_id=queue_id
            )


async def drain(consumer: Any, moment_s: float = 0.5) -> list[tuple[int, int]]:
    """Take what there is, and what comes within a moment."""
    found = []
    while (message := await consumer.receive(moment_s)) is not None:
        found.append((message.queue_id, message.queue_offset))
    return sorted(found)


def owned(consumer: Any, topic: str) -> list[int]:
    """Return which queues of a topic are a member's."""
    return [queue.queue_id for queue in consumer.assignment if queue.topic == topic]


def scraped(broker: BrokerProcess, name: str, group: str) -> float:
    """Return what /metrics says of a group."""
    page = urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/metrics", timeout=30.0).read().decode()
    values = [line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith(f'{name}{{group="{group}"')]
    return float(values[0]) if values else 0.0


def places(first: int, end: int) -> list[tuple[int, int]]:
    return [(queue_id, offset) for queue_id in range(2) for offset in range(first, end)]


@scenario
async def test_a_group_whose_offset_is_set_continues_there(
    face: Face, broker: BrokerProcess, names: tuple[str, str]
) -> None:
    topic, group = names

    await fill(face, broker.address, topic, 20)
    async with (
        face.Admin(broker.address, timeout_s=30.0) as admin,
        face.Consumer(broker.address, group=group, topic=topic, prefetch_messages=16) as consumer,
    ):
        assert await drain(consumer) == places(0, 20)
        await admin.reset_offsets(group, topic, offset=5)
        assert await drain(consumer) == places(5, 20)
        await admin.reset_offsets(group, topic, when=0)
        first = await consumer.receive(5.0)
        assert first.queue_offset == 0
        await admin.reset_offsets(group, topic, when=-1)
        rest = await drain(consumer)
        assert set(rest) <= set(places(0, 8)), "what it holds goes, but what was on its way to the application"
        await admin.reset_offsets(group, topic, shift=-1)
        assert await drain(consumer) == places(19, 20)
    async with face.PullConsumer(broker.address, group=group) as reader:
        assert [await reader.committed(topic, q) for q in range(2)] == [20, 20]


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
@scenario
async def test_a_member_commits_where_its_group_was_set_to(
    face: Face,
    told: bool,
    broker: BrokerProcess,
    quiet_broker: BrokerProcess,
    names: tuple[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, group = names
    address = (broker if told else quiet_broker).address
    caplog.set_level(logging.WARNING, "reput_client")
    await fill(face, address, topic, 250)
    async with (
        face.Admin(address, timeout_s=30.0) as admin,
        face.PullConsumer(address, group=group, timeout_s=30.0) as reader,
        face.Consumer(address, group=group, topic=topic, commit_interval_s=0.05) as consumer,
    ):

        async def committed() -> list[int | None]:
            return [await reader.committed(topic, queue_id) for queue_id in range(2)]

        async def until_committed(offset: int) -> None:
            with anyio.fail_after(20.0) if not face.is_blocking else nullcontext():
                while await committed() != [offset] * 2:
                    assert await drain(consumer, 0.05) == []

        assert await drain(consumer) == places(0, 250)
        await until_committed(250)
        for _ in range(2):  # nothing new is sent meanwhile
            await admin.reset_offsets(group, topic, offset=5)
            assert await drain(consumer) == places(5, 250)
            await until_committed(250)
        await admin.reset_offsets(group, topic, when=-1)  # where it is anyhow
        await until_committed(250)
        async with face.Producer(address) as producer:
            for queue_id in range(2):
                await producer.send(Message(topic, b"new"), queue_id=queue_id)
        assert await drain(consumer) == places(250, 251)
        await until_committed(251)
    assert [record.message for record in caplog.records] == []


@scenario
async def test_the_members_of_a_group_share_its_queues_and_the_broker_counts_them(
    face: Face, broker: BrokerProcess, names: tuple[str, str]
) -> None:
    topic, group = names

    await fill(face, broker.address, topic, 20)
    async with face.Consumer(broker.address, group=group, topic=topic) as first:
        async with face.Consumer(broker.address, group=group, topic=topic) as second:
            await face.until(lambda: [owned(first, topic), owned(second, topic)] in ([[0], [1]], [[1], [0]]))
            assert scraped(broker, "reput_consumer_members", group) == 2.0
            found = [*await drain(first), *await drain(second)]
            assert sorted(found) == places(0, 20), "each message once, whoever of them gets it"
        assert scraped(broker, "reput_consumer_members", group) == 1.0
    assert scraped(broker, "reput_consumer_members", group) == 0.0


@scenario
async def test_a_failed_message_is_redelivered_and_then_a_dead_letter(
    face: Face, broker: BrokerProcess, names: tuple[str, str]
) -> None:
    topic, group = names
    seen: list[tuple[str, bytes, int]] = []

    async def handle(message: Any) -> None:
        seen.append((message.topic, message.body, message.reconsume_times))
        if message.body == b"1":
            raise ValueError("no such order")

    await fill(face, broker.address, topic, 4, queues=1)
    policy = GiveBack(delay_level=1, attempts_max=2)
    async with (
        face.Admin(broker.address, timeout_s=30.0) as admin,
        face.Consumer(broker.address, group=group, topic=topic, on_failure=policy) as consumer,
    ):

        async def work() -> None:
            await consumer.run(handle)

        async def stop() -> None:
            try:
                await face.until(lambda: [times for _, body, times in seen if body == b"1"] == [0, 1, 2])
            finally:
                consumer.stop()

        await face.together(work, stop)
        assert await admin.max_offset(f"%DLQ%{group}", 0) == 1
    assert len(seen) == 6
    assert {place for place, _, _ in seen} == {topic}, "where it was sent, not where it came from now"
    async with face.PullConsumer(broker.address, group=group) as reader:
        assert await reader.committed(topic, 0) == 4
        assert await reader.committed(f"%RETRY%{group}", 0) == 2


@scenario
async def test_a_member_says_what_it_is_doing(face: Face, broker: BrokerProcess, names: tuple[str, str]) -> None:
    topic, group = names

    await fill(face, broker.address, topic, 10)
    async with (
        face.Admin(broker.address, timeout_s=30.0) as admin,
        face.Consumer(broker.address, group=group, topic=topic, tags="*", orderly=True) as consumer,
    ):
        message = await consumer.receive(5.0)
        info = await admin.running_info(group, consumer.client_id)
        assert info.properties["PROP_CONSUMEORDERLY"] == "true"
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert info.properties["PROP_CLIENT_VERSION"].startswith("reput")
        assert {data.topic for data in info.subscriptions} == {topic, f"%RETRY%{group}"}
        state = info.queues[message.queue]
        assert (state.cached_msg_min_offset, state.cached_msg_max_offset) == (0, 9)
        assert (state.cached_msg_count, state.locked, state.dropped) == (10, True, False)
        members = await admin.describe_group(group)
        assert [member.client_id for member in members.members] == [consumer.client_id]


@scenario
async def test_a_bad_expression_raises_when_the_group_is_entered(
    face: Face, broker: BrokerProcess, names: tuple[str, str]
) -> None:
    topic, group = names

    await fill(face, broker.address, topic, 10)
    with pytest.raises(FilterRefused, match="n >"):
        async with face.Consumer(broker.address, group=group, topic=topic, sql="n > ") as consumer:
            await consumer.receive(5.0)
    async with face.Consumer(broker.address, group=group, topic=topic, sql="n >= 8") as consumer:
        assert await drain(consumer) == places(8, 10)
    async with face.PullConsumer(broker.address, group=group) as reader:
        assert [await reader.committed(topic, q) for q in range(2)] == [10, 10]
