"""Which caller reads and which writes, so that a client needs no background task.

The first caller that waits for a response takes the *read turn*: it waits for the sockets and finishes calls, its own
and others', until its own is done. The others sleep until their answers wake them. A caller that finds unwritten frames
takes the *write turn* of that connection, and first lets other tasks queue theirs, so that they leave in one write. One
rule keeps this going: **a caller that leaves, for any reason, wakes one sleeper if a turn is free**. So a cancelled
task or interrupted thread leaves no turn taken and no caller stuck.

The background of a group member must notice the broker's requests while the application is busy. It *attends*: it takes
the read turn after no caller wanted it for a while, and gives it to the first caller that comes.
"""

from __future__ import annotations

import socket
from typing import Final, Protocol

from reput_client.transport.runtime import Event, Runtime
from reput_protocol.wire.channel import Waiter

_ATTEND_AFTER_S: Final = 0.05
"""How long no caller must have read before the background reads."""


class _Watched(Protocol):
    """What is read and written here: `BrokerConnection`."""

    @property
    def sock(self) -> socket.socket: ...

    @property
    def has_unwritten(self) -> bool: ...

    def flush_now(self) -> bool: ...

    async def write_out(self, timeout_s: float, *, polite: bool) -> None: ...

    def read_ready(self) -> bool: ...


class Pump:
    """One client's read and write turns over all its connections."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._connections: list[_Watched] = []
        self._sockets: tuple[socket.socket, ...] = ()  # of `_connections`
        self._reader: Waiter | None = None
        self._sleepers: dict[Waiter, Event] = {}
        self._attending = False  # whether the reader is the background
        self._resting: Event | None = None  # set when the background should check whether to read
        self._unattended = False  # whether no caller has read for a while

    @property
    def reading(self) -> bool:
        """Whether a caller has the read turn. While the background has it, any caller may read."""
        return self._reader is not None and not self._attending

    def touch(self) -> None:
        """Note that a caller reads without waiting: the background need not yet."""
        self._unattended = False

    def add(self, connection: _Watched) -> None:
        """Read `connection` from now on; a waiting reader includes it at once.

        Raises:
            OSError: the operating system refuses what waiting needs; the connection was not added.
        """
        self._runtime.prepare()
        self._connections.append(connection)
        self._sockets = (*self._sockets, connection.sock)
        self._runtime.interrupt()
        if self._resting is not None:
            self._resting.set()

    def remove(self, connection: _Watched) -> None:
        """Remove a connection that has ended."""
        if connection in self._connections:
            index = self._connections.index(connection)
            del self._connections[index]
            self._sockets = self._sockets[:index] + self._sockets[index + 1 :]
            self._runtime.interrupt()

    def wake(self, waiter: Waiter) -> None:
        """End the wait of `waiter`, even if it has the read turn."""
        waiter.notify()
        if self._reader is waiter:
            self._runtime.interrupt()

    def look_at_reader(self) -> None:
        """End the reader's wait if a write has finished its call: its sockets will not wake it."""
        if self._reader is not None and self._reader.ready:
            self._runtime.interrupt()

    async def wait(self, waiter: Waiter, deadline: float) -> bool:
        """Wait until one of the waiter's calls has finished; False if `deadline` came first."""
        runtime = self._runtime
        try:
            while not waiter.ready:
                remaining = deadline - runtime.now()
                if remaining <= 0:
                    return False
                connections = self._connections
                alone = len(connections) == 1
                unwritten = connections[0] if alone and connections[0].has_unwritten else None
                if not alone:
                    unwritten = self._unwritten()
                # Other callers that were woken too will probably queue frames in a moment.
                others_follow = bool(self._sleepers) and next(iter(self._sleepers)).ready
                if unwritten is not None and self._reader is None and not others_follow:
                    if unwritten.flush_now():
                        # Usually everything is written, and a single connection has no other to check.
                        unwritten = None if alone else self._unwritten()
                    if waiter.ready:
                        continue  # it finished by the write, or the connection failed
                if unwritten is not None:
                    await unwritten.write_out(remaining, polite=True)
                    if self._reader is None and unwritten.has_unwritten:
                        self._read_all()  # its broker takes no more; others may have answered
                elif self._reader is None and connections:
                    # `_read` inlined: every send takes this path.
                    self._unattended = False
                    self._reader = waiter
                    try:
                        read = connections[0].read_ready if alone else self._read_all
                        await runtime.wait_readable(self._sockets, remaining, read)
                    finally:
                        self._reader = None
                else:
                    if self._attending:
                        runtime.interrupt()
                    await self._sleep(waiter, remaining)
            return True
        finally:
            if self._sleepers or self._reader is not None or self._resting is not None:
                self._hand_over()

    async def attend(self, waiter: Waiter, deadline: float) -> None:
        """Like `wait`, for the background: it reads only while no caller does."""
        runtime = self._runtime
        try:
            while not waiter.ready:
                remaining = deadline - runtime.now()
                if remaining <= 0:
                    return
                unwritten = self._unwritten()
                if unwritten is not None and not unwritten.flush_now():
                    await unwritten.write_out(remaining, polite=False)
                    if self._reader is None and unwritten.has_unwritten:
                        self._read_all()
                elif self._unattended and self._reader is None and not self._sleepers and self._connections:
                    self._attending = True
                    try:
                        await self._read(waiter, remaining)
                    finally:
                        self._attending = False
                    self._hand_over()
                else:
                    await self._rest(waiter, remaining)
        finally:
            self._hand_over()

    async def _rest(self, waiter: Waiter, timeout_s: float) -> None:
        """Wait until the reading caller leaves; if none reads, wait briefly for one."""
        event = self._runtime.event()
        waiter.wake = event.set
        free = self._reader is None and bool(self._connections)
        self._unattended = free
        self._resting = None if free else event
        try:
            await event.wait(min(timeout_s, _ATTEND_AFTER_S) if free else timeout_s)
        finally:
            waiter.wake = None
            self._resting = None

    async def _read(self, waiter: Waiter, timeout_s: float) -> None:
        self._reader = waiter
        try:
            await self._runtime.wait_readable(self._sockets, timeout_s, self._read_all)
        finally:
            self._reader = None

    def _read_all(self) -> None:
        for connection in list(self._connections):
            connection.read_ready()

    async def _sleep(self, waiter: Waiter, timeout_s: float) -> None:
        event = self._runtime.event()
        self._sleepers[waiter] = event
        waiter.wake = event.set
        try:
            await event.wait(timeout_s)
        finally:
            waiter.wake = None
            del self._sleepers[waiter]

    def _unwritten(self) -> _Watched | None:
        for connection in self._connections:
            if connection.has_unwritten:
                return connection
        return None

    def _hand_over(self) -> None:
        if not self._sleepers and self._reader is None:
            if self._resting is not None:
                self._resting.set()
            return
        unwritten = self._unwritten()
        if self._reader is not None and unwritten is None:
            return
        for event in self._sleepers.values():
            event.set()
            return
        if self._reader is not None and unwritten is not None:
            # The reader does not know that there are unwritten frames.
            self._runtime.interrupt()

    def reset(self) -> None:
        """In a forked child: forget every turn and sleeper; their threads do not exist."""
        self._reader = None
        self._attending = self._unattended = False
        self._resting = None
        self._sleepers.clear()
        self._connections.clear()
        self._sockets = ()
