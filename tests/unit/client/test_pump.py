"""Callers and the background task alternate, over a socket pair and with waits that tests can see."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import anyio
import anyio.lowlevel
import pytest

from reput_client.transport.aio import AnyioRuntime
from reput_client.transport.connection import BrokerConnection
from reput_client.transport.pump import Pump
from reput_protocol.wire.channel import Waiter

pytestmark = pytest.mark.trio


def notify(waiter: Waiter, _data: bytes) -> None:
    waiter.notify()


class OneSocket:
    """Enough of a connection for a pump: what arrives finishes the waiting call."""

    has_unwritten = False

    def __init__(self, pump: Pump) -> None:
        self.sock, self.far_end = socket.socketpair()
        self.sock.setblocking(False)
        self.on_data: Callable[[bytes], None] = lambda _data: None
        self.reads = 0
        pump.add(cast("BrokerConnection", self))

    def read_ready(self) -> None:
        self.reads += 1
        try:
            data = self.sock.recv(100)
        except BlockingIOError:
            return
        self.on_data(data)

    def close(self) -> None:
        self.sock.close()
        self.far_end.close()


@pytest.fixture
def made() -> Iterator[list[OneSocket]]:
    sockets: list[OneSocket] = []
    yield sockets
    for one in sockets:
        one.close()


async def attend_for_ever(pump: Pump, waiter: Waiter) -> None:
    while True:
        waiter.ready = False
        await pump.attend(waiter, math.inf)


async def test_the_background_reads_where_no_caller_does(made: list[OneSocket]) -> None:
    pump = Pump(AnyioRuntime())
    one = OneSocket(pump)
    made.append(one)
    waiter = Waiter()
    one.on_data = lambda _data: waiter.notify()
    one.far_end.send(b"notification")
    await pump.attend(waiter, math.inf)
    assert waiter.ready


async def test_a_caller_takes_the_turn_from_the_background(made: list[OneSocket]) -> None:
    pump = Pump(AnyioRuntime())
    one = OneSocket(pump)
    made.append(one)
    background, caller = Waiter(), Waiter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attend_for_ever, pump, background)
        while not pump._attending:
            await anyio.sleep(0.005)
        assert not pump.reading, "while only the background reads, a caller may look for itself"
        for number in range(3):
            caller.ready = False
            reader: list[bool] = []

            def answered(_data: bytes, reader: list[bool] = reader) -> None:
                reader.append(pump.reading)
                caller.notify()

            one.on_data = answered

            async def answer() -> None:
                while not pump.reading:
                    await anyio.sleep(0.001)
                one.far_end.send(b"answer")

            tasks.start_soon(answer)
            assert await pump.wait(caller, math.inf), number
            assert reader == [True], "the caller itself has read its answer"
        while not pump._attending:
            await anyio.sleep(0.005)
        tasks.cancel_scope.cancel()


async def test_a_wait_can_be_ended_from_outside(made: list[OneSocket]) -> None:
    pump = Pump(AnyioRuntime())
    made.append(OneSocket(pump))
    waiter = Waiter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pump.wait, waiter, math.inf)
        while not pump.reading:
            await anyio.lowlevel.checkpoint()
        pump.wake(waiter)
    attended = Waiter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pump.attend, attended, math.inf)
        while not pump._attending:
            await anyio.sleep(0.005)
        pump.wake(attended)


async def test_the_background_waits_for_connections_without_turning_round(made: list[OneSocket]) -> None:
    pump = Pump(AnyioRuntime())
    background = Waiter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attend_for_ever, pump, background)
        await anyio.sleep(0.01)
        assert pump._resting is not None
        one = OneSocket(pump)
        made.append(one)
        heard = anyio.Event()
        one.on_data = lambda _data: heard.set()
        one.far_end.send(b"notification")
        await heard.wait()
        tasks.cancel_scope.cancel()


async def test_a_waiting_call_watches_only_the_existing_connections(made: list[OneSocket]) -> None:
    pump = Pump(AnyioRuntime())
    first, second, third = (OneSocket(pump) for _ in range(3))
    made.extend((first, second, third))
    pump.remove(cast("BrokerConnection", second))
    pump.remove(cast("BrokerConnection", second))  # no effect the second time
    second.far_end.send(b"nobody reads this")
    for one in (third, first):
        waiter = Waiter()
        one.on_data = partial(notify, waiter)
        one.far_end.send(b"answer")
        assert await pump.wait(waiter, math.inf)
        pump.remove(cast("BrokerConnection", one))
    assert second.reads == 0
