"""The search for masters: which broker is asked for routes, and what its answers say about the brokers.

A client has one address or several, and learns others. They are asked one after the other until one knows the masters:
a broker that is cut off from the others does not know their master.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from reput_client.errors import ConnectFailed, RequestTimeout
from reput_client.transport.address import Address, BrokerIdentity, parse_addresses
from reput_client.transport.connection import BrokerConnection
from reput_client.transport.routing import BrokerTable
from reput_client.transport.runtime import Runtime
from reput_protocol.codes import RequestCode
from reput_protocol.commands.topic import MASTER_ID, BrokerData
from reput_protocol.wire.channel import Call
from reput_protocol.wire.header import Value

TRY_S: Final = 1.0
"""How long a connection to one broker may take before its address is looked up again."""
_MEMBERS_MAX: Final = 16

log = logging.getLogger("reput_client")


class RouteSearch:
    """Asks for routes at one of the client's addresses.

    Attributes:
        guide: the address that is asked; None: the one of `home` that is connected.
    """

    def __init__(
        self,
        home: Address,
        runtime: Runtime,
        brokers: BrokerTable,
        connection_to: Callable[[Address], BrokerConnection],
        ask: Callable[..., Awaitable[Call]],
    ) -> None:
        """`connection_to` and `ask` are those of `Session`."""
        self._home = home
        self._runtime = runtime
        self._brokers = brokers
        self._connection_to = connection_to
        self._ask = ask
        self.guide: Address | None = None
        self._members: tuple[Address, ...] = ()
        """Other brokers of which one may be the master, as one that knew none has said."""
        self._is_misled = False
        """Whether the last answer has led to no master, so that the next address is asked."""

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The brokers that may be asked."""
        return tuple(dict.fromkeys((*self._home.each, *self._members)))

    def distrust(self) -> None:
        """Note that the last answer has led to no master: the next request goes to the next address."""
        self._is_misled = True

    def next_guide(self) -> Address | None:
        """Return the `guide` for a request that is sent now."""
        in_use, each = self._connection_to(self._home).place, self.addresses
        if self._is_misled:
            self._is_misled = False
            asked = self.guide or in_use
            following = each[(each.index(asked) + 1) % len(each)] if asked in each else each[0]
            self.guide = None if following == in_use else following
        return self.guide

    async def ask(
        self, code: RequestCode, ext: Mapping[str, Value], what: str, deadline: float
    ) -> tuple[Call, Address]:
        """Send a request about routes; return the answered call, and where it was asked.

        A broker that does not answer is left for the one after it. Raises like `Session.ask`.
        """
        while (guide := self.next_guide()) is not None:
            until = min(deadline, self._runtime.now() + TRY_S)
            try:
                await self._connection_to(guide).open(until, patient=False)
                return await self._ask(code, ext, what=what, address=guide, deadline=until), guide
            except (ConnectFailed, RequestTimeout) as error:
                log.info("%s: not from %s: %s", what, guide, error)
                self.distrust()
        return await self._ask(code, ext, what=what, deadline=deadline), self._home

    def check_master(self, call: Call) -> bool:
        """Return whether a master or a name server has answered; if not, the next request goes to the next address."""
        self._is_misled = _broker_id(call) != MASTER_ID
        return not self._is_misled

    def learn_members(self, call: Call) -> None:
        """Take what a broker that is not the master says of those that may be."""
        said = ",".join(
            str(call.answer.ext[name]) for name in ("master", "members") if name in call.answer.ext
        )
        if said:
            with suppress(ValueError):
                members = dict.fromkeys((*parse_addresses(said), *self._members))
                self._members = tuple(members)[:_MEMBERS_MAX]

    def learn_brokers(self, brokers: Iterable[BrokerData], call: Call, asked_at: Address) -> bool:
        """Take the brokers' addresses from an answer, whose header says which broker has answered.

        The only broker of an answer, if it is the master that has answered, keeps the address where it was asked.

        Returns:
            Whether it has the masters of all; if not, the next request goes to the next address.
        """
        brokers = [data for data in brokers if data.broker_addrs]
        self._is_misled = not have_masters(brokers)
        ext = call.answer.ext
        answered_by, own_id = ext.get("brokerName"), _broker_id(call)
        is_alone = own_id == MASTER_ID and {data.broker_name for data in brokers} == {answered_by}
        for data in brokers:
            name = data.broker_name
            addresses = self._brokers.learn(data, asked_at if is_alone else None)
            for broker_id, address in addresses.items():
                connection = self._connection_to(address)
                if broker_id == MASTER_ID:
                    connection.expect_master()
                    connection.has_slaves = len(addresses) > 1
                if address != self._home:
                    is_own = name == answered_by and broker_id == own_id and "startId" in ext
                    connection.expect(BrokerIdentity(name, str(ext["startId"]) if is_own else None))
        return not self._is_misled


def have_masters(brokers: Iterable[BrokerData]) -> bool:
    """Whether the master of each broker that has any member is known."""
    return all(MASTER_ID in data.broker_addrs for data in brokers if data.broker_addrs)


def _broker_id(call: Call) -> int:
    """Return the id of the broker that has answered; that of a master, if it is a name server."""
    return int(str(call.answer.ext.get("brokerId", MASTER_ID)))
