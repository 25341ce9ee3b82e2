"""Where a request or a half message goes, whose broker must know the producer before: the queue of each attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from reput_client.errors import BrokerNotFound, ConnectFailed, NotABroker
from reput_client.produce.fault_isolation import FaultIsolation
from reput_client.produce.queue_selector import QueueChoice, RoundRobin
from reput_client.transport.routing import Route
from reput_client.transport.session import Session
from reput_protocol.errors import (
    BrokerError,
    ErrorCode,
    NotMaster,
    PermissionDenied,
    ReputError,
    StoreUnavailable,
    TopicNotFound,
)
from reput_protocol.record.message import MessageQueue

T = TypeVar("T")

_REFUSED_THERE: Final = (StoreUnavailable, PermissionDenied, TopicNotFound)
"""Refusals that last, perhaps of this broker only."""


def is_away(error: ReputError) -> bool:
    """Whether a send failed because its broker has no master that can be reached: nothing was stored."""
    return isinstance(error, ConnectFailed | BrokerNotFound | NotMaster) and not isinstance(error, NotABroker)


def lacks_replica(error: ReputError, session: Session, broker_name: str) -> bool:
    """Whether a master waits for its slaves, as for a moment after a failover; nothing was stored.

    Its slaves are in the route, or the application has given their addresses.
    """
    is_refused = isinstance(error, BrokerError) and error.error is ErrorCode.NO_REPLICA
    return is_refused and bool(session.brokers.slaves(broker_name) or session.home.others)


def is_not_taken(error: ReputError) -> bool:
    """Whether a broker has certainly not stored a message that another broker may take (protocol.md, Errors)."""
    if isinstance(error, BrokerError):
        return error.retryable or isinstance(error, _REFUSED_THERE)
    return is_away(error)


class Placement:
    """The queues of one message's attempts, within one timeout.

    Attributes:
        deadline: when the timeout ends.
        queue: the queue of the present attempt; `choose` sets it.
        is_only_broker: whether to wait for this queue's broker until the deadline, because there is no other.
    """

    queue: MessageQueue

    def __init__(
        self,
        session: Session,
        selector: RoundRobin,
        faults: FaultIsolation,
        topic: str,
        choice: QueueChoice,
        deadline: float,
    ) -> None:
        """Place a message of `topic`."""
        self._session = session
        self._selector = selector
        self._faults = faults
        self._topic = topic
        self._choice = choice
        self.deadline = deadline
        self.is_only_broker = True
        self._chosen = False
        self._refused: set[str] = set()

    async def until_taken(self, attempt: Callable[[MessageQueue], Awaitable[T]]) -> T:
        """Return what `attempt` returns for the first queue whose broker takes the message; raises its last error."""
        while True:
            try:
                return await attempt(await self.choose())
            except ReputError as error:
                if not await self.goes_on(error):
                    raise

    async def choose(self) -> MessageQueue:
        """Return the queue for the next attempt; raises like `Producer.send`."""
        session, topic = self._session, self._topic
        route = session.routes.fresh(topic, session.runtime.now()) or await session.publish_route(
            topic, self.deadline
        )
        if len(route.brokers) == 1 or self._choice is not None:
            self.queue = self._selector.choose(route, self._choice)
        else:
            self.queue = self._selector.choose(route, left_out=self._left_out(route))
            self._faults.chosen(self.queue.broker_name)
            self.is_only_broker = False
        self._chosen = True
        return self.queue

    def _left_out(self, route: Route) -> set[str]:
        """Return the brokers that are tried only if there is no other."""
        faulty = {name for name in route.brokers if self._faults.is_left_out(name)}
        hopeless = {
            name for name in route.brokers if self._session.brokers.master(name) is None
        } | self._refused
        return faulty | hopeless if set(route.brokers) - faulty - hopeless else hopeless

    async def goes_on(self, error: ReputError) -> bool:
        """Return whether to choose again after `error`: nothing is stored, and there is time.

        Without a given queue other brokers are tried first. A master that is away is looked for until the deadline, and
        its slaves are waited for.
        """
        if not self._chosen or not is_not_taken(error):
            return False
        name = self.queue.broker_name
        route = self._session.routes.get(self._topic)
        if not self.is_only_broker and route is not None:
            if not isinstance(error, PermissionDenied | TopicNotFound):  # which are about the topic
                self._faults.failed(name)
            self._refused.add(name)
            masters = {each for each in route.brokers if self._session.brokers.master(each) is not None}
            if isinstance(error, NotMaster):
                self._session.look_soon(name)
            if masters - self._refused:
                return self._session.runtime.now() < self.deadline
        has_waited = self.is_only_broker and isinstance(error, ConnectFailed | BrokerNotFound)
        if has_waited or not (is_away(error) or lacks_replica(error, self._session, name)):
            return False
        self._refused = set()
        return await self._session.look_for_master(self._topic, self.deadline)
