"""Routes: which brokers hold a topic, and its writable and readable queues. `session.py` fetches them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from reput_client.transport.address import Address, parse_address
from reput_protocol.codes import Perm
from reput_protocol.commands.topic import TopicRoute
from reput_protocol.record.message import MessageQueue

ROUTE_REFRESH_S: Final = 30.0
MASTER_ID: Final = 0
TEMPLATE_QUEUES_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class Route:
    """The queues of one topic and the addresses of their brokers.

    `template` marks the route of a topic that does not exist yet; the broker creates it on the first send (RocketMQ:
    TopicPublishInfo from the topic TBW102).
    """

    topic: str
    writable: tuple[MessageQueue, ...]
    readable: tuple[MessageQueue, ...]
    brokers: Mapping[str, Address]
    template: bool = False

    @classmethod
    def from_body(
        cls, topic: str, body: TopicRoute, home: Address | None = None, answered_by: str | None = None
    ) -> Route:
        """Read a broker's answer: write queues of writable topics, read queues of readable ones.

        If `answered_by` is the only broker, its address is `home`, where it was asked: the one that it announces may be
        unreachable from here, or another broker's.
        """
        writable: list[MessageQueue] = []
        readable: list[MessageQueue] = []
        for data in sorted(body.queue_datas, key=lambda data: data.broker_name):
            name = data.broker_name
            if data.perm & Perm.WRITE:
                writable += [MessageQueue(topic, name, number) for number in range(data.write_queue_nums)]
            if data.perm & Perm.READ:
                readable += [MessageQueue(topic, name, number) for number in range(data.read_queue_nums)]
        brokers = {
            data.broker_name: parse_address(data.broker_addrs[MASTER_ID])
            for data in body.broker_datas
            if MASTER_ID in data.broker_addrs
        }
        if home is not None and set(brokers) == {answered_by}:
            brokers = dict.fromkeys(brokers, home)
        return cls(topic, tuple(writable), tuple(readable), brokers)

    def as_template_for(self, topic: str) -> Route:
        """Return the route for `topic` by this template's: at most 4 queues on each broker."""
        queues = tuple(
            MessageQueue(topic, queue.broker_name, queue.queue_id)
            for queue in self.writable
            if queue.queue_id < TEMPLATE_QUEUES_MAX
        )
        return Route(topic, queues, queues, self.brokers, template=True)


class RouteTable:
    """Routes by topic, each with the time when it was fetched."""

    def __init__(self, refresh_s: float = ROUTE_REFRESH_S) -> None:
        self._refresh_s = refresh_s
        self._routes: dict[str, tuple[Route, float]] = {}

    def get(self, topic: str) -> Route | None:
        """Return the route of `topic`, however old, or None."""
        entry = self._routes.get(topic)
        return entry[0] if entry else None

    def fresh(self, topic: str, now: float) -> Route | None:
        """Return the route of `topic` unless it is a template or due for a refresh."""
        entry = self._routes.get(topic)
        if entry is None or entry[0].template or now - entry[1] >= self._refresh_s:
            return None
        return entry[0]

    def is_stale(self, topic: str, now: float) -> bool:
        """Return whether the route is missing or due for a refresh."""
        entry = self._routes.get(topic)
        return entry is None or now - entry[1] >= self._refresh_s

    def put(self, route: Route, now: float) -> None:
        """Store a route fetched at `now`."""
        self._routes[route.topic] = (route, now)

    def touch(self, topic: str, now: float) -> None:
        """Count a route as fresh while a request for it is in progress."""
        entry = self._routes.get(topic)
        if entry is not None:
            self._routes[topic] = (entry[0], now)

    def topics_at(self, address: Address) -> list[str]:
        """Return the topics that have a broker at `address`."""
        return [topic for topic, (route, _) in self._routes.items() if address in route.brokers.values()]

    def expire(self, topic: str) -> None:
        """Make the route due for a refresh; it stays in use until then."""
        self.touch(topic, -math.inf)

    def forget(self, topic: str) -> None:
        """Remove the route; the next use fetches it."""
        self._routes.pop(topic, None)
