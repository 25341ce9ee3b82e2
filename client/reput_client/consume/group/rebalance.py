"""Rebalancing: computes this member's queues (RocketMQ: RebalanceImpl)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from typing_extensions import override

from reput_client.consume.group.allocation import AllocationStrategy, allocate
from reput_client.consume.group.membership import Membership
from reput_client.consume.group.options import ConsumerOptions
from reput_client.errors import BrokerNotFound
from reput_client.transport.address import Address
from reput_client.transport.background import Chore
from reput_client.transport.routing import Route
from reput_client.transport.session import Session
from reput_protocol.codes import MessageModel
from reput_protocol.errors import BrokerError, ReputError, TopicNotFound
from reput_protocol.record.message import MessageQueue

INTERVAL_S: Final = 20.0
RETURN_S: Final = 1.0
"""How long members that a broker has lost at once, such as by a restart, have to come back."""
SETTLED_S: Final = 1.0
"""How long after a change members may have different member lists."""
_RETRY_S: Final = 1.0
_LOOK_AGAIN_S: Final = 0.1

log = logging.getLogger("reput_client")


@dataclass(slots=True)
class Assignment:
    """The queues assigned to this member.

    `from_living` are those that another, living member may still have and needs a moment to give up. `unknown` are
    topics without an answer; their queues stay as they are. `others_may_return`: the connection was lost a moment ago,
    perhaps for all members.
    """

    queues: set[MessageQueue] = field(default_factory=set)
    from_living: set[MessageQueue] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    others_may_return: bool = False


class Rebalancer(Chore):
    """Computes the assignment when the group changes, and every 20 s; a background chore.

    A broadcasting member gets all queues.

    Attributes:
        failure: set if a subscribed topic is gone, or None.
        awaited: topics that have not existed yet; their absence is not a failure.
    """

    def __init__(
        self,
        session: Session,
        options: ConsumerOptions[Any],
        membership: Membership,
        on_assignment: Callable[[Assignment], None],
    ) -> None:
        self._session = session
        self._membership = membership
        self._subscriptions = options.subscriptions
        self._strategy = options.allocation if options.model is MessageModel.CLUSTERING else None
        self._on_assignment = on_assignment
        self.failure: TopicNotFound | None = None
        self.awaited: set[str] = set()
        self._missing: set[str] = set()
        """Topics that are not known now; reported once."""
        self._members: dict[str, list[str]] = {}
        self._settled_at: dict[str, float] = {}  # by topic: when all members have the same list
        self._due_at = 0.0
        self._done_at = -math.inf
        self._routes_due_at = -math.inf
        self._cut_off = False
        self._others_may_return_until = -math.inf
        self._retry_topic_until = -math.inf

    @override
    def next_due(self) -> float:
        return self._due_at

    def soon(self) -> None:
        """Compute it again: the group may have changed."""
        self._due_at = self._session.runtime.now()

    def refresh_routes(self) -> None:
        """Fetch the routes soon: a broker is not the master that they name."""
        self._routes_due_at = -math.inf
        self._due_at = min(self._due_at, max(self._session.runtime.now(), self._done_at + _LOOK_AGAIN_S))

    def cut_off(self) -> None:
        """Forget the members after a lost connection: others may have taken our queues."""
        self._cut_off = True
        self._members.clear()
        self._routes_due_at = -math.inf

    @override
    async def do(self) -> None:
        now = self._session.runtime.now()
        if self._cut_off:
            self._others_may_return_until = now + RETURN_S
        self._done_at, self._due_at = now, now + INTERVAL_S
        refresh = now >= self._routes_due_at
        if refresh:
            self._routes_due_at = self._due_at
        assignment = Assignment(others_may_return=now < self._others_may_return_until)
        asked: dict[Address, list[str]] = {}
        failure: TopicNotFound | None = None
        for topic in self._subscriptions.all_topics:
            try:
                route = await self._route(topic, refresh)
                if any(self._session.brokers.masters.get(name) is None for name in route.brokers):
                    self._try_again(with_routes=True)
                if self._strategy is None:
                    assignment.queues |= set(route.readable)
                else:
                    members = await self._members_at(route, asked)
                    if members is None:
                        assignment.unknown.add(topic)
                        self._membership.soon()
                        self._try_again(with_routes=True)
                    else:
                        self._share_out(assignment, route, members, self._strategy)
            except TopicNotFound as error:
                if not await self._session.is_gone(topic, self._session.deadline(None)):
                    if topic not in self._missing:
                        self._missing.add(topic)
                        log.warning(
                            "the route of topic %s is not available now, its queues stay assigned: %s", topic, error
                        )
                    assignment.unknown.add(topic)
                    self._try_again(with_routes=True)
                    continue
                was_known = self._session.routes.get(topic) is not None
                self._session.routes.forget(topic)
                if self._subscriptions.discard(topic):
                    continue
                if topic != self._subscriptions.retry:  # which exists only after a message was given back
                    failure = failure if topic in self.awaited else error
                    self._try_again()
                    continue
                if was_known:  # a new master that does not have it makes it at this member's heartbeat
                    self._retry_topic_until = now + INTERVAL_S
                if now < self._retry_topic_until:
                    self._try_again(with_routes=True)
            except ReputError as error:
                log.warning("queues of %s not allocated, trying again: %s", topic, error)
                assignment.unknown.add(topic)
                self._try_again()
                if isinstance(error, BrokerError):
                    self._membership.soon()
        self.failure = failure
        self._cut_off &= bool(assignment.unknown)
        self._on_assignment(assignment)

    def _try_again(self, *, with_routes: bool = False) -> None:
        self._due_at = min(self._due_at, self._session.runtime.now() + _RETRY_S)
        if with_routes:
            self._routes_due_at = -math.inf

    async def _route(self, topic: str, refresh: bool) -> Route:
        route = None if refresh else self._session.routes.get(topic)
        if route is None:
            route = await self._session.fetch_route(topic, self._session.deadline(None))
        if not route.brokers:
            raise BrokerNotFound("", topic)
        self.awaited.discard(topic)
        self._missing.discard(topic)
        return route

    async def _members_at(self, route: Route, asked: dict[Address, list[str]]) -> list[str] | None:
        """Return the members as the first broker of the topic that answers knows them, or None without one.

        All members prefer the same broker; each is asked once. Raises the last failure if none of them answers.
        """
        failure: ReputError | None = None
        for name in route.brokers:
            address = self._membership.source(name)
            if address is None:
                continue
            try:
                if address not in asked:
                    asked[address] = await self._membership.members(address)
                return asked[address]
            except ReputError as error:
                self._session.check_open()
                failure = error
        if failure is not None:
            raise failure
        return None

    def _share_out(
        self, assignment: Assignment, route: Route, members: Sequence[str], strategy: AllocationStrategy
    ) -> None:
        me = self._membership.client_id
        mine = set(allocate(strategy, me, route.readable, members))
        if me not in members:
            log.warning("the broker's list of members does not include this one, %s", me)
            self._membership.soon()
            self._try_again()
        assignment.from_living |= self._from_living(route, mine, members, strategy)
        assignment.queues |= mine
        if set(self._members.get(route.topic, ())) != set(members):
            self._settled_at[route.topic] = self._session.runtime.now() + SETTLED_S
        self._members[route.topic] = list(members)

    def _from_living(
        self, route: Route, mine: set[MessageQueue], members: Sequence[str], strategy: AllocationStrategy
    ) -> set[MessageQueue]:
        """Return those of our queues that another living member may have."""
        me = self._membership.client_id
        others = set(members) - {me}
        # Before we joined, the others had all queues.
        before = self._members.get(route.topic) or sorted(others)
        has_settled = self._session.runtime.now() >= self._settled_at.get(route.topic, math.inf)
        if has_settled and not others.difference(before) and len(set(before).difference(members)) == 1:
            # Only one member has left: its queues have no owner.
            return {
                queue
                for other in others.intersection(before)
                for queue in mine.intersection(allocate(strategy, other, route.readable, before))
            }
        # Members may learn of several quick changes one by one, so a queue of a member that has left may belong to a
        # living one for a moment.
        return mine.difference(allocate(strategy, me, route.readable, before)) if others else set()

    def forget(self) -> None:
        """In a forked child: forget the members."""
        self._members.clear()
        self._settled_at.clear()
        self._cut_off = False
        self._due_at = 0.0
