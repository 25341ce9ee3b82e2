"""What the client asks of the world it runs in: time, waiting, threads. One interface, two worlds.

The whole client is written once, as coroutines that touch the world only through a `Runtime`. Under trio and
asyncio (`aio.py`) its waits suspend the task. In the blocking API (`blocking/runtime.py`) a coroutine runs in the
thread of its caller, which blocks for it where it waits, and no event loop exists.

A runtime belongs to one client. Coroutines of one client never run at the same time: tasks of one loop
do not, and threads of the blocking API hold the runtime's lock except while they wait. State may
therefore change at an `await` and nowhere else, in both worlds.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


class Event(Protocol):
    """A flag that is set once and wakes the tasks or threads that wait for it."""

    def set(self) -> None:
        """Set the flag. Never waits."""

    async def wait(self, timeout_s: float) -> None:
        """Return once the flag is set or `timeout_s` seconds have passed; `math.inf` waits for ever."""


class Runtime(Protocol):
    """Time, waiting and threads, as one client sees them. Timeouts are seconds; `math.inf` waits for ever."""

    def now(self) -> float:
        """Seconds on a clock that never goes back; only differences mean anything."""

    def event(self) -> Event:
        """Return a new event."""

    async def pause(self) -> None:
        """Let every other task or thread that is ready run once."""

    async def sleep(self, seconds: float) -> None:
        """Wait `seconds`."""

    def prepare(self) -> None:
        """Get what `wait_readable` needs of the operating system, before anything is sent. Idempotent; never waits.

        Raises:
            OSError: the operating system refuses.
        """

    async def wait_readable(self, sockets: tuple[socket.socket, ...], timeout_s: float) -> None:
        """Return when one of the sockets has something to read, `interrupt` was called, or time is up.

        The caller passes the same tuple while the sockets are the same, so that a runtime may recognise it.

        May return early for no reason; the caller looks for itself. One caller at a time.
        """

    def interrupt(self) -> None:
        """Make the `wait_readable` in progress return. Never waits."""

    async def wait_writable(self, sock: socket.socket, timeout_s: float) -> None:
        """Return when the socket takes bytes, was closed, or time is up."""

    def close_socket(self, sock: socket.socket) -> None:
        """Close the socket and end the waits for it. Never waits."""

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Return what the blocking `function` returns, without holding up others."""

    def spawn(
        self, work: Callable[[], Coroutine[Any, Any, None]], on_end: Callable[[], None] | None = None
    ) -> None:
        """Run `work`, which must not raise, concurrently with its caller, until it returns.

        No caller's cancellation reaches it; the end of the program's event loop, or of the process, ends it. `on_end`,
        which must not raise either, is called when it has ended, also if it was cancelled before it began.
        """

    def end_dead(self) -> None:
        """End what was spawned in an event loop that was closed meanwhile, as if it had been cancelled. Never waits."""

    async def outside(self, function: Callable[[], None]) -> None:
        """Call a function of the application, which may use the client where that blocks. Raises what it raises."""

    async def shielded(self, timeout_s: float, work: Callable[[], Awaitable[Any]]) -> None:
        """Do `work` even if the caller is being cancelled, but give it up after `timeout_s` seconds."""


@runtime_checkable
class CallerRuns(Protocol):
    """A runtime without tasks: what is to be done is done in calls, and nothing happens between them."""

    @property
    def interruption(self) -> str | None:
        """Why the client was closed in the middle of an operation; None if it was not.

        Its state may be half changed then: read it, and rely on nothing but single values.
        """

    def on_interrupt(self, callback: Callable[[], None]) -> None:
        """Call `callback` when an interrupt has closed the client; it must be idempotent."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns; its waits block the caller."""
