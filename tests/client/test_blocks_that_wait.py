"""Blocks that wait behind others of their queue: when they are sent, and when given up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import anyio
import anyio.lowlevel
import pytest

from reput_client import Message, Producer
from reput_client.blocking import Producer as BlockingProducer
from reput_client.errors import RequestTimeout
from reput_client.transport.connection import BrokerConnection
from reput_protocol.codes import RequestCode
from reput_protocol.wire.header import Header
from support.fakes import SILENCE, Answer, FakeBroker

BACKENDS = ("trio", "asyncio")


def puts_answered_by(broker: FakeBroker, answered: int, delay_s: float) -> Callable[[Header, memoryview], Answer]:
    """Answer the first `answered` puts, the second of them late."""

    def behave(header: Header, body: memoryview) -> Answer:
        count = broker.count(RequestCode.PUT_MESSAGE)
        if count == 2:
            time.sleep(delay_s)
        return broker.put(header, body) if count <= answered else SILENCE

    return behave


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_block_leaves_when_the_one_before_it_is_answered_though_the_caller_of_that_one_is_busy(
    broker: FakeBroker, backend: str
) -> None:
    broker.behave(RequestCode.PUT_MESSAGE, puts_answered_by(broker, 1000, 0.3))
    broker.behave(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        lambda header, _: SILENCE if header.ext["topic"] == "silent" else broker._route(str(header.ext["topic"])),
    )

    async def main() -> None:
        async with Producer(broker.address, timeout_s=20.0) as producer:
            await producer.send_batch([Message("t", b"0")], queue_id=1)
            with anyio.fail_after(10):
                async with anyio.create_task_group() as tasks:

                    async def busy() -> None:
                        await producer.post(Message("t", b"1"), queue_id=0)
                        await producer.post(Message("silent", b"2"), queue_id=0)

                    tasks.start_soon(busy)
                    while broker.count(RequestCode.PUT_MESSAGE) < 2:
                        await anyio.sleep(0.01)
                    await producer.send_batch([Message("t", b"behind")], queue_id=0)
                    tasks.cancel_scope.cancel()

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_send_returns_though_another_caller_handles_its_answer(broker: FakeBroker, backend: str) -> None:
    """A caller that does not wait, such as `post`, does a step while the one that drives sleeps."""
    may_answer = threading.Event()

    def behave(header: Header, body: memoryview) -> Answer:
        if broker.count(RequestCode.PUT_MESSAGE) == 2:
            assert may_answer.wait(10)
        return broker.put(header, body)

    broker.behave(RequestCode.PUT_MESSAGE, behave)

    async def main() -> None:
        async with Producer(broker.address, timeout_s=20.0) as producer:
            await producer.send(Message("t", b"0"), queue_id=0)
            with anyio.fail_after(10):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(partial(producer.send, Message("t", b"1"), queue_id=0))
                    while broker.count(RequestCode.PUT_MESSAGE) < 2:
                        await anyio.lowlevel.checkpoint()
                    may_answer.set()
                    sender = producer._sender
                    while not sender._news.ready:  # without a checkpoint, so that the other task does not read
                        producer._session.poll(to_the_end=True)
                    sender.step()

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_block_far_behind_is_given_up_when_its_time_is_over(broker: FakeBroker, backend: str) -> None:
    broker.behave(RequestCode.PUT_MESSAGE, puts_answered_by(broker, 11, 0.8))

    async def main() -> None:
        async with Producer(broker.address, timeout_s=1000.0, retries=1) as producer:
            await producer.send_batch([Message("t", b"0")], queue_id=1)
            with anyio.fail_after(10):
                async with anyio.create_task_group() as tasks:
                    for number in range(70):
                        block = [Message("t", b"%d" % number)]
                        tasks.start_soon(partial(producer.send_batch, block, queue_id=0))
                    await anyio.sleep(0.05)
                    with pytest.raises(RequestTimeout):
                        await producer.send_batch([Message("t", b"last")], queue_id=0, timeout_s=0.5)
                    tasks.cancel_scope.cancel()

    anyio.run(main, backend=backend)


def test_an_interrupt_while_a_block_is_started_is_that_interrupt(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BlockingProducer(broker.address, timeout_s=2.0) as producer:
        producer.send_batch([Message("t", b"0")], queue_id=0)

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(BrokerConnection, "start_template", interrupted)
            with pytest.raises(KeyboardInterrupt):
                producer.send_batch([Message("t", b"1"), Message("t", b"2")], queue_id=0)
