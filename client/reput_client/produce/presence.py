"""Membership of a producer whose group receives requests from brokers, and its heartbeats.

A broker sends its requests on the connection of the last heartbeat. Producers that only send have no membership.
"""

from __future__ import annotations

import logging
import math
from socket import inet_ntoa
from typing import Final

from typing_extensions import override

from reput_client.errors import BrokerNotFound
from reput_client.produce.unique_ids import own_address
from reput_client.transport.address import Address
from reput_client.transport.background import Background, Chore
from reput_client.transport.client import new_client_id
from reput_client.transport.connection import BrokerConnection
from reput_client.transport.runtime import Event
from reput_client.transport.session import Session
from reput_client.transport.unregistration import unregister
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import HeartbeatData, ProducerData, UnregisterClientHeader
from reput_protocol.errors import BrokerError, ReputError
from reput_protocol.names import check_client_group

log = logging.getLogger("reput_client")

HEARTBEAT_INTERVAL_S: Final = 30.0

_RETRY_S: Final = 0.5
_LEAVE_S: Final = 1.0


class Presence(Chore):
    """One client's membership of its producer group, at the brokers that it has sent to; started when needed.

    Attributes:
        client_id: the id that brokers know this producer by; empty before it has joined.
    """

    def __init__(self, session: Session, group: str, heartbeat_interval_s: float) -> None:
        self.client_id = ""
        self._session = session
        self._group = group
        self._interval_s = heartbeat_interval_s
        self._known_by: dict[str, tuple[Address, int] | None] = {}
        """By broker name: its master's address and the epoch of the connection that it knows this producer by."""
        self._beating: dict[str, Event] = {}
        self._due_at: dict[str, float] = {}
        # It logs what ends it; the next use restarts it.
        self._background = Background(session, (self,), on_failure=lambda: None)
        session.on_lost = self._connection_lost

    def identify(self) -> str:
        """Return the id that brokers will know this producer by, chosen by the first call.

        Raises `InvalidName` if the group's name is not valid for members.
        """
        check_client_group(self._group)
        if not self.client_id:
            self.client_id = new_client_id(inet_ntoa(own_address()))
        return self.client_id

    async def begin(self) -> None:
        """Register with every broker of the cluster and start the heartbeats, unless that was done.

        Brokers that cannot be reached follow later, if any can. Raises `ConnectFailed` or `RequestTimeout` without one,
        `BrokerNotFound` if none is a master in time, `BrokerError` if one refuses.
        """
        if not self._background.running:
            session = self._session
            deadline = session.deadline(session.connect_timeout_s)
            await session.open(None, deadline)
            deadline = max(deadline, session.deadline(None))
            names = await self._brokers(deadline)
            failures: list[ReputError] = []
            for name in names:
                try:
                    await self._register(name, deadline, patient=len(names) == 1)
                except BrokerError:
                    raise
                except ReputError as error:
                    session.check_open()
                    self._failed(name, error)
                    failures.append(error)
            if len(failures) == len(names):
                raise failures[0]
            self._background.start()

    async def _brokers(self, deadline: float) -> list[str]:
        """Return the names of the brokers that have a master; waits for one where a new one is elected just now."""
        session = self._session
        while True:
            try:
                return list(await session.masters(deadline))
            except BrokerNotFound:
                if session.runtime.now() + _RETRY_S > deadline:
                    raise
            await session.runtime.sleep(_RETRY_S)

    async def be_known_to(self, broker_name: str, deadline: float) -> None:
        """Make a broker know this producer by the present connection to its master, and start the heartbeats.

        Raises like `begin`.
        """
        await self._register(broker_name, deadline)
        self._background.start()

    async def _register(self, name: str, deadline: float, *, patient: bool = True) -> None:
        """Send a heartbeat unless the broker knows the present connection; one serves all callers."""
        runtime = self._session.runtime
        while not self.is_known_to(name):
            beating = self._beating.get(name)
            if beating is not None and runtime.now() < deadline:
                await beating.wait(deadline - runtime.now())
                continue
            self._beating[name] = beating = runtime.event()
            try:
                await self._beat(name, deadline, patient=patient)
            finally:
                self._beating.pop(name, None)
                beating.set()

    def is_known_to(self, name: str) -> bool:
        """Whether a broker knows this producer by the present connection to its master."""
        address = self._session.brokers.masters.get(name)
        connection = None if address is None else self._session.connection_to(address)
        return (
            connection is not None
            and connection.is_open
            and self._known_by.get(name) == (connection.address, connection.epoch)
        )

    async def _beat(self, name: str, deadline: float, *, patient: bool) -> None:
        session = self._session
        address = session.brokers.masters.get(name)
        if address is None:
            raise BrokerNotFound(name, "")
        if not patient:
            await session.try_to_open(address, deadline, name)
        connection = await session.open(address, deadline)
        if not (connection.is_of(name) and connection.is_master):  # slaves take heartbeats, and ask for nothing
            raise BrokerNotFound(name, "")
        client_id = self.identify()
        self._known_by.setdefault(name, None)
        await session.ask_ok(
            RequestCode.HEART_BEAT,
            {},
            what=f"heartbeat of {self._group}",
            address=address,
            deadline=deadline,
            body=HeartbeatData(client_id, [], [ProducerData(self._group)]).to_json(),
        )
        self._known_by[name] = (address, session.connection_to(address).epoch)
        self._due_at[name] = session.runtime.now() + self._interval_s

    # -- the chore ---------------------------------------------------------------------------------------------

    @override
    def next_due(self) -> float:
        return min(self._due_at.values(), default=math.inf)

    @override
    async def do(self) -> None:
        """Send the heartbeats that are due; failed ones are repeated soon."""
        session = self._session
        for name in [name for name, due_at in self._due_at.items() if due_at <= session.runtime.now()]:
            deadline = session.deadline(None)
            try:
                if self._known_by[name] is None:
                    await session.look_for_master("", deadline)
                await self._beat(name, deadline, patient=False)
            except ReputError as error:
                session.check_open()
                self._failed(name, error)

    def _failed(self, name: str, error: ReputError) -> None:
        log.warning("producer group %s: no heartbeat to broker %s: %s", self._group, name, error)
        self._known_by[name] = None
        self._due_at[name] = self._session.runtime.now() + _RETRY_S

    def _connection_lost(self, connection: BrokerConnection) -> None:
        if self._session.closed:
            return
        for name, known in self._known_by.items():
            if known is not None and known[0] == connection.address:
                self._known_by[name] = None
                self._due_at[name] = self._session.runtime.now()
                self._background.wake()

    # -- ending ------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Unregister from the brokers over open connections; never raises."""
        header = UnregisterClientHeader(self.client_id, producer_group=self._group)
        brokers = (
            (name, known[0])
            for name, known in list(self._known_by.items())
            if known is not None and self.is_known_to(name)
        )
        await unregister(self._session, header, brokers, _LEAVE_S)
        self._known_by.clear()
        self._due_at.clear()

    async def stop(self, timeout_s: float) -> None:
        """Stop the heartbeats; return when they have stopped, or after `timeout_s`."""
        if self._background.running:
            await self._background.stop(timeout_s)

    def forget(self) -> None:
        """In a forked child: not a member yet, and distinct from its parent."""
        self._known_by.clear()
        self._beating.clear()
        self._due_at.clear()
        self.client_id = ""
        self._background.forget()
