"""Membership of a producer whose group receives requests from brokers, and its heartbeats.

A broker sends its requests on the connection of the last heartbeat. Producers that only send have no membership.
"""

from __future__ import annotations

import logging
from typing import Final

from reput_client.transport.address import Address
from reput_client.transport.background import Background
from reput_client.transport.client import new_client_id
from reput_client.transport.connection import Connection
from reput_client.transport.runtime import Event
from reput_client.transport.session import Session
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import HeartbeatData, ProducerData, UnregisterClientHeader
from reput_protocol.errors import ReputError
from reput_protocol.names import check_client_group
from reput_protocol.wire.header import HeaderType

log = logging.getLogger("reput_client")

HEARTBEAT_INTERVAL_S: Final = 30.0

_RETRY_S: Final = 0.5
_LEAVE_S: Final = 1.0


class Presence:
    """One client's membership of its producer group, at every broker it has sent to; started when needed.

    Attributes:
        client_id: the id that brokers know this producer by; empty before it has joined.
    """

    def __init__(self, session: Session, group: str, heartbeat_interval_s: float) -> None:
        self.client_id = ""
        self._session = session
        self._group = group
        self._interval_s = heartbeat_interval_s
        self._epochs: dict[Address, int | None] = {}
        """By broker: the epoch of the connection that it knows this producer by, or None."""
        self._beating: dict[Address, Event] = {}
        self._due_at = 0.0
        # It logs what ends it; the next use restarts it.
        self._background = Background(session, (self,), on_failure=lambda: None)
        session.on_lost = self._connection_lost

    async def begin(self) -> None:
        """Register with a broker and start the heartbeats, unless that was done.

        Raises `ConnectFailed` or `RequestTimeout` without a broker, `BrokerError` if it refuses.
        """
        if not self._background.running:
            session = self._session
            deadline = session.deadline(session.connect_timeout_s)
            connection = await session.open(None, deadline)
            await self._register(connection.address, max(deadline, session.deadline(None)))
            self._background.start()

    async def be_known_to(self, address: Address, deadline: float | None = None) -> None:
        """Make a broker know this producer by the present connection to it, and start the heartbeats.

        Raises like `begin`, and `InvalidName` if the group's name is not valid for members.
        """
        check_client_group(self._group)
        await self._register(address, self._session.deadline(None) if deadline is None else deadline)
        self._background.start()

    async def _register(self, address: Address, deadline: float) -> None:
        """Send a heartbeat unless the broker knows the present connection; one serves all callers."""
        runtime = self._session.runtime
        while not self._is_known_to(address):
            beating = self._beating.get(address)
            if beating is not None and runtime.now() < deadline:
                await beating.wait(deadline - runtime.now())
                continue
            self._beating[address] = beating = runtime.event()
            try:
                await self._beat(address, deadline)
            finally:
                self._beating.pop(address, None)
                beating.set()

    def _is_known_to(self, address: Address) -> bool:
        connection = self._session.connection_to(address)
        return connection.is_open and self._epochs.get(address) == connection.epoch

    async def _beat(self, address: Address, deadline: float | None = None) -> None:
        if not self.client_id:
            connection = await self._session.open(address, deadline or self._session.deadline(None))
            self.client_id = self.client_id or new_client_id(connection.sock.getsockname()[0])
        if not self._epochs:
            self._due_at = self._session.runtime.now() + self._interval_s
        self._epochs.setdefault(address, None)
        await self._session.ask_ok(
            RequestCode.HEART_BEAT,
            {},
            what=f"heartbeat of {self._group}",
            address=address,
            deadline=deadline,
            body=HeartbeatData(self.client_id, [], [ProducerData(self._group)]).to_json(),
        )
        self._epochs[address] = self._session.connection_to(address).epoch

    # -- the chore ---------------------------------------------------------------------------------------------

    def next_due(self) -> float:
        """See `Chore`."""
        return self._due_at

    async def do(self) -> None:
        """See `Chore`: send heartbeats; failed ones are repeated soon."""
        now = self._session.runtime.now()
        self._due_at = now + self._interval_s
        for address in list(self._epochs):
            try:
                await self._beat(address)
            except ReputError as error:
                self._session.check_open()
                log.warning("producer group %s: no heartbeat to %s: %s", self._group, address, error)
                self._due_at = self._session.runtime.now() + _RETRY_S

    def _connection_lost(self, connection: Connection) -> None:
        if self._epochs.get(connection.address) is not None and not self._session.closed:
            self._epochs[connection.address] = None
            self._due_at = self._session.runtime.now()
            self._background.wake()

    # -- ending ------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Unregister from the brokers over open connections; never raises."""
        header = UnregisterClientHeader(self.client_id, producer_group=self._group)
        for address, epoch in list(self._epochs.items()):
            connection = self._session.connection_to(address)
            if not connection.is_open or connection.epoch != epoch:
                continue
            try:
                await self._session.ask(
                    RequestCode.UNREGISTER_CLIENT,
                    header.to_ext(HeaderType.MSGPACK),
                    what=f"leaving {self._group}",
                    address=address,
                    deadline=self._session.deadline(_LEAVE_S),
                )
            except ReputError as error:
                log.warning("producer group %s: not unregistered at %s: %s", self._group, address, error)
        self._epochs.clear()

    async def stop(self, timeout_s: float) -> None:
        """Stop the heartbeats; return when they have stopped, or after `timeout_s`."""
        if self._background.running:
            await self._background.stop(timeout_s)

    def forget(self) -> None:
        """In a forked child: not a member yet, and distinct from its parent."""
        self._epochs.clear()
        self._beating.clear()
        self.client_id = ""
        self._due_at = 0.0
        self._background.forget()
