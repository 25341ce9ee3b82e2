"""The runtime of the synchronous API: every wait blocks the calling thread.

Threads may share one client. A coroutine runs in its caller's thread; the code between two waits is one *step*. One
lock serialises the steps; it is not held while a thread waits. After a fork the child gets a new lock and reconnects.

Ctrl-C and signal handlers may raise between any two instructions of the main thread:

- In a wait, the exception is raised into the coroutine like a cancellation: its `finally` blocks run, and the client
  stays usable.
- In a step, it closes the client for good (`interruption`), because its state may be inconsistent, unless the step
  itself raised it: an error of the client, of its arguments, or of the operating system (`errno`). This sets one
  attribute and repairs nothing: every wait ends, every later call raises `ClientClosed`, and unfinished operations have
  an unknown outcome. Other threads notice within a second, even if the lock is never released.
"""

from __future__ import annotations

import _thread
import math
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import coroutine
from typing import Any, Final, TypeVar

from typing_extensions import override

from reput_client.errors import ClientClosed
from reput_client.transport.runtime import CallerRuns, Event, Runtime, Sleeper
from reput_protocol.errors import ReputError

T = TypeVar("T")

_SLICE_S: Final = 1.0
"""Maximum length of one wait: an interrupted client is noticed between two waits.

So is a signal that another thread received: Python runs signal handlers in the main thread.
"""

_RAISED_BY_CALLS: Final = (ReputError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError)
"""Exceptions of the client's own code and of wrong arguments; also an `OSError` with an `errno`.

Any other exception in a step may come from a signal handler.
"""


@coroutine
def _blocking(function: Callable[[], T]) -> Generator[Callable[[], T], T, T]:
    """Make `run` call `function`, which may block, without the lock; return its result."""
    return (yield function)


class _Select:
    """`select.poll` for Windows, which has only `select.select`."""

    def __init__(self) -> None:
        self._reading: list[socket.socket] = []
        self._writing: list[socket.socket] = []

    def register(self, sock: socket.socket, events: int) -> None:
        (self._writing if events == _WRITABLE else self._reading).append(sock)

    def poll(self, timeout_ms: int) -> list[socket.socket]:
        # A failed connection attempt is in the third list.
        readable, writable, failed = select.select(self._reading, self._writing, self._writing, timeout_ms / 1000)
        return [*readable, *writable, *failed]


_new_poll: Any = getattr(select, "poll", _Select)
_READABLE: Final = getattr(select, "POLLIN", 1)
_WRITABLE: Final = getattr(select, "POLLOUT", 4)


class BlockingEvent(Event, Sleeper):
    """An event that threads wait for without the client's lock."""

    __slots__ = ("_gate", "_is_set", "_runtime")

    def __init__(self, runtime: BlockingRuntime) -> None:
        self._runtime = runtime
        self._is_set = False
        self._gate = threading.Lock()  # released once the event is set
        self._gate.acquire()

    @override
    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._gate.release()

    @override
    async def wait(self, timeout_s: float) -> None:
        if not self._is_set and timeout_s > 0:
            await _blocking(partial(self._block, time.monotonic() + timeout_s))

    @override
    def __await__(self) -> Generator[Any, Any, None]:
        return self.wait(math.inf).__await__()

    def _block(self, until: float) -> None:
        while not self._is_set and self._runtime.interruption is None:
            remaining = until - time.monotonic()
            if remaining <= 0:
                return
            if self._gate.acquire(timeout=min(remaining, _SLICE_S)):
                self._gate.release()


class _Done:
    """What is awaited at once: the work was done before."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


_DONE: Final = _Done()


class BlockingRuntime(Runtime, CallerRuns):
    """Runs coroutines of the client in the calling thread; waits block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._on_fork: Callable[[], None] | None = None
        self._on_interrupt: Callable[[], None] | None = None
        self._interrupted_by: type[BaseException] | None = None
        self._from_application: BaseException | None = None
        self._polling = False
        self._woken = False
        self._closing = False
        self._waker: tuple[socket.socket, socket.socket] | None = None
        self._poller: Any = None
        self._polled: tuple[socket.socket, ...] = ()

    def on_fork(self, callback: Callable[[], None]) -> None:
        """Call `callback` in a forked child before its first use of the client."""
        self._on_fork = callback

    @override
    def on_interrupt(self, callback: Callable[[], None]) -> None:
        """`callback` closes the sockets."""
        self._on_interrupt = callback

    @property
    @override
    def interruption(self) -> str | None:
        kind = self._interrupted_by
        if kind is None:
            return None
        return (
            f"the client was closed because an exception ({kind.__name__}) interrupted it in the middle of an "
            "operation; make a new one"
        )

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in this thread, with the lock except while it waits, and return its result.

        Raises:
            ClientClosed: an interrupt has closed the client.
            BaseException: whatever `work` raises.
        """
        if os.getpid() != self._pid:
            self._after_fork()
        lock = self._lock
        value: Any = None
        thrown: BaseException | None = None
        try:
            while True:
                held = False
                try:
                    while not held and self._interrupted_by is None:
                        held = lock.acquire(True, _SLICE_S)
                    if self._interrupted_by is not None and thrown is None:
                        thrown = ClientClosed(self.interruption or "")
                    wait = work.send(value) if thrown is None else work.throw(thrown)
                except StopIteration as done:
                    result: T = done.value
                    return result
                except _RAISED_BY_CALLS:
                    raise
                # No call before the assignments: CPython raises a second signal's exception only after calls.
                except OSError as error:
                    if error.errno is None and error is not thrown and error is not self._from_application:
                        self._interrupted_by = error.__class__
                    raise
                except BaseException as error:
                    if error is not thrown and error is not self._from_application:
                        self._interrupted_by = error.__class__
                    raise
                finally:
                    if held:
                        lock.release()
                value = thrown = None
                try:
                    value = wait()
                except BaseException as error:
                    thrown = error
        except BaseException as error:
            if work.cr_frame is not None:  # type: ignore[attr-defined]  # it did not run to its end
                self._interrupted_by = error.__class__
            self._from_application = None
            if self._interrupted_by is not None and self._on_interrupt is not None:
                self._on_interrupt()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call `function`, which never waits, under the lock, and return its result."""

        async def work() -> T:
            return function()

        return self.run(work())

    @override
    def perform(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        self.run(work)
        return _DONE

    @override
    def on_signal(self, number: int, function: Callable[[], None]) -> Callable[[], None]:
        before = signal.signal(number, lambda *_: function())

        def restore() -> None:
            signal.signal(number, before)

        return restore

    def call_soon(self, function: Callable[[], None]) -> None:
        """Like `call`, but never waits: if the client's code is running, `function` is called when that pauses.

        So a signal handler may call this at any point.
        """
        if self._lock.locked():
            # Not a `Thread`: starting one takes locks that the interrupted code might hold.
            _thread.start_new_thread(self._call_unless_closed, (function,))
        else:
            self._call_unless_closed(function)

    def _call_unless_closed(self, function: Callable[[], None]) -> None:
        with suppress(ClientClosed):
            self.call(function)

    def read(self, items: Iterable[T]) -> Iterable[T]:
        """Return the application's `items` for reading in a step; an exception from them leaves the client usable."""
        return items if type(items) in (list, tuple) else self._read(items)

    def _read(self, items: Iterable[T]) -> Iterator[T]:
        try:
            yield from items
        except BaseException as error:
            self._from_application = error
            raise

    def _after_fork(self) -> None:
        # A thread of the parent may have held the lock; it does not exist here and would never release it.
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._polling = self._woken = False
        self._close_waker()
        if self._on_fork is not None:
            self._on_fork()

    now = staticmethod(time.monotonic)

    @override
    def event(self) -> BlockingEvent:
        return BlockingEvent(self)

    @override
    def sleeper(self) -> BlockingEvent:
        """Return an event, which is as light as anything that a thread can wait for."""
        return BlockingEvent(self)

    @override
    def wake(self, sleepers: Iterable[BlockingEvent]) -> None:
        for sleeper in sleepers:
            sleeper.set()

    @override
    async def pause(self) -> None:
        await _blocking(partial(time.sleep, 0.0))

    @override
    async def sleep(self, seconds: float) -> None:
        await _blocking(partial(time.sleep, seconds))

    @override
    def prepare(self) -> None:
        """Create the socket pair by which `interrupt` ends a wait."""
        if self._waker is None:
            self._waker = socket.socketpair()
            self._waker[0].setblocking(False)

    @override
    async def wait_readable(
        self, sockets: tuple[socket.socket, ...], timeout_s: float, read: Callable[[], object]
    ) -> None:
        poller = self._poller
        if poller is None or self._polled is not sockets:
            poller = self._new_poller(sockets)
        self._polling = True
        try:
            await _blocking(partial(self._poll, poller, timeout_s))
        finally:
            self._polling = False
            if self._woken and self._waker is not None:
                self._woken = False
                with suppress(BlockingIOError):
                    self._waker[0].recv(1)
            if self._closing:
                self._close_waker()
        read()

    def _new_poller(self, sockets: tuple[socket.socket, ...]) -> Any:
        self.prepare()
        assert self._waker is not None, "`prepare` created it"
        poller = _new_poll()
        for sock in (*sockets, self._waker[0]):
            poller.register(sock, _READABLE)
        self._poller, self._polled = poller, sockets
        return poller

    @override
    def interrupt(self) -> None:
        if self._polling and not self._woken and self._waker is not None:
            self._woken = True
            self._waker[1].send(b"\0")

    @override
    async def wait_writable(self, sock: socket.socket, timeout_s: float) -> None:
        await self._wait_for(sock, _WRITABLE, timeout_s)

    @override
    async def wait_arrival(self, sock: socket.socket, timeout_s: float) -> None:
        await self._wait_for(sock, _READABLE, timeout_s)

    async def _wait_for(self, sock: socket.socket, events: int, timeout_s: float) -> None:
        poller = _new_poll()
        poller.register(sock, events)
        await _blocking(partial(self._poll, poller, timeout_s))

    def _poll(self, poller: Any, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        # Rounded up: `poll` must not return before the timeout.
        while not poller.poll(max(0, math.ceil(min(timeout_s, _SLICE_S) * 1000))):
            timeout_s = until - time.monotonic()
            if timeout_s <= 0 or self._interrupted_by is not None:
                return

    @override
    def close_socket(self, sock: socket.socket) -> None:
        with suppress(OSError):  # not connected yet, or the peer has reset it
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    def close(self) -> None:
        """Free the runtime's descriptors, after the client was closed."""
        self._closing = True
        if not self._polling or self._interrupted_by is not None:
            self._close_waker()  # otherwise the polling thread does it

    def _close_waker(self) -> None:
        waker, self._waker, self._poller = self._waker, None, None
        for end in waker or ():
            end.close()

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call `function` here, without the lock."""
        return await _blocking(function)

    @override
    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], on_end: Callable[[], None] | None = None) -> None:
        """Run `work` in a daemon thread."""

        def run() -> None:
            with suppress(ClientClosed):
                try:
                    self.run(work())
                finally:
                    if on_end is not None:
                        self.call(on_end)

        threading.Thread(target=run, name="reput-group", daemon=True).start()

    def end_dead(self) -> None:
        """Do nothing: threads end by themselves."""

    @override
    async def outside(self, function: Callable[[], None]) -> None:
        """Call `function` without the lock."""
        await _blocking(function)

    @override
    async def shielded(self, timeout_s: float, work: Callable[[], Awaitable[Any]]) -> None:
        """Await `work()`: nothing can cancel it, and its own deadlines limit it."""
        del timeout_s
        await work()
