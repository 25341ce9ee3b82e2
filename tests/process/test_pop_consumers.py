"""POP consumers of brokers that are killed, or away for a while. One broker serves the programs of all APIs at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from reput_client import BrokerNotFound, Message, TopicNotFound
from reput_client.blocking import Admin, Producer, SubscriptionGroupConfig
from support.broker_process import BrokerProcess, free_port
from support.faces import FACES, Face, finish
from support.waiting import wait_until

pytestmark = [pytest.mark.process, pytest.mark.fault]

TOPIC = "orders"
INVISIBLE_S = 60.0
"""Longer than any of these tests takes: what comes again does not come for its time."""


@contextmanager
def programs(*works: Callable[[], Coroutine[Any, Any, None]], faces: list[Face]) -> Iterator[None]:
    """Run each work in a thread on its API; at the end wait for all, and raise the first failure."""
    failures: list[BaseException] = []

    def run(face: Face, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            finish(work()) if face.is_blocking else anyio.run(work, backend=face.name)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=each) for each in zip(faces, works, strict=True)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]


async def until_moved(face: Face, address: str, group: str, topic: str, offset: int) -> None:
    """Wait until the group's offset follows a pop: a kill before that lets the group pop the messages again."""
    async with face.PullConsumer(address, group=group) as consumer:
        while await consumer.committed(topic, 0) != offset:
            await face.sleep(0.01)


def send_once_known(producer: Producer, message: Message) -> None:
    """Send a message of a new topic, which name services hear of a little later."""
    while True:
        try:
            producer.send(message)
        except (TopicNotFound, BrokerNotFound):
            time.sleep(0.05)
        else:
            return


def test_a_message_is_settled_after_a_kill_of_its_broker(tmp_path: Path) -> None:
    popped: list[str] = []
    killed = threading.Event()

    async def program(face: Face, address: str) -> None:
        group = face.name
        async with face.PopConsumer(address, group=group, topic=TOPIC, timeout_s=20.0) as consumer:
            messages = await consumer.receive(invisible_s=INVISIBLE_S)
            assert [message.body for message in messages] == [b"acknowledged", b"given back", b"kept"]
            await until_moved(face, address, group, TOPIC, 3)
            popped.append(group)
            await face.until(killed.is_set)
            await messages[0].ack()
            await messages[2].extend(INVISIBLE_S)
            await messages[1].nack()
            (again,) = await consumer.receive(wait_s=30.0)
            assert (again.body, again.delivery_attempt) == (b"given back", 2)
            await consumer.ack([again, messages[2]])
            assert await consumer.receive(wait_s=0.0) == []

    faces = [Face(name) for name in FACES]
    with BrokerProcess(tmp_path / "data") as broker:
        with Admin(broker.address) as admin, Producer(broker.address, timeout_s=20.0) as producer:
            for name in FACES:  # see below
                admin.put_group(SubscriptionGroupConfig(name))
            producer.send_batch(
                [Message(TOPIC, body) for body in (b"acknowledged", b"given back", b"kept")], queue_id=0
            )
        with programs(*(partial(program, face, broker.address) for face in faces), faces=faces):
            wait_until(lambda: len(popped) == len(faces))
            broker.kill()
            broker.start()
            killed.set()


def test_handlers_go_on_over_a_kill_and_their_messages_are_acknowledged(tmp_path: Path) -> None:
    """What was in hand is acknowledged at the broker that has started again."""
    bodies = [b"%d" % number for number in range(200)]
    faces = [Face(name) for name in FACES for _ in range(2)]
    groups = {f"{face.name}-{index}": (face, (1, 8)[index % 2]) for index, face in enumerate(faces)}
    handled: dict[str, list[bytes]] = {group: [] for group in groups}

    async def program(face: Face, address: str, group: str, concurrency: int) -> None:
        async def handle(message: Any) -> None:
            handled[group].append(message.body)
            await face.sleep(0.005)

        async with face.PopConsumer(address, group=group, topic=TOPIC, timeout_s=20.0) as consumer:

            async def work() -> None:
                await consumer.run(handle, concurrency=concurrency, invisible_s=15.0)

            async def stop() -> None:
                deadline = time.monotonic() + 60.0
                await face.until(lambda: set(handled[group]) == set(bodies) or time.monotonic() > deadline)
                consumer.stop()

            await face.together(work, stop)
        assert set(handled[group]) == set(bodies)
        # Those of the last pops before the kill come again: at once, if the check point was not dispatched yet; when
        # their time is over, if the kill has taken the answer. A member pops ahead, so there may be two.
        async with face.PopConsumer(address, group=group, topic=TOPIC, timeout_s=20.0) as other:
            left = await other.receive(wait_s=1.0)
        again = [*handled[group], *(message.body for message in left)]
        assert len(again) <= len(bodies) + 2 * 32, "nothing but the last pops comes again"

    with BrokerProcess(tmp_path / "data") as broker:
        with Producer(broker.address, timeout_s=20.0) as producer:
            producer.send_batch([Message(TOPIC, body) for body in bodies], queue_id=0)
        works = [partial(program, face, broker.address, group, count) for group, (face, count) in groups.items()]
        with programs(*works, faces=faces):
            wait_until(lambda: all(len(bodies) >= 50 for bodies in handled.values()))
            broker.kill()
            time.sleep(0.5)
            broker.start()


def test_a_broker_that_is_away_delays_no_messages_of_others(tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    first: dict[str, dict[str, Any]] = {name: {} for name in FACES}
    found: dict[str, list[bytes]] = {name: [] for name in FACES}
    ready: list[str] = []
    is_back = threading.Event()

    def broker(number: int) -> BrokerProcess:
        environment = {
            "REPUT_BROKER_NAME": f"broker-{number}",
            "REPUT_NAME_SERVERS": addresses,
            "REPUT_TOPICS__AUTO_CREATE": "false",
        }
        return BrokerProcess(tmp_path / str(number), port=ports[number], environment=environment)

    async def program(face: Face) -> None:
        group = face.name
        popped, bodies = first[group], found[group]
        async with face.PopConsumer(addresses, group=group, topics=["t-0", "t-1"]) as consumer:
            while len(popped) < 2:
                for message in await consumer.receive(wait_s=5.0):
                    popped[message.broker_name] = message
            await until_moved(face, f"127.0.0.1:{ports[1]}", group, "t-1", 1)
            ready.append(group)
            await popped["broker-0"].ack()
            deadline = time.monotonic() + 90.0
            while b"back" not in bodies and time.monotonic() < deadline:
                for message in await consumer.receive(wait_s=0.5):
                    bodies.append(message.body)
                    await message.ack()
                if is_back.is_set() and not popped["broker-1"].is_acknowledged:
                    await popped["broker-1"].ack()

    faces = [Face(name) for name in FACES]
    with broker(0), broker(1) as second:
        with Admin(addresses) as admin, Producer(addresses, timeout_s=20.0) as producer:
            for name in FACES:  # a group that was created by a pop is forgotten if the kill follows at once
                admin.put_group(SubscriptionGroupConfig(name))
            for number in (0, 1):
                admin.create_topic(f"t-{number}", queues=1, brokers=[f"broker-{number}"])
                send_once_known(producer, Message(f"t-{number}", b"first"))
            with programs(*(partial(program, face) for face in faces), faces=faces):
                wait_until(lambda: len(ready) == len(faces))
                second.kill()
                for number in range(5):
                    producer.send(Message("t-0", b"%d" % number))
                    began = time.monotonic()
                    wait_until(lambda n=number + 1: all(len(each) == n for each in found.values()))  # type: ignore[misc]
                    assert time.monotonic() - began < 2.0
                second.start()
                second.wait_ready()
                is_back.set()
                send_once_known(producer, Message("t-1", b"back"))
        assert all(each["broker-1"].is_acknowledged for each in first.values())
