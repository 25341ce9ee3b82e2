"""Waiting under asyncio with its own futures: for sockets that stay registered, and for events.

anyio's waits would do, and do under trio. Here they cost more than the rest of the way of a `send`: each registers the
socket with the loop and takes it out again, and has a cancel scope for its time limit. Cancelling the waiting task, by
asyncio or by a scope of anyio, ends these waits like any other.
"""

from __future__ import annotations

import asyncio
import math
import socket


class AsyncioEvent:
    """An event of one loop, with a timeout on its wait."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[asyncio.Future[None]] = []

    def set(self) -> None:
        """Wake whoever waits."""
        self._is_set = True
        for future in self._waiting:
            _wake(future)

    async def wait(self, timeout_s: float) -> None:
        """Return once set or after `timeout_s`."""
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
    """Waits of one task at a time for the sockets of one client.

    Sockets stay registered with the loop between waits; only when something comes for which nobody waits are they taken
    out, until somebody does.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._registered: dict[socket.socket, int] = {}
        self._sockets: tuple[socket.socket, ...] = ()
        self._future: asyncio.Future[None] | None = None
        self._has_woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._ends_at = math.inf

    @property
    def is_of_running_loop(self) -> bool:
        """Whether the loop that it was made in is the one that runs: a client may be used in one after the other."""
        return self._loop is asyncio.get_running_loop()

    async def wait(self, sockets: tuple[socket.socket, ...], timeout_s: float) -> None:
        """Return when one of the sockets is readable, after `interrupt`, or when time is up; perhaps earlier."""
        loop = self._loop
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

    def interrupt(self) -> None:
        """End the wait in progress, if there is one."""
        if self._future is not None:
            _wake(self._future)

    def forget(self, sock: socket.socket) -> None:
        """A socket is about to be closed."""
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
        if self._has_woken:
            # The loop has looked at the socket once more before the task that was woken could read. If there really
            # is something new, the loop will say so again.
            self._has_woken = False
        elif future is None:
            for descriptor in self._registered.values():
                self._loop.remove_reader(descriptor)
            self._registered.clear()
        else:
            self._has_woken = True
            _wake(future)

    def _set_timer(self) -> None:
        """Have one timer for all waits: nearly all end long before, and the next one is due later still."""
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


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done() and not future.get_loop().is_closed():
        future.set_result(None)
