"""A broker that takes a connection and never reads from it does not delay callers of another broker."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from reput_client import Message
from reput_protocol.codes import RequestCode
from reput_protocol.commands.topic import BrokerData, QueueData, TopicRoute
from reput_protocol.errors import ReputError
from reput_protocol.wire.header import Header
from support.faces import Face, scenario
from support.fakes import Answer, FakeBroker

TIMEOUT_S = 2.0


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """One that answers, and routes topic `deaf` to another."""
    with socket.create_server(("127.0.0.1", 0)) as listener, FakeBroker(queues=1) as broker:
        addresses = {"deaf": f"127.0.0.1:{listener.getsockname()[1]}", "good": broker.address}

        def route(header: Header, body: memoryview) -> Answer:
            name = str(header.ext["topic"])
            found = TopicRoute(
                queue_datas=[QueueData(name, 1, 1, 6, 0)], broker_datas=[BrokerData("c", name, {0: addresses[name]})]
            )
            return Answer(body=found.to_json())

        broker.behave(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
        yield broker


@scenario
async def test_sends_to_others_go_on(face: Face, broker: FakeBroker) -> None:

    async with face.Producer(broker.address, ack="page_cache", timeout_s=TIMEOUT_S) as producer:
        sent: list[int] = []

        async def to_the_deaf() -> None:
            with suppress(ReputError):
                await producer.send(Message("deaf", bytes(7_000_000)))

        async def to_the_other() -> None:
            await face.sleep(0.1)
            for _ in range(20):
                receipt = await producer.send(Message("good", b"x"))
                sent.append(receipt.queue_offset)

        await face.together(to_the_deaf, to_the_other)
        # The partly written data is still there, and no other task writes now.
        await to_the_other()
        assert sent == list(range(40))
