"""Drives each API of the client (trio, asyncio, blocking) in one way, so that a scenario is written once.

A scenario is a coroutine function that takes a `Face`. Under trio and asyncio its awaits are real. Under the blocking
face each await calls the blocking method and is over at once, and tasks are threads.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Self, TypeVar

import anyio

import reput_client
import reput_client.blocking
from reput_client import Message, PostsFailed, SendReceipt
from reput_client.transport.session import Session
from support.waiting import until, wait_until

T = TypeVar("T")
Scenario = Callable[["Face"], Coroutine[Any, Any, None]]
FACES = ("trio", "asyncio", "blocking")
_LONGEST_S = 300.0
"""After this long a scenario fails where it waits, so that one that never ends has a name and a traceback."""
PROACTOR = "proactor"
"""asyncio with an event loop like the default one of Windows."""


class Proactor(asyncio.SelectorEventLoop):
    """A loop that waits for no sockets and no signals."""

    add_reader = asyncio.AbstractEventLoop.add_reader
    add_writer = asyncio.AbstractEventLoop.add_writer
    remove_reader = asyncio.AbstractEventLoop.remove_reader
    remove_writer = asyncio.AbstractEventLoop.remove_writer
    add_signal_handler = asyncio.AbstractEventLoop.add_signal_handler
    remove_signal_handler = asyncio.AbstractEventLoop.remove_signal_handler


async def _wait_for_a_socket() -> None:
    """Make anyio start the thread that waits for sockets, which keeps sockets of its own."""
    ready, other = socket.socketpair()
    with ready, other:
        other.send(b"x")
        await anyio.wait_readable(ready)


class Face:
    """The classes of one API, and how to run code with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_blocking = name == "blocking"
        if self.is_blocking:
            self.Producer: Any = _wrapped(reput_client.blocking.Producer)
            self.Consumer: Any = _wrapped(reput_client.blocking.Consumer)
            self.PullConsumer: Any = _wrapped(reput_client.blocking.PullConsumer)
            self.PopConsumer: Any = _WrappedPops
            self.Admin: Any = _wrapped(reput_client.blocking.Admin)
            self.TransactionProducer: Any = _WrappedTransactions
        else:
            self.Producer = reput_client.Producer
            self.Consumer = reput_client.Consumer
            self.PullConsumer = reput_client.PullConsumer
            self.PopConsumer = reput_client.PopConsumer
            self.Admin = reput_client.Admin
            self.TransactionProducer = reput_client.TransactionProducer

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a scenario to its end; fail if it leaves a task, thread or socket behind."""
        sockets, threads = open_sockets(), own_threads()
        if self.is_blocking:
            finish(scenario())
        else:
            is_proactor = self.name == PROACTOR
            if is_proactor:
                anyio.run(_wait_for_a_socket, backend_options={"loop_factory": Proactor})
                sockets, threads = open_sockets(), own_threads()
            name = "asyncio" if is_proactor else self.name
            options = {"loop_factory": Proactor} if is_proactor else None
            anyio.run(_counting_tasks(scenario, name), backend=name, backend_options=options)
        # The broker's ends of the connections are in this process too, and close a moment later.
        deadline = time.monotonic() + 5.0
        # So do the threads that an event loop has lent.
        while (open_sockets() > sockets or own_threads() > threads) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert open_sockets() <= sockets, f"a socket was left open: {', '.join(map(_described, _sockets()))}"
        assert own_threads() <= threads, "a thread was left behind"

    async def post_all(self, producer: Any, messages: Iterable[Message], **options: Any) -> list[SendReceipt]:
        """Post messages, and return their receipts once all are acknowledged; the first failure is raised."""
        posted = [await producer.post(message, **options) for message in messages]
        with suppress(PostsFailed):
            await producer.flush()
        return [each.result() for each in posted]

    async def fill(self, address: str, count: int) -> None:
        """Send `count` messages, with their numbers as bodies, to queue 0 of topic `t`."""
        async with self.Producer(address) as producer:
            await producer.send_batch([Message("t", b"%d" % number) for number in range(count)], queue_id=0)

    async def together(self, *works: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run coroutine functions at the same time, as tasks or as threads, and wait for all."""
        if not self.is_blocking:
            async with anyio.create_task_group() as tasks:
                for work in works:
                    tasks.start_soon(work)
            return
        failures: list[BaseException] = []

        def in_thread(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
            try:
                finish(work())
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=in_thread, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    async def sleep(self, seconds: float) -> None:
        """Let the others run for a while."""
        if self.is_blocking:
            threading.Event().wait(seconds)
        else:
            await anyio.sleep(seconds)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that another party does is done."""
        if self.is_blocking:
            wait_until(condition, step_s=0.005)
        else:
            await until(condition)


class DrivenSession:
    """The session of a client, which any API drives: tests send requests of their own over it."""

    def __init__(self, face: Face, address: str, timeout_s: float = 5.0) -> None:
        self._face = face
        self._producer = face.Producer(address, timeout_s=timeout_s)
        self.session: Session = self._producer._client._client._session if face.is_blocking else self._producer._session

    async def drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the session."""
        if self._face.is_blocking:
            result: T = self._producer._client._runtime.run(work)
            return result
        return await work

    async def __aenter__(self) -> Self:
        await self._producer.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._producer.__aexit__(*error)


def open_sockets() -> int:
    """How many sockets this process has open."""
    return len(_sockets())


def _sockets() -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.append(int(name))
    return found


def _described(descriptor: int) -> str:
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
        return str(one)
    return f"{descriptor}, closed meanwhile"


def own_threads() -> int:
    """How many threads there are, helpers of event loops and of fake brokers left out."""
    return sum(not thread.daemon for thread in threading.enumerate())


def _counting_tasks(scenario: Callable[[], Coroutine[Any, Any, None]], name: str) -> Callable[[], Awaitable[None]]:
    def tasks() -> int:
        if name == "trio":
            import trio

            return trio.lowlevel.current_statistics().tasks_living

        return len(asyncio.all_tasks())

    async def run() -> None:
        before = tasks()
        with anyio.fail_after(_LONGEST_S):
            await scenario()
        assert tasks() == before, "a task was left behind"

    return run


def finish(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise AssertionError("a blocking scenario awaited something that really waits")


_NEVER_WAIT = ("pause", "positions", "resume", "rewind", "seek", "stop")
"""Methods of consumers that are no coroutine functions."""


def _wrapped(kind: type[Any]) -> Callable[..., Any]:
    return lambda *args, **options: _Wrapped(kind(*args, **options))


class _Wrapped:
    """A blocking client with the awaitable methods of its async twin."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._client, "close" if name == "aclose" else name)
        if not callable(member) or name in _NEVER_WAIT:
            return member
        if name == "run":
            return self._run

        async def call(*args: Any, **options: Any) -> Any:
            return member(*args, **options)

        return call

    async def _run(self, handler: Callable[[Any], Coroutine[Any, Any, None]], **options: Any) -> None:
        self._client.run(lambda message: finish(handler(message)), **options)

    async def __aenter__(self) -> _Wrapped:
        self._client.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._client.__exit__(*error)

    def __aiter__(self) -> _Wrapped:
        return self

    async def __anext__(self) -> Any:
        try:
            return next(self._client)
        except StopIteration:
            raise StopAsyncIteration from None


class _WrappedPops(_Wrapped):
    """A blocking POP consumer, whose messages have awaitable methods as those of its async twin."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(reput_client.blocking.PopConsumer(*args, **options))

    async def receive(self, *args: Any, **options: Any) -> list[_Wrapped]:
        return [_Wrapped(message) for message in self._client.receive(*args, **options)]

    async def ack(self, messages: list[_Wrapped]) -> None:
        self._client.ack([message._client for message in messages])

    async def _run(self, handler: Callable[[Any], Coroutine[Any, Any, None]], **options: Any) -> None:
        self._client.run(lambda message: finish(handler(_Wrapped(message))), **options)


class _WrappedTransactions(_Wrapped):
    """A blocking transaction producer, whose callbacks are coroutine functions as those of its async twin."""

    def __init__(self, *args: Any, check: Callable[[Any], Coroutine[Any, Any, Any]], **options: Any) -> None:
        super().__init__(
            reput_client.blocking.TransactionProducer(*args, check=lambda message: finish(check(message)), **options)
        )

    async def send_in_transaction(
        self, message: Any, local_transaction: Callable[[Any], Coroutine[Any, Any, Any]], **options: Any
    ) -> Any:
        return self._client.send_in_transaction(message, lambda sent: finish(local_transaction(sent)), **options)


def scenario(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine test on the face among its fixtures, to its end."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        face = next(value for value in fixtures.values() if isinstance(value, Face))
        face.run(lambda: test(**fixtures))

    return run
