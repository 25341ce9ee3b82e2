"""Event loops of asyncio that cannot watch sockets or take signals, as the default one of Windows."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from reput_client import Message, SendOutcomeUnknown
from reput_protocol.codes import RequestCode
from support.faces import Face, scenario
from support.fakes import SILENCE, FakeBroker


class LoopOfWindows(asyncio.SelectorEventLoop):
    """Has what `asyncio.ProactorEventLoop` has: these methods raise NotImplementedError."""

    add_reader = asyncio.AbstractEventLoop.add_reader
    remove_reader = asyncio.AbstractEventLoop.remove_reader
    add_writer = asyncio.AbstractEventLoop.add_writer
    remove_writer = asyncio.AbstractEventLoop.remove_writer
    add_signal_handler = asyncio.AbstractEventLoop.add_signal_handler
    remove_signal_handler = asyncio.AbstractEventLoop.remove_signal_handler


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.fixture
def face() -> Face:
    anyio.run(_wait_once, backend_options={"loop_factory": LoopOfWindows})
    return Face("asyncio", LoopOfWindows)


async def _wait_once() -> None:
    """Make anyio begin the thread that waits for sockets, which lives as long as the process."""
    ours, other = socket.socketpair()
    with ours, other:
        other.send(b"x")
        await anyio.wait_readable(ours)


@scenario
async def test_messages_are_sent_and_consumed(face: Face, broker: FakeBroker) -> None:
    bodies = [b"%d" % number for number in range(64)]
    async with face.Producer(broker.address) as producer:

        async def send(some: list[bytes]) -> None:
            for body in some:
                await producer.send(Message("t", body), queue_id=0)

        await face.together(lambda: send(bodies[:16]), lambda: send(bodies[16:32]))
        await face.post_all(producer, [Message("t", body) for body in bodies[32:]], queue_id=0)
    async with face.PullConsumer(broker.address, group="g") as puller:
        found = await puller.pull("t", 0, 0, max_messages=100)
        assert sorted(message.body for message in found.messages) == sorted(bodies)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        seen = [message.body for message in await consumer.receive_many(64, 10.0)]
        assert seen == [message.body for message in found.messages][: len(seen)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@scenario
async def test_run_ends_on_a_signal(face: Face, broker: FakeBroker, number: int) -> None:
    async with face.Producer(broker.address) as producer:
        await producer.send(Message("t", b"m"), queue_id=0)
    before = signal.getsignal(number)
    async with face.Consumer(broker.address, group="g", topic="t", commit_interval_s=60.0) as consumer:

        async def handle(_message: Any) -> None:
            signal.raise_signal(number)

        await consumer.run(handle)
        assert broker.committed["g", "t", 0] == 1
    assert signal.getsignal(number) is before


@scenario
async def test_a_silent_broker_is_given_up_and_its_return_noticed(face: Face, broker: FakeBroker) -> None:
    async with face.Producer(broker.address, timeout_s=0.3) as producer:
        await producer.send(Message("t", b"0"), queue_id=0)
        broker.behave(RequestCode.PUT_MESSAGE, SILENCE)
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(Message("t", b"1"), queue_id=0)
        broker.behave(RequestCode.PUT_MESSAGE, None)
        await producer.send(Message("t", b"2"), queue_id=0, timeout_s=10.0)
