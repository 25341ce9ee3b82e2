"""Requesting the next messages of queues ahead, while those before them are handled."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from reput_client.consume.pull import PULL_BYTES_MAX
from reput_client.transport.channel import RequestTemplate
from reput_client.transport.connection import BrokerConnection
from reput_client.transport.session import Session
from reput_protocol.codes import RequestCode
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call, Waiter
from reput_protocol.wire.header import Value

AHEAD_BYTES_MAX: Final = 32 << 20
"""How much a consumer keeps of what it has requested ahead, in bytes of records."""
_UNUSED_S: Final = 10.0
"""An answer that was not taken for this long makes room for others."""
_CHECKED_AFTER_S: Final = 0.05
"""What was requested longer ago is taken only after its connection was read to the end."""


class _Ahead(NamedTuple):
    """A request ahead.

    Attributes:
        epoch: of the connection.
        asked_bytes: how large the answer of a broker with ordinary limits may be.
    """

    what: object
    connection: BrokerConnection
    epoch: int
    call: Call
    asked_at: float
    asked_bytes: int

    @property
    def held_bytes(self) -> int:
        return len(self.call.body) if self.call.done else self.asked_bytes


class ReadAhead:
    """At most one request ahead for each queue; its answer is kept until taken, replaced or dropped.

    Only an identical request takes it; any other drops it. It is not taken if its connection has ended since, or is not
    the one to the master any more: another master may have other messages at these offsets.

    Args:
        session: has the connections and waits for answers.
        code: PULL_MESSAGE or FETCH_RECORDS.
        bytes_max: of all answers. Without room there is no request, unless others were not taken for a while.
    """

    def __init__(
        self,
        session: Session,
        code: RequestCode = RequestCode.PULL_MESSAGE,
        *,
        bytes_max: float = math.inf,
    ) -> None:
        self._session = session
        self._code = code
        self._bytes_max = bytes_max
        self._pulls: dict[MessageQueue, _Ahead] = {}
        """Oldest first."""

    def start(
        self,
        queue: MessageQueue,
        what: object,
        ext: Mapping[str, Value],
        connection: BrokerConnection | None,
        max_bytes: int,
    ) -> None:
        """Send the request `ext` for `max_bytes` without waiting; does nothing without an open connection or room.

        `what` is equal for equal requests, and may be `ext`.
        """
        self.drop(queue)
        now, size = self._session.runtime.now(), min(max_bytes, PULL_BYTES_MAX)
        if connection is not None and connection.usable() and self._make_room(size, now):
            call = connection.start_template(RequestTemplate(self._code, ext), Waiter())
            connection.flush_now()
            self._pulls[queue] = _Ahead(what, connection, connection.epoch, call, now, size)

    def _make_room(self, size: int, now: float) -> bool:
        """Return whether there is room, if need be without answers that were not taken for a while.

        Those of queues that are read one after the other are not dropped: each would be, just before it is taken.
        """
        held = size + sum(ahead.held_bytes for ahead in self._pulls.values())
        for queue, ahead in list(self._pulls.items()):
            if held <= self._bytes_max or now - ahead.asked_at < _UNUSED_S:
                break
            held -= ahead.held_bytes
            self.drop(queue)
        return held <= self._bytes_max

    async def take(self, queue: MessageQueue, what: object, deadline: float) -> Call | None:
        """Return the answered request for `what`; None if there is none, it failed, or `deadline` passed."""
        ahead = self._pulls.pop(queue, None)
        if ahead is None:
            return None
        session, call = self._session, ahead.call
        if session.runtime.now() - ahead.asked_at > _CHECKED_AFTER_S:
            session.poll(to_the_end=True)  # a connection that has ended is known to have
        is_good = False
        try:
            if ahead.what == what and self._is_of_master(ahead, queue):
                await session.pump.wait(call.waiter, deadline)
                is_good = call.done and call.error is None and self._is_of_master(ahead, queue)
        finally:
            if not call.done:
                ahead.connection.abandon(call)
        return call if is_good else None

    def _is_of_master(self, ahead: _Ahead, queue: MessageQueue) -> bool:
        connection = ahead.connection
        return (
            connection.is_open
            and connection.epoch == ahead.epoch
            and self._session.known_connection(queue) is connection
        )

    def drop(self, queue: MessageQueue) -> None:
        """Abandon the request of a queue."""
        ahead = self._pulls.pop(queue, None)
        if ahead is not None and not ahead.call.done:
            ahead.connection.abandon(ahead.call)
