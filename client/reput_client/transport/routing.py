"""Routes: a topic's writable and readable queues, the addresses of brokers, and which broker is asked for them.

A client has one address or several, and learns others. They are asked one after the other until one knows the masters:
a broker that is cut off from the others does not know their master. `session.py` fetches and keeps the routes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from reput_client.errors import ConnectFailed, RequestTimeout
from reput_client.transport.address import Address, BrokerIdentity, parse_address, parse_addresses
from reput_client.transport.connection import BrokerConnection
from reput_client.transport.runtime import Runtime
from reput_protocol.codes import Perm, RequestCode
from reput_protocol.commands.topic import MASTER_ID, BrokerData, TopicRoute
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call
from reput_protocol.wire.header import Value

ROUTE_REFRESH_S: Final = 30.0
RETRY_S: Final = 1.0
"""When a route is refreshed again if that failed, or if a broker had no master."""
_TEMPLATES_MAX: Final = 1000
"""Topics that do not exist yet and whose route is known; a program may ask for any number of names."""
TEMPLATE_QUEUES_MAX: Final = 4
TRY_S: Final = 1.0
"""How long a connection to one broker may take before its address is looked up again."""
_MEMBERS_MAX: Final = 16
log = logging.getLogger("reput_client")


@dataclass(frozen=True, slots=True)
class Route:
    """The queues of one topic, and the names of their brokers, sorted.

    Queues of brokers without a master are included, so that a key keeps its queue during a failover. `template` marks
    the route of a topic that does not exist yet; the broker creates it on the first send (RocketMQ: TopicPublishInfo
    from the topic TBW102).
    """

    topic: str
    writable: tuple[MessageQueue, ...]
    readable: tuple[MessageQueue, ...]
    brokers: tuple[str, ...]
    template: bool = False

    @classmethod
    def from_body(cls, topic: str, body: TopicRoute) -> Route:
        """Read an answer: write queues of writable topics, read queues of readable ones."""
        writable: list[MessageQueue] = []
        readable: list[MessageQueue] = []
        for data in sorted(body.queue_datas, key=lambda data: data.broker_name):
            name = data.broker_name
            if data.perm & Perm.WRITE:
                writable += [MessageQueue(topic, name, number) for number in range(data.write_queue_nums)]
            if data.perm & Perm.READ:
                readable += [MessageQueue(topic, name, number) for number in range(data.read_queue_nums)]
        names = {data.broker_name for data in body.broker_datas if data.broker_addrs}
        return cls(topic, tuple(writable), tuple(readable), tuple(sorted(names)))

    def as_template_for(self, topic: str) -> Route:
        """Return the route for `topic` by this template's: at most 4 queues on each broker."""
        queues = tuple(
            MessageQueue(topic, queue.broker_name, queue.queue_id)
            for queue in self.writable
            if queue.queue_id < TEMPLATE_QUEUES_MAX
        )
        return Route(topic, queues, queues, self.brokers, template=True)


class BrokerTable:
    """The addresses of the brokers by name (RocketMQ: brokerAddrTable).

    Attributes:
        masters: of the brokers that have one.
        slaves: of all known brokers, by id.
    """

    def __init__(self) -> None:
        self.masters: dict[str, Address] = {}
        self.slaves: dict[str, dict[int, Address]] = {}

    def learn(self, data: BrokerData, home: Address | None = None) -> dict[int, Address]:
        """Take a broker's addresses from an answer, and return them by id.

        `home` replaces the master's: it was asked there, and the address that it announces may be unreachable from
        here, or another broker's.
        """
        addresses = {broker_id: parse_address(text) for broker_id, text in data.broker_addrs.items()}
        if home is not None and MASTER_ID in addresses:
            addresses[MASTER_ID] = home
        name = data.broker_name
        self.masters.pop(name, None)
        if MASTER_ID in addresses:
            self.masters[name] = addresses[MASTER_ID]
        self.slaves[name] = {at: address for at, address in addresses.items() if at != MASTER_ID}
        return addresses

    def address(self, name: str, broker_id: int) -> Address | None:
        """Return the address of the named broker's member `broker_id`, if known."""
        return self.masters.get(name) if broker_id == MASTER_ID else self.slaves.get(name, {}).get(broker_id)

    def names_at(self, address: Address) -> list[str]:
        """Return the brokers that have a master or a slave at `address`."""
        return [
            name
            for name, slaves in self.slaves.items()
            if self.masters.get(name) == address or address in slaves.values()
        ]

    def forget(self, name: str) -> None:
        """Forget a broker's addresses."""
        self.masters.pop(name, None)
        self.slaves.pop(name, None)


class RouteTable:
    """Routes by topic, each with the time when it is due for a refresh."""

    def __init__(self, refresh_s: float = ROUTE_REFRESH_S) -> None:
        self._refresh_s = refresh_s
        self._routes: dict[str, tuple[Route, float]] = {}
        self._brokers: dict[str, tuple[str, ...]] = {}
        self._templates: dict[str, None] = {}
        """Topics whose route is a template, those of longest ago first."""

    def brokers_of(self, topic: str) -> tuple[str, ...] | None:
        """Return the brokers of the topic's last route, also of one that was forgotten; None without one."""
        return self._brokers.get(topic)

    def get(self, topic: str) -> Route | None:
        """Return the route of `topic`, however old, or None."""
        entry = self._routes.get(topic)
        return entry[0] if entry else None

    def fresh(self, topic: str, now: float) -> Route | None:
        """Return the route of `topic` unless it is a template or due for a refresh."""
        entry = self._routes.get(topic)
        if entry is None or entry[0].template or now >= entry[1]:
            return None
        return entry[0]

    def is_stale(self, topic: str, now: float) -> bool:
        """Return whether the route is missing or due for a refresh."""
        entry = self._routes.get(topic)
        return entry is None or now >= entry[1]

    def put(self, route: Route, now: float, *, is_complete: bool = True) -> None:
        """Store a route fetched at `now`. Unless `is_complete`, a broker has no master, and it is refreshed soon."""
        self._brokers[route.topic] = route.brokers
        self._routes[route.topic] = (route, now + (self._refresh_s if is_complete else RETRY_S))
        self._templates.pop(route.topic, None)
        if route.template:
            self._templates[route.topic] = None
            if len(self._templates) > _TEMPLATES_MAX:
                oldest = next(iter(self._templates))
                self.forget(oldest)
                del self._brokers[oldest]

    def refresh_at(self, topic: str, when: float) -> None:
        """Make the route due for a refresh at `when`; it stays in use until then."""
        entry = self._routes.get(topic)
        if entry is not None:
            self._routes[topic] = (entry[0], when)

    def topics_of(self, broker_name: str) -> list[str]:
        """Return the topics that the named broker has."""
        return [topic for topic, (route, _) in self._routes.items() if broker_name in route.brokers]

    def forget(self, topic: str) -> None:
        """Remove the route; the next use fetches it."""
        self._routes.pop(topic, None)
        self._templates.pop(topic, None)


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
        said = ",".join(str(call.answer.ext[name]) for name in ("master", "members") if name in call.answer.ext)
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
