"""The runtime for trio and asyncio programs, built on anyio.

A client needs no task to read, and owns no task group: the caller that waits for an answer reads the sockets (see
`pump.py`). So clients may be closed in any order and from any task, and leaving an `async for` early leaves nothing
running.

Under trio, events and the waits for answers are trio's own; anyio's first find out each time which loop runs. Under
asyncio they are futures of the loop, because anyio's cost more there than the rest of a `send`: each registers the
socket, removes it again, and opens a cancel scope for its timeout. The loop's callback reads before it wakes the task,
so that the loop does not report the same bytes once more.
"""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread
from typing_extensions import override

from reput_client.transport.runtime import Event, Runtime

T = TypeVar("T")


class AsyncioEvent(Event):
    """An event of one asyncio loop."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[asyncio.Future[None]] = []

    @override
    def set(self) -> None:
        self._is_set = True
        for future in self._waiting:
            _wake(future)

    @override
    async def wait(self, timeout_s: float) -> None:
        if self._is_set:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = None if timeout_s == math.inf else loop.call_later(timeout_s, _wake, future)
        self._waiting.append(future)
        try:
            await future
        finally:
            self._waiting.remove(future)
            if timer is not None:
                timer.cancel()


class SocketWatch:
    """Waits for the sockets of one client, by one task at a time.

    Sockets stay registered with the loop between waits. They are removed when one becomes readable while no task waits,
    and registered again by the next wait.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._registered: dict[socket.socket, int] = {}
        self._sockets: tuple[socket.socket, ...] = ()
        self._future: asyncio.Future[None] | None = None
        self._read: Callable[[], object] = _nothing
        self._failure: Exception | None = None  # of a read that had woken the waiting task before
        self._timer: asyncio.TimerHandle | None = None
        self._ends_at = math.inf

    @property
    def is_of_running_loop(self) -> bool:
        """Whether it was made in the running loop; a client may be used in several, one after the other."""
        return self._loop is asyncio.get_running_loop()

    async def wait(self, sockets: tuple[socket.socket, ...], timeout_s: float, read: Callable[[], object]) -> None:
        """See `Runtime.wait_readable`. Raises what `read` raises."""
        loop = self._loop
        self._read = read
        if sockets is not self._sockets or len(self._registered) != len(sockets):
            self._register(sockets)
        self._future = loop.create_future()
        self._ends_at = loop.time() + timeout_s
        if self._timer is None or self._timer.when() > self._ends_at:
            self._set_timer()
        try:
            await self._future
        finally:
            self._future = None
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def interrupt(self) -> None:
        """End the wait in progress, if any."""
        if self._future is not None:
            _wake(self._future)

    def forget(self, sock: socket.socket) -> None:
        """Stop watching a socket that will be closed."""
        descriptor = self._registered.pop(sock, None)
        if descriptor is not None and not self._loop.is_closed():
            self._loop.remove_reader(descriptor)
        if not self._registered and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.interrupt()

    def _register(self, sockets: tuple[socket.socket, ...]) -> None:
        for sock in [sock for sock in self._registered if sock not in sockets]:
            self._loop.remove_reader(self._registered.pop(sock))
        self._sockets = sockets
        for sock in sockets:
            if sock not in self._registered and sock.fileno() >= 0:
                self._loop.add_reader(sock.fileno(), self._on_readable)
                self._registered[sock] = sock.fileno()

    def _on_readable(self) -> None:
        future = self._future
        if future is None:
            for descriptor in self._registered.values():
                self._loop.remove_reader(descriptor)
            self._registered.clear()
        elif not future.done():  # else the task has been woken, and its next wait hears of this once more
            # First: this task goes on before those whose answers the read brings, in the order in which they came.
            future.set_result(None)
            try:
                self._read()
            except Exception as error:
                self._failure = error

    def _set_timer(self) -> None:
        """Keep one timer for all waits: nearly all end before it fires, and the next ends later still."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if self._ends_at == math.inf else self._loop.call_at(self._ends_at, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._future is None:
            return
        if self._loop.time() >= self._ends_at:
            _wake(self._future)
        else:
            self._set_timer()


def _watch() -> SocketWatch | None:
    """Return a watch of the running loop; None if it cannot wait for sockets, as Windows' default loop: anyio can."""
    has_readers = type(asyncio.get_running_loop()).add_reader is not asyncio.AbstractEventLoop.add_reader
    return SocketWatch() if has_readers else None


def _nothing() -> None: ...


def _new_future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def _wake_futures(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            try:
                future.set_result(None)
            except RuntimeError:  # its loop is closed
                continue


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done() and not future.get_loop().is_closed():
        future.set_result(None)


class AnyioRuntime(Runtime):
    """Waits that suspend the calling task; cancelling it ends them and leaves nothing open."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = self._first_now
        self._has_loop = False
        self._new_event: Callable[[], Event] = AsyncioEvent
        self._new_sleeper: Callable[[], Any] = _new_future
        self._wake_all: Callable[[Iterable[Any]], None] = _wake_futures
        self._waits: Any = anyio
        """Has `CancelScope`, `wait_readable` and `ClosedResourceError`: anyio, or trio's own by `in_trio`."""
        self._reading: anyio.CancelScope | None = None
        self._watch: SocketWatch | None = None  # under asyncio
        self._tasks: dict[asyncio.Task[None], Callable[[], None]] = {}
        """Under asyncio: spawned tasks, to which the loop keeps only weak references, and their `on_end`."""

    def _first_now(self) -> float:
        self._adopt_loop()
        return self.now()

    def _adopt_loop(self) -> None:
        """Use the running loop from now on, and its clock: a test's virtual one governs deadlines too."""
        self._has_loop = True
        if _running_in_trio():
            from reput_client.transport import in_trio

            self._new_event, self._new_sleeper = in_trio.TrioEvent, in_trio.TrioSleeper
            self._wake_all = in_trio.wake
            self._waits = in_trio
            self.now = sys.modules["trio"].lowlevel.current_clock().current_time
            return
        self._watch = _watch()
        clock = asyncio.get_running_loop().time
        is_usual = getattr(clock, "__func__", None) is asyncio.BaseEventLoop.time
        self.now = time.monotonic if is_usual else clock  # which is the same, but for a call

    @override
    def event(self) -> Event:
        if not self._has_loop:
            self._adopt_loop()
        return self._new_event()

    @override
    def sleeper(self) -> Any:
        if not self._has_loop:
            self._adopt_loop()
        return self._new_sleeper()

    @override
    def wake(self, sleepers: Iterable[Any]) -> None:
        self._wake_all(sleepers)

    @override
    async def pause(self) -> None:
        await anyio.lowlevel.checkpoint()

    @override
    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    @override
    def prepare(self) -> None:
        """Do nothing: the event loop has what it needs."""

    @override
    async def wait_readable(
        self, sockets: tuple[socket.socket, ...], timeout_s: float, read: Callable[[], object]
    ) -> None:
        if not self._has_loop:
            self._adopt_loop()
        if self._watch is not None and not self._watch.is_of_running_loop:
            self._watch = _watch()
        if self._watch is not None:
            await self._watch.wait(sockets, timeout_s, read)
            return
        waits = self._waits
        with waits.CancelScope(deadline=self.now() + timeout_s) as scope:
            self._reading = scope
            try:
                if len(sockets) == 1:
                    await waits.wait_readable(sockets[0])
                else:
                    await _wait_any_readable(sockets)
            except waits.ClosedResourceError:
                pass
            finally:
                self._reading = None
        read()

    @override
    def interrupt(self) -> None:
        if self._watch is not None:
            self._watch.interrupt()
        elif self._reading is not None:
            self._reading.cancel()

    @override
    async def wait_writable(self, sock: socket.socket, timeout_s: float) -> None:
        with anyio.move_on_after(timeout_s), suppress(anyio.ClosedResourceError):
            await anyio.wait_writable(sock)

    @override
    async def wait_arrival(self, sock: socket.socket, timeout_s: float) -> None:
        with anyio.move_on_after(timeout_s), suppress(anyio.ClosedResourceError):
            await anyio.wait_readable(sock)

    @override
    def close_socket(self, sock: socket.socket) -> None:
        if self._watch is not None:
            self._watch.forget(sock)
        with suppress(Exception):  # no loop is running, so no task waits
            anyio.notify_closing(sock)
        sock.close()

    @override
    async def in_thread(self, function: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(function)

    @override
    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], on_end: Callable[[], None] | None = None) -> None:
        """Run `work` as a task of the loop, in no task group."""
        if _running_in_trio():
            sys.modules["trio"].lowlevel.spawn_system_task(_finish, work, on_end)
            return
        task = asyncio.get_running_loop().create_task(work())
        self._tasks[task] = on_end or (lambda: None)
        # Not in the task: asyncio does not run a task that is cancelled before its first step.
        task.add_done_callback(self._has_ended)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        on_end = self._tasks.pop(task, None)
        if on_end is not None:
            on_end()

    @override
    def end_dead(self) -> None:
        """Close the coroutines, so that their `finally` blocks run."""
        for task in [task for task in self._tasks if task.get_loop().is_closed()]:
            coroutine = task.get_coro()
            if coroutine is not None:
                coroutine.close()
            self._has_ended(task)

    @override
    def call(self, function: Callable[[], T]) -> T:
        return function()

    @override
    def perform(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        return work

    @override
    def on_signal(self, number: int, function: Callable[[], None]) -> Callable[[], None]:
        before = signal.getsignal(number)
        if _running_in_trio():
            token = sys.modules["trio"].lowlevel.current_trio_token()
            signal.signal(number, lambda *_: token.run_sync_soon(function))
            return lambda: _restore(number, before)
        loop = asyncio.get_running_loop()
        try:
            loop.add_signal_handler(number, function)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(function))
            return lambda: _restore(number, before)

        def restore() -> None:
            loop.remove_signal_handler(number)
            _restore(number, before)

        return restore

    @override
    async def outside(self, function: Callable[[], None]) -> None:
        function()

    @override
    async def shielded(self, timeout_s: float, work: Callable[[], Awaitable[Any]]) -> None:
        with anyio.move_on_after(timeout_s, shield=True):
            await work()


def _restore(number: int, handler: Any) -> None:
    signal.signal(number, handler)


async def _finish(work: Callable[[], Coroutine[Any, Any, None]], on_end: Callable[[], None] | None) -> None:
    try:
        await work()
    finally:
        if on_end is not None:
            on_end()


def _running_in_trio() -> bool:
    # First: in trio's guest mode an asyncio loop may run underneath.
    # Another thread may be importing it.
    lowlevel = getattr(sys.modules.get("trio"), "lowlevel", None)
    return lowlevel is not None and bool(lowlevel.in_trio_run())


async def _wait_any_readable(sockets: Sequence[socket.socket]) -> None:
    """Return when one of several sockets is readable. Runs a task for each; all have ended on return."""

    async def watch(sock: socket.socket) -> None:
        if sock.fileno() >= 0:  # else it was closed before this task began
            with suppress(anyio.ClosedResourceError):
                await anyio.wait_readable(sock)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for sock in sockets:
            tasks.start_soon(watch, sock)
