"""Cancellation at every await of every operation: nothing stays open and the client stays usable.

The runtime counts its waits; an operation is repeated with the caller cancelled at the first, the second, ... wait
until it ends before the cancellation.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import pytest

from reput_client import Consumer, Message, Producer, PullConsumer
from reput_client.transport.aio import AnyioRuntime
from reput_client.transport.runtime import Event
from reput_protocol.codes import RequestCode
from reput_protocol.wire.header import Header
from support.faces import Face, scenario
from support.fakes import SILENCE, Answer, FakeBroker

T = TypeVar("T")


class CancellingRuntime(AnyioRuntime):
    """Cancels `scope` at wait number `cancel_at`."""

    def __init__(self) -> None:
        super().__init__()
        self.scope: anyio.CancelScope | None = None
        self.cancel_at = 0
        self.waits = 0

    def arm(self, scope: anyio.CancelScope, cancel_at: int) -> None:
        self.scope, self.cancel_at, self.waits = scope, cancel_at, 0

    def tick(self) -> None:
        self.waits += 1
        if self.scope is not None and self.waits == self.cancel_at:
            self.scope.cancel()

    def event(self) -> Event:
        event, tick = super().event(), self.tick

        class Ticking(Event):
            def set(self) -> None:
                event.set()

            async def wait(self, timeout_s: float) -> None:
                tick()
                await event.wait(timeout_s)

        return Ticking()

    def sleeper(self) -> Any:
        self.tick()
        return super().sleeper()

    async def pause(self) -> None:
        self.tick()
        await super().pause()

    async def sleep(self, seconds: float) -> None:
        self.tick()
        await super().sleep(seconds)

    async def wait_readable(
        self, sockets: tuple[socket.socket, ...], timeout_s: float, read: Callable[[], object]
    ) -> None:
        self.tick()
        await super().wait_readable(sockets, timeout_s, read)

    async def wait_writable(self, sock: socket.socket, timeout_s: float) -> None:
        self.tick()
        await super().wait_writable(sock, timeout_s)


Operation = Callable[[Any], Awaitable[object]]


async def _send(client: Producer) -> object:
    return await client.send(Message("t", b"x"))


async def _send_batch(client: Producer) -> object:
    return await client.send_batch([Message("t", b"x" * 1000)] * 5)


async def _send_together(client: Producer) -> object:
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(_send, client)
    return None


async def _pull(client: PullConsumer) -> object:
    return await client.pull("t", 0, 0, wait_s=0.0)


async def _commit(client: PullConsumer) -> object:
    await client.commit("t", 0, 1)
    return await client.committed("t", 0)


async def _receive(client: Consumer) -> object:
    return [await client.receive(5.0) for _ in range(3)]


async def _run(client: Consumer) -> object:
    handled: list[object] = []

    async def handle(message: object) -> None:
        await anyio.lowlevel.checkpoint()
        handled.append(message)
        if len(handled) == 40:
            await client.aclose()

    await client.run(handle, concurrency=3)
    return handled


async def _send_many(client: Producer) -> object:
    return await client.send_many("t", [b"x"] * 20, batch=2, in_flight=4)


def on(runtime: CancellingRuntime, kind: type[T]) -> type[T]:
    """Return a client class that waits by `runtime`."""
    return type(kind.__name__, (kind,), {"_new_runtime": staticmethod(lambda: runtime)})


CASES: dict[str, tuple[Callable[[str, CancellingRuntime], Any], Operation]] = {
    "send": (lambda address, runtime: on(runtime, Producer)(address), _send),
    "send_lingering": (lambda address, runtime: on(runtime, Producer)(address, linger_s=0.01), _send_together),
    "send_together": (lambda address, runtime: on(runtime, Producer)(address), _send_together),
    "send_batch": (lambda address, runtime: on(runtime, Producer)(address, batch_bytes=2000), _send_batch),
    "send_many": (lambda address, runtime: on(runtime, Producer)(address), _send_many),
    "pull": (lambda address, runtime: on(runtime, PullConsumer)(address, group="g"), _pull),
    "commit": (lambda address, runtime: on(runtime, PullConsumer)(address, group="g"), _commit),
    "receive": (lambda address, runtime: on(runtime, Consumer)(address, group="g", topic="t"), _receive),
    "run": (lambda address, runtime: on(runtime, Consumer)(address, group="g", topic="t"), _run),
}


@pytest.fixture(params=["trio", "asyncio"])
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("opened", [False, True], ids=["connecting", "connected"])
@scenario
async def test_cancelled_at_every_await(face: Face, case: str, opened: bool, broker: FakeBroker) -> None:
    make, operation = CASES[case]
    async with Producer(broker.address) as producer:
        await producer.send_batch([Message("t", b"%d" % number) for number in range(40)], queue_id=0)
    for cancel_at in range(1, 200):
        runtime = CancellingRuntime()
        client = make(broker.address, runtime)
        broker.committed.clear()
        if opened:
            await client.__aenter__()
        with anyio.CancelScope() as scope:
            runtime.arm(scope, cancel_at)
            await operation(client)
        over = not scope.cancelled_caught
        with anyio.fail_after(30):
            if case != "run":
                await operation(client)  # the same client still works
            await client.aclose()
        if over:
            return
    raise AssertionError("the operation never came to its end")


@scenario
async def test_a_block_that_waits_for_one_whose_sender_is_cancelled_leaves(face: Face, broker: FakeBroker) -> None:
    """With retries a queue has one block in flight at a time."""

    def behave(header: Header, body: memoryview) -> Answer:
        return SILENCE if broker.count(RequestCode.PUT_MESSAGE) == 1 else broker.put(header, body)

    broker.behave(RequestCode.PUT_MESSAGE, behave)
    async with Producer(broker.address, retries=1, timeout_s=1000) as producer:

        async def first() -> None:
            with scope:
                await producer.send_batch([Message("t", b"first")], queue_id=0)

        async def second() -> None:
            await producer.send_batch([Message("t", b"second")], queue_id=0)

        with anyio.fail_after(60):
            scope = anyio.CancelScope()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(first)
                while not broker.count(RequestCode.PUT_MESSAGE):
                    await anyio.sleep(0.01)
                tasks.start_soon(second)
                await anyio.sleep(0.05)
                scope.cancel()
    assert len(broker.log["t", 0]) == 1


@scenario
async def test_a_message_in_hand_when_a_receive_is_cancelled_is_not_lost(face: Face, broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        await producer.send_batch([Message("t", b"%d" % number) for number in range(200)], queue_id=0)
    seen: list[int] = []
    for cancel_at in range(1, 40):
        runtime = CancellingRuntime()
        async with on(runtime, Consumer)(broker.address, group=f"g{cancel_at}", topic="t") as consumer:
            seen.clear()
            with anyio.CancelScope() as scope:
                runtime.arm(scope, cancel_at)
                while len(seen) < 200:
                    message = await consumer.receive(5.0)
                    assert message is not None
                    seen.append(int(message.body))
            while len(seen) < 200:
                message = await consumer.receive(5.0)
                assert message is not None
                seen.append(int(message.body))
        assert seen == list(range(200))
        assert broker.committed[f"g{cancel_at}", "t", 0] == 200
        if not scope.cancelled_caught:
            return


@scenario
async def test_leaving_through_cancellation_commits_what_is_handled(face: Face, broker: FakeBroker) -> None:
    async with Producer(broker.address) as producer:
        await producer.send_batch([Message("t", b"x")] * 5, queue_id=0)
    with anyio.move_on_after(30) as scope:
        async with Consumer(broker.address, group="g", topic="t") as consumer:
            async for message in consumer:
                if message.queue_offset == 4:
                    scope.deadline = anyio.current_time() + 0.2
    assert broker.committed["g", "t", 0] == 5
