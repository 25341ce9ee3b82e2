"""Membership of a group: heartbeats, the list of members, change notifications, leaving.

A broker identifies a member by its connection. On a new connection the member has to join again; until then its queues
may not be its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from reput_client.consume.group.options import MemberOptions
from reput_client.consume.group.subscriptions import consume_from_where
from reput_client.transport.address import Address
from reput_client.transport.broker_requests import BrokerRequest
from reput_client.transport.connection import Connection
from reput_client.transport.session import Session
from reput_protocol.codes import ConsumeType, RequestCode
from reput_protocol.commands.group import (
    ConsumerData,
    ConsumerIdsChangedHeader,
    ConsumerList,
    ConsumerListHeader,
    HeartbeatData,
    UnregisterClientHeader,
)
from reput_protocol.errors import BrokerError, ReputError
from reput_protocol.wire.header import HeaderType

_RETRY_S: Final = 0.25
_SEVERAL_ADDRESSES_S: Final = 5.0
_MSGPACK = HeaderType.MSGPACK

log = logging.getLogger("reput_client")


class Membership:
    """One client's membership of one group, at every broker of its topics; a background chore.

    Attributes:
        client_id: the member's id in the group.
        failure: why a broker refuses this member, or None. Every heartbeat tries again.
    """

    def __init__(
        self,
        session: Session,
        options: MemberOptions,
        *,
        on_change: Callable[[], None],
        on_lost: Callable[[Address], None],
        on_failure: Callable[[], None],
    ) -> None:
        """`on_change`: members have changed; `on_lost`: a broker is gone; `on_failure`: `failure` was set."""
        self.client_id = ""
        self.failure: BrokerError | None = None
        self._session = session
        self._group = options.group
        self._subscriptions = options.subscriptions
        self._model = options.model
        self._where = consume_from_where(options.start)
        self._interval_s = options.heartbeat_interval_s
        if session.home.others:
            # So that a silent broker is noticed and looked for elsewhere.
            self._interval_s = min(self._interval_s, _SEVERAL_ADDRESSES_S)
        self._on_change = on_change
        self._on_lost = on_lost
        self._on_failure = on_failure
        self._epochs: dict[Address, int] = {}
        self._due_at = 0.0
        session.requests.register(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._ids_changed)
        session.on_lost = self._connection_lost

    def next_due(self) -> float:
        """See `Chore`."""
        return self._due_at

    async def do(self) -> None:
        """See `Chore`: send heartbeats; failed ones are repeated soon."""
        try:
            await self.heartbeat()
        except ReputError as error:
            log.warning("group %s: no heartbeat: %s", self._group, error)
            self._due_at = self._session.runtime.now() + _RETRY_S

    async def heartbeat(self) -> None:
        """Register with every broker of the topics.

        Raises:
            BrokerError: a broker refuses.
            ConnectFailed, ConnectionLost, RequestTimeout: a broker cannot be reached.
        """
        now = self._session.runtime.now()
        body = self._heartbeat_body()
        failure: ReputError | None = None
        for address in sorted(self.addresses()):
            try:
                await self._beat(address, body)
            except ReputError as error:
                failure = failure or error
        self.failure = failure if isinstance(failure, BrokerError) and not failure.retryable else None
        if self.failure is not None:
            self._on_failure()
        if failure is not None:
            raise failure
        self._due_at = now + self._interval_s

    async def _beat(self, address: Address, body: bytes) -> None:
        await self._session.ask_ok(
            RequestCode.HEART_BEAT, {}, what=f"heartbeat of {self._group}", address=address, body=body
        )
        if not self.is_registered(address):
            self._epochs[address] = self._session.connection_to(address).epoch
            self._on_change()

    def soon(self) -> None:
        """Send the next heartbeat now: a broker seems not to know this member."""
        self._due_at = self._session.runtime.now()

    def _heartbeat_body(self) -> bytes:
        return HeartbeatData(
            self.client_id,
            [
                ConsumerData(
                    self._group,
                    ConsumeType.CONSUME_PASSIVELY,
                    self._model,
                    self._where,
                    self._subscriptions.data(),
                )
            ],
        ).to_json()

    def addresses(self) -> set[Address]:
        """Return the masters of all topics with known routes."""
        routes = map(self._session.routes.get, self._subscriptions.all_topics)
        masters = {self._session.brokers.master(name) for route in routes if route for name in route.brokers}
        return {address for address in masters if address is not None}

    def is_registered(self, address: Address) -> bool:
        """Whether the broker knows this member by the present connection."""
        connection = self._session.connection_to(address)
        return connection.is_open and self._epochs.get(address) == connection.epoch

    async def members(self, address: Address) -> list[str]:
        """Return the client ids of the group's members, as one broker knows them.

        Raises `ReputError` if it does not answer, or knows no member.
        """
        call = await self._session.ask_ok(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            ConsumerListHeader(self._group).to_ext(_MSGPACK),
            what=f"members of {self._group}",
            address=address,
        )
        return ConsumerList.from_json(call.body).consumer_ids

    async def leave(self, timeout_s: float) -> None:
        """Unregister from the brokers over open connections; never raises."""
        header = UnregisterClientHeader(self.client_id, consumer_group=self._group)
        for address in [address for address in self._epochs if self.is_registered(address)]:
            try:
                await self._session.ask(
                    RequestCode.UNREGISTER_CLIENT,
                    header.to_ext(_MSGPACK),
                    what=f"leaving {self._group}",
                    address=address,
                    deadline=self._session.deadline(timeout_s),
                )
            except ReputError as error:
                log.warning("group %s: not unregistered at %s: %s", self._group, address, error)
        self._epochs.clear()

    def _ids_changed(self, request: BrokerRequest) -> None:
        if ConsumerIdsChangedHeader.from_ext(request.ext).consumer_group == self._group:
            self._on_change()
        request.answer()

    def _connection_lost(self, connection: Connection) -> None:
        if self._epochs.pop(connection.address, None) is not None and not self._session.closed:
            self._due_at = self._session.runtime.now()
            self._on_lost(connection.address)

    def forget(self) -> None:
        """In a forked child: not a member yet, and distinct from its parent."""
        self._epochs.clear()
        self.client_id = ""
        self._due_at = 0.0
