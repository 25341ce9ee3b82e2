"""A topic or a group can be used without creating it first."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

import pytest
import trio

from reput_broker import Broker, BrokerConfig
from reput_client import Admin, Consumer, Message, Producer, ReceivedMessage
from reput_protocol.errors import TopicNotFound
from support.retention import FakeMachine


def config(data_dir: Path, **topics: object) -> BrokerConfig:
    return BrokerConfig(data_dir=data_dir, port=0, store={"commit_log_file_size": "1 MiB"}, topics=topics)


@pytest.mark.trio
@pytest.mark.parametrize("queues", [1, 3, 4, 16])
async def test_the_first_messages_to_new_topics_are_stored(tmp_path: Path, queues: int) -> None:
    """A broker with smaller topics has fewer queues than the template's four."""
    async with Broker(config(tmp_path, default_queues=queues)) as broker, Producer(broker.address) as producer:
        for number in range(8):
            receipt = await producer.send(Message(f"new-{number}", b"x"))
            assert receipt.queue_offset == 0
            assert (await producer.send_batch([Message(f"batch-{number}", b"x")]))[0].queue_offset == 0
            producer_posted = await producer.post(Message(f"posted-{number}", b"x"))
            assert (await producer_posted).queue_offset == 0


async def time_flies(machine: FakeMachine) -> None:
    """A second every 10 ms."""
    while True:
        await trio.sleep(0.01)
        machine.now_ms += 1000


@pytest.mark.trio
async def test_the_first_retry_of_a_new_group_comes(tmp_path: Path) -> None:
    machine = FakeMachine()
    async with (
        Broker(config(tmp_path), surroundings=machine.surroundings()) as broker,
        Producer(broker.address) as producer,
    ):
        await producer.send(Message("t", b"x"))
        tries: list[int] = []

        async def handle(message: ReceivedMessage) -> None:
            tries.append(message.delivery_attempt)
            if len(tries) == 1:
                raise ValueError("not yet")
            consumer.stop()

        async with Consumer(broker.address, group="new", topic="t") as consumer:
            with trio.fail_after(20):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(time_flies, machine)
                    await consumer.run(handle)
                    nursery.cancel_scope.cancel()
        assert tries == [1, 2]


@pytest.mark.trio
@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_a_consumer_may_come_before_its_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, start: Literal["earliest", "latest"]
) -> None:
    """It logs a warning, waits, and gets everything: all was sent after it joined."""
    async with Broker(config(tmp_path)) as broker:
        async with Consumer(broker.address, group="g", topics=["t", "u"], start=start) as consumer:
            waiting = [record.message for record in caplog.records if record.levelno == logging.WARNING]
            assert [line.split(" does")[0] for line in waiting] == ["topic t", "topic u"]
            assert await consumer.receive(0.01) is None
            async with Producer(broker.address) as producer:
                for number in range(5):
                    await producer.send(Message("t", b"%d" % number))
            with trio.fail_after(20):
                bodies = {(await _next(consumer)) for _ in range(5)}
        assert bodies == {b"%d" % number for number in range(5)}


async def _next(consumer: Consumer) -> bytes:
    message = await consumer.receive()
    assert message is not None
    return message.body


@pytest.mark.trio
async def test_a_consumer_does_not_wait_if_told_so(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker:
        with pytest.raises(TopicNotFound):
            async with Consumer(broker.address, group="g", topic="t", wait_for_topic=False):
                pass


@pytest.mark.trio
async def test_a_topic_that_is_deleted_is_not_waited_for(tmp_path: Path) -> None:
    """A deleted topic is an error."""
    async with (
        Broker(config(tmp_path)) as broker,
        Admin(broker.address) as admin,
        Consumer(broker.address, group="g", topic="t") as consumer,
    ):
        await admin.create_topic("t")
        while not any(queue.topic == "t" for queue in consumer.assignment):
            await consumer.receive(0.05)
        await admin.delete_topic("t")
        with trio.fail_after(30), pytest.raises(TopicNotFound):
            await consumer.receive()
