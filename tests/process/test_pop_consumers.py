"""POP consumers of brokers that are killed, or away for a while."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from reput_client import BrokerNotFound, Message, TopicNotFound
from support.broker_process import BrokerProcess, free_port
from support.faces import FACES, Face, scenario

pytestmark = [pytest.mark.process, pytest.mark.fault]

TOPIC = "orders"


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


async def send(face: Face, address: str, *bodies: bytes) -> None:
    async with face.Producer(address, timeout_s=20.0) as producer:
        for body in bodies:
            await producer.send(Message(TOPIC, body), queue_id=0)


async def until_moved(face: Face, address: str, topic: str, offset: int) -> None:
    """Wait until the group's offset follows a pop: a kill before that lets the group pop the messages again."""
    async with face.PullConsumer(address, group="g") as consumer:
        while await consumer.committed(topic, 0) != offset:
            await face.sleep(0.01)


async def send_once_known(face: Face, producer: Any, message: Message) -> None:
    """Send a message of a new topic, which name services hear of a little later."""
    while True:
        try:
            await producer.send(message)
        except (TopicNotFound, BrokerNotFound):
            await face.sleep(0.05)
        else:
            return


@scenario
async def test_a_message_is_acknowledged_after_a_kill_of_its_broker(face: Face, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        await send(face, broker.address, b"acknowledged", b"not")
        async with face.PopConsumer(broker.address, group="g", topic=TOPIC, timeout_s=20.0) as consumer:
            popped = await consumer.receive(invisible_s=15.0)
            assert [message.body for message in popped] == [b"acknowledged", b"not"]
            await until_moved(face, broker.address, TOPIC, 2)
            broker.kill()
            broker.start()
            await popped[0].ack()
            (again,) = await consumer.receive(wait_s=60.0)
            assert (again.body, again.delivery_attempt) == (b"not", 2)
            await again.ack()
            assert await consumer.receive(wait_s=1.0) == []


@pytest.mark.parametrize("concurrency", [1, 8])
@scenario
async def test_handlers_go_on_over_a_kill_and_their_messages_are_acknowledged(
    face: Face, tmp_path: Path, concurrency: int
) -> None:
    """What was in hand is acknowledged at the broker that has started again."""
    bodies = [b"%d" % number for number in range(200)]
    handled: list[bytes] = []
    with BrokerProcess(tmp_path / "data") as broker:
        await send(face, broker.address, *bodies)

        async def handle(message: Any) -> None:
            handled.append(message.body)
            await face.sleep(0.005)

        consumer = face.PopConsumer(broker.address, group="g", topic=TOPIC)

        async def work() -> None:
            await consumer.run(handle, concurrency=concurrency, invisible_s=30.0)

        async def kill() -> None:
            await face.until(lambda: len(handled) >= 50)
            broker.kill()
            await face.sleep(1.0)
            broker.start()
            deadline = time.monotonic() + 60.0
            await face.until(lambda: set(handled) == set(bodies) or time.monotonic() > deadline)
            consumer.stop()

        async with consumer:
            await face.together(work, kill)
        assert set(handled) == set(bodies)
        # Those of a pop whose answer the kill has taken come when their time is over.
        assert len(handled) <= len(bodies) + 32
        async with face.PopConsumer(broker.address, group="g", topic=TOPIC) as other:
            assert await other.receive(wait_s=1.0) == []


@scenario
async def test_a_broker_that_is_away_delays_no_messages_of_others(face: Face, tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)

    def broker(number: int) -> BrokerProcess:
        environment = {
            "REPUT_BROKER_NAME": f"broker-{number}",
            "REPUT_NAME_SERVERS": addresses,
            "REPUT_TOPICS__AUTO_CREATE": "false",
        }
        return BrokerProcess(tmp_path / str(number), port=ports[number], environment=environment)

    with broker(0), broker(1) as second:
        async with (
            face.Admin(addresses) as admin,
            face.Producer(addresses) as producer,
            face.PopConsumer(addresses, group="g", topics=["t-0", "t-1"]) as consumer,
        ):
            for number in (0, 1):
                await admin.create_topic(f"t-{number}", queues=1, brokers=[f"broker-{number}"])
                await send_once_known(face, producer, Message(f"t-{number}", b"first"))
            popped: dict[str, Any] = {}
            while len(popped) < 2:
                popped |= {one.broker_name: one for one in await consumer.receive(wait_s=5.0)}
            await until_moved(face, second.address, "t-1", 1)
            second.kill()
            await popped["broker-0"].ack()
            for number in range(5):
                await producer.send(Message("t-0", b"%d" % number))
                began = time.monotonic()
                (message,) = await consumer.receive(wait_s=10.0)
                assert message.body == b"%d" % number
                assert time.monotonic() - began < 2.0
                await message.ack()
            second.start()
            second.wait_ready()
            await popped["broker-1"].ack()
            async with face.Producer(second.address, timeout_s=20.0) as other:
                await send_once_known(face, other, Message("t-1", b"back"))
            (message,) = await consumer.receive(wait_s=20.0)
            assert (message.body, message.broker_name) == (b"back", "broker-1")
            await message.ack()
