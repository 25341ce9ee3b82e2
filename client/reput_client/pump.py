"""Who reads and who writes: the turns that callers of one client take, so that it needs no background task.

Whoever waits for an answer does what has to be done meanwhile. The first to wait takes the *read turn*: it waits
for the sockets and finishes the calls, its own and everybody else's, until its own is done. The others sleep
and are woken by their answers. Whoever finds unsent bytes takes the *write turn* of that connection. One rule
keeps it alive: **whoever leaves, for whatever reason, wakes one sleeper if a turn is free**. So a cancelled task
or an interrupted thread leaves nothing open, nothing owned and nobody stuck, and frames that many tasks
queue in one tick leave in one write: the second to come lets the others go first, then writes for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reput_client.core import Waiter
from reput_client.runtime import Event, Runtime

if TYPE_CHECKING:
    from reput_client.connection import Connection


class Pump:
    """The turns of one client over all its connections."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._connections: list[Connection] = []
        self._reading = False
        self._sleepers: dict[Waiter, Event] = {}

    @property
    def reading(self) -> bool:
        """Whether somebody has the read turn."""
        return self._reading

    def add(self, connection: Connection) -> None:
        """Read `connection` from now on, also for a reader that is already waiting for the others."""
        self._connections.append(connection)
        self._runtime.interrupt()

    def remove(self, connection: Connection) -> None:
        """Forget a connection that is gone."""
        if connection in self._connections:
            self._connections.remove(connection)
            self._runtime.interrupt()

    async def wait(self, waiter: Waiter, deadline: float) -> bool:
        """Wait until one of the waiter's calls has finished; False when `deadline` came first."""
        runtime = self._runtime
        try:
            while not waiter.ready:
                remaining = deadline - runtime.now()
                if remaining <= 0:
                    return False
                unwritten = self._unwritten()
                if unwritten is not None and not self._reading:
                    # Usually all that it takes.
                    unwritten = unwritten if not unwritten.flush_now() else self._unwritten_elsewhere()
                    if waiter.ready:
                        continue  # that was all it waited for, or the connection failed
                if unwritten is not None:
                    await unwritten.write_out(remaining, polite=self._reading)
                elif not self._reading and self._connections:
                    await self._read(remaining)
                else:
                    await self._sleep(waiter, remaining)
            return True
        finally:
            self._hand_over()

    async def _read(self, timeout_s: float) -> None:
        self._reading = True
        try:
            connections = self._connections
            await self._runtime.wait_readable([c.sock for c in connections], timeout_s)
            for connection in list(connections):
                connection.read_ready()
        finally:
            self._reading = False

    async def _sleep(self, waiter: Waiter, timeout_s: float) -> None:
        event = self._runtime.event()
        self._sleepers[waiter] = event
        waiter.wake = event.set
        try:
            await event.wait(timeout_s)
        finally:
            waiter.wake = None
            del self._sleepers[waiter]

    def _unwritten(self) -> Connection | None:
        for connection in self._connections:
            if connection.has_unwritten:
                return connection
        return None

    def _unwritten_elsewhere(self) -> Connection | None:
        """Look again after one connection was written out: with a single one there is nothing to look for."""
        return self._unwritten() if len(self._connections) > 1 else None

    def _hand_over(self) -> None:
        if not self._sleepers and not self._reading:
            return
        unwritten = self._unwritten()
        if self._reading and unwritten is None:
            return
        for event in self._sleepers.values():
            event.set()
            return
        if self._reading and unwritten is not None:
            # Nobody sleeps, but the reader does not know that there is something left to write.
            self._runtime.interrupt()

    def reset(self) -> None:
        """Forget every turn and sleeper: in a forked child their threads do not exist."""
        self._reading = False
        self._sleepers.clear()
        self._connections.clear()
