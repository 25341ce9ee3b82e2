"""Messages asked for before they are wanted: whoever goes on where it stopped finds the next answer coming."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from reput_client.transport.connection import Connection
from reput_client.transport.core import Call, Waiter
from reput_client.transport.pump import Pump
from reput_protocol.codes import RequestCode
from reput_protocol.header import Value


class ReadAhead:
    """At most one such request for each queue; its answer is kept until it is taken, replaced or dropped.

    It is taken only by a reader that asks for exactly the same; any other ask drops it.

    Args:
        pump: waits for answers.
        code: what is asked, PULL_MESSAGE or FETCH_RECORDS.
    """

    def __init__(self, pump: Pump, code: RequestCode = RequestCode.PULL_MESSAGE) -> None:
        self._pump = pump
        self._code = code
        self._pulls: dict[Hashable, tuple[Mapping[str, Value], Connection, Call]] = {}

    def start(self, queue: Hashable, ext: Mapping[str, Value], connection: Connection | None) -> None:
        """Ask for `ext` now, without waiting; without an open connection, do nothing."""
        self.drop(queue)
        if connection is not None and connection.usable():
            call = connection.start(self._code, ext, Waiter())
            connection.flush_now()
            self._pulls[queue] = (ext, connection, call)

    async def take(self, queue: Hashable, ext: Mapping[str, Value], deadline: float) -> Call | None:
        """Return the answered request for `ext`; None if there is none, it failed or `deadline` passed."""
        if queue not in self._pulls:
            return None
        asked, connection, call = self._pulls.pop(queue)
        try:
            if asked == ext:
                await self._pump.wait(call.waiter, deadline)
        finally:
            if not call.done:
                connection.abandon(call)
        return call if call.done and call.error is None and asked == ext else None

    def drop(self, queue: Hashable) -> None:
        """Want what was asked for of the queue no more."""
        if queue in self._pulls:
            _, connection, call = self._pulls.pop(queue)
            if not call.done:
                connection.abandon(call)
