"""The interface between the client and its environment: time, waiting, threads.

The client is written once, as coroutines that reach the environment only through a `Runtime`. Under trio and asyncio
(`aio.py`) a wait suspends the task; in the synchronous API (`blocking/runtime.py`) it blocks the caller's thread.

A runtime belongs to one client, whose coroutines never run at the same time: they are tasks of one loop, or threads
that hold the runtime's lock except while they wait. So state changes only at an `await`.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from typing import Any, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


class Event(Protocol):
    """A flag that is set once and wakes the tasks or threads that wait for it."""

    __slots__ = ()  # those of its classes have some

    def set(self) -> None:
        """Set the flag. Never waits."""

    async def wait(self, timeout_s: float) -> None:
        """Return once the flag is set, or after `timeout_s` seconds."""


class Sleeper(Protocol):
    """What one task or thread awaits, at once, until it is woken by `Runtime.wake`; lighter than an `Event`."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        """Return once it was woken."""


class Runtime(Protocol):
    """Time, waiting and threads for one client. Timeouts are in seconds; `math.inf` means none."""

    now: Callable[[], float]
    """Returns seconds on a monotonic clock. Read it for each call: a runtime may replace it at the first one."""

    def event(self) -> Event:
        """Return a new event."""

    def sleeper(self) -> Any:
        """Return a new `Sleeper`."""

    def wake(self, sleepers: Iterable[Any]) -> None:
        """Wake sleepers, each for the first time. Never waits."""

    async def pause(self) -> None:
        """Let every other ready task or thread run once."""

    async def sleep(self, seconds: float) -> None:
        """Wait `seconds`."""

    def prepare(self) -> None:
        """Allocate what `wait_readable` needs, before anything is sent. Idempotent.

        Raises:
            OSError: the operating system refuses.
        """

    async def wait_readable(
        self, sockets: tuple[socket.socket, ...], timeout_s: float, read: Callable[[], object]
    ) -> None:
        """Call `read` when a socket is readable, and return; also after `interrupt` or `timeout_s`.

        One caller at a time. `read` takes what has arrived, without waiting; it may be called, and the wait may end,
        with nothing to read. The caller passes the same tuple object while the sockets are the same, so that the
        runtime can recognise it.
        """

    def interrupt(self) -> None:
        """Make the `wait_readable` in progress return. Never waits."""

    async def wait_writable(self, sock: socket.socket, timeout_s: float) -> None:
        """Return when the socket is writable or closed, or `timeout_s` has passed."""

    async def wait_arrival(self, sock: socket.socket, timeout_s: float) -> None:
        """Return when a socket that `wait_readable` does not watch is readable, or `timeout_s` has passed."""

    def close_socket(self, sock: socket.socket) -> None:
        """Close the socket and end the waits for it. Never waits."""

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Return the result of the blocking `function` without blocking others."""

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], on_end: Callable[[], None] | None = None) -> None:
        """Run `work`, which must not raise, concurrently with the caller.

        Cancelling the caller does not cancel it; it ends with the event loop or process at the latest. `on_end`, which
        must not raise, is called when it has ended, even if it was cancelled before it started.
        """

    def end_dead(self) -> None:
        """End what was spawned in a closed event loop, as if cancelled. Never waits."""

    def call(self, function: Callable[[], T]) -> T:
        """Call `function`, which never waits, while no coroutine of the client runs, and return its result."""

    def perform(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        """Return `work` for the application to await; in the synchronous API it is done on return."""

    def on_signal(self, number: int, function: Callable[[], None]) -> Callable[[], None]:
        """Call `function` when the process receives the signal; return what restores the handler before.

        To be called in the main thread, where `function` runs too: in the event loop, or in the synchronous API between
        any two instructions of the program.
        """

    async def outside(self, function: Callable[[], None]) -> None:
        """Call a function of the application, which may use the client synchronously. Raises what it raises."""

    async def shielded(self, timeout_s: float, work: Callable[[], Awaitable[Any]]) -> None:
        """Await `work()` even if the caller is being cancelled, for at most `timeout_s`."""


@runtime_checkable
class CallerRuns(Protocol):
    """A runtime without tasks: all work happens in calls."""

    @property
    def interruption(self) -> str | None:
        """Why an interrupt closed the client in the middle of an operation, or None.

        Its state may then be inconsistent: read single values only.
        """

    def on_interrupt(self, callback: Callable[[], None]) -> None:
        """Call `callback`, which must be idempotent, when an interrupt has closed the client."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the calling thread and return its result; its waits block."""
