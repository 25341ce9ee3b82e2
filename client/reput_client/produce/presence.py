"""A producer that brokers send questions or replies to: its membership of the group, and the heartbeats that
keep it.

A broker sends its questions on the connection that a heartbeat came by. When that ends, it has no client to
ask until a heartbeat comes by another one. Producers that only send have no membership.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
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


class ProducerMembership:
    """One client's membership of one producer group, at every broker that it has sent to; a background chore.

    Attributes:
        client_id: what brokers know this producer by; empty before it has joined.
        on_due: called, never waiting, when a heartbeat is due earlier than thought.
    """

    def __init__(self, session: Session, group: str, heartbeat_interval_s: float) -> None:
        self.client_id = ""
        self.on_due: Callable[[], None] = lambda: None
        self._session = session
        self._group = group
        self._interval_s = heartbeat_interval_s
        self._epochs: dict[Address, int | None] = {}  # by which connection a broker knows us; None: by none
        self._beating: dict[Address, Event] = {}
        self._due_at = 0.0
        session.on_lost = self._connection_lost

    async def join(self) -> None:
        """Connect to a broker and register with it.

        Raises:
            ConnectFailed, RequestTimeout: none answers.
            BrokerError: it does not take us.
        """
        session = self._session
        deadline = session.deadline(session.connect_timeout_s)
        connection = await session.open(None, deadline)
        await self.be_known_to(connection.address, max(deadline, session.deadline(None)))

    async def be_known_to(self, address: Address, deadline: float | None = None) -> None:
        """Register with a broker that does not know us by the connection that we have to it now.

        Many may want that at a time; one heartbeat is sent for all of them.

        Raises:
            ReputError: as `join`.
        """
        runtime = self._session.runtime
        if deadline is None:
            deadline = self._session.deadline(None)
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
        """See `Chore`: send heartbeats; what is refused or not answered is tried again soon."""
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
            self.on_due()

    # -- ending ------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Tell the brokers that we are gone, over connections that are there; never raises."""
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
                log.warning("producer group %s: not told %s that we leave: %s", self._group, address, error)
        self._epochs.clear()

    def forget(self) -> None:
        """In a forked child: it is no member yet, and must not pass for its parent."""
        self._epochs.clear()
        self._beating.clear()
        self.client_id = ""
        self._due_at = 0.0


class Presence:
    """Whether and how brokers know one producer. It begins when it is first needed."""

    def __init__(self, session: Session, group: str, heartbeat_interval_s: float) -> None:
        self._group = group
        self._membership = ProducerMembership(session, group, heartbeat_interval_s)
        # It logs what ends it; the next use starts it again.
        self._background = Background(session, (self._membership,), on_failure=lambda: None)
        self._membership.on_due = self._background.wake

    @property
    def client_id(self) -> str:
        """What brokers know the producer by; empty before it has begun."""
        return self._membership.client_id

    async def begin(self) -> None:
        """Register with a broker and keep that up; nothing happens if it has begun.

        Raises:
            ConnectFailed, RequestTimeout: none answers.
            BrokerError: it does not take us.
        """
        if not self._background.running:
            await self._membership.join()
            self._background.start()

    async def be_known_to(self, address: Address, deadline: float | None = None) -> None:
        """Have a broker know the producer by the connection that there is to it now; begins it if need be.

        Raises:
            InvalidName: the group's name is not one for members.
            ConnectFailed, RequestTimeout, BrokerError: as `begin`.
        """
        check_client_group(self._group)
        await self._membership.be_known_to(address, deadline)
        self._background.start()

    async def leave(self) -> None:
        """Tell the brokers that the producer is gone; never raises."""
        await self._membership.leave()

    async def stop(self, timeout_s: float) -> None:
        """Keep it up no longer."""
        if self._background.running:
            await self._background.stop(timeout_s)

    def forget(self) -> None:
        """In a forked child: it has not begun."""
        self._membership.forget()
        self._background.forget()
