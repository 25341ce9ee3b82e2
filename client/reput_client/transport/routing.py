"""Which brokers hold a topic, and which of its queues can be written and read. Pure; `session.py` fetches."""

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
    """The queues of one topic and the addresses of the brokers that hold them.

    `template` marks the route of a topic that does not exist yet and that the broker will make on the first
    send (RocketMQ: TopicPublishInfo from the topic TBW102).
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
        """Read a broker's answer: write queues where the topic may be written, read queues where it may be read.

        If broker `answered_by`, which was asked at `home`, is the only one, it is reached there, whatever it announces:
        what it announces may be unreachable from here, or another broker's here.
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
        """Return what this route, the template topic's, says of `topic`: at most 4 queues on each broker."""
        queues = tuple(
            MessageQueue(topic, queue.broker_name, queue.queue_id)
            for queue in self.writable
            if queue.queue_id < TEMPLATE_QUEUES_MAX
        )
        return Route(topic, queues, queues, self.brokers, template=True)


class RouteTable:
    """Routes by topic, each with the time it was learnt."""

    def __init__(self, refresh_s: float = ROUTE_REFRESH_S) -> None:
        self._refresh_s = refresh_s
        self._routes: dict[str, tuple[Route, float]] = {}

    def get(self, topic: str) -> Route | None:
        """Return what is known of `topic`, however old."""
        entry = self._routes.get(topic)
        return entry[0] if entry else None

    def fresh(self, topic: str, now: float) -> Route | None:
        """Return what is known of `topic` if one can send by it and it is not time to ask again."""
        entry = self._routes.get(topic)
        if entry is None or entry[0].template or now - entry[1] >= self._refresh_s:
            return None
        return entry[0]

    def is_stale(self, topic: str, now: float) -> bool:
        """Tell whether it is time to ask again."""
        entry = self._routes.get(topic)
        return entry is None or now - entry[1] >= self._refresh_s

    def put(self, route: Route, now: float) -> None:
        """Keep a route learnt at `now`."""
        self._routes[route.topic] = (route, now)

    def touch(self, topic: str, now: float) -> None:
        """Count a known route as fresh: a request for it is in progress."""
        entry = self._routes.get(topic)
        if entry is not None:
            self._routes[topic] = (entry[0], now)

    def topics_at(self, address: Address) -> list[str]:
        """Return the topics of which a broker is at `address`."""
        return [topic for topic, (route, _) in self._routes.items() if address in route.brokers.values()]

    def expire(self, topic: str) -> None:
        """Ask for a known route at its next use, which goes by what is known meanwhile."""
        self.touch(topic, -math.inf)

    def forget(self, topic: str) -> None:
        """Ask again at the next use."""
        self._routes.pop(topic, None)
