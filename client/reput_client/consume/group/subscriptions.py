"""What a group consumes, also topics found by a pattern, and where it begins in a queue without an offset."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, TypeAlias

from typing_extensions import override

from reput_client.consume.offsets import OffsetRequests
from reput_client.consume.pull import MessageSelector
from reput_client.transport.background import Chore
from reput_client.transport.backoff import Backoff
from reput_client.transport.session import SILENCE_S, Session
from reput_protocol.codes import ConsumeFromWhere
from reput_protocol.commands.group import SubscriptionData
from reput_protocol.errors import ReputError
from reput_protocol.filter.tags import ALL
from reput_protocol.names import DLQ_PREFIX, RETRY_PREFIX, check_topic, is_system_topic, retry_topic
from reput_protocol.record.message import MessageQueue


class Subscriptions:
    """The topics of one member, each with its filter; a newer subscription has a higher `version`.

    With a `pattern`, topics come and go; each has the same filter.
    """

    def __init__(
        self,
        filters: Mapping[str, MessageSelector],
        version: int,
        retry: str | None,
        pattern: re.Pattern[str] | None = None,
    ) -> None:
        """Subscribe to `filters`, and to all messages of the `retry` topic if given.

        With a `pattern`, the only filter, under its text, is that of the topics that match.
        """
        self.retry = retry
        self.version = version
        self.pattern = pattern
        self._of_matches = None if pattern is None else filters[pattern.pattern]
        self._filters = {**filters} if pattern is None else {}
        if retry is not None:
            self._filters[retry] = MessageSelector.of(ALL, None)

    @property
    def topics(self) -> tuple[str, ...]:
        """The subscribed topics."""
        return tuple(topic for topic in self._filters if topic != self.retry)

    def add(self, topic: str) -> bool:
        """Subscribe to a topic that matches; False if it was subscribed to before."""
        if topic in self._filters or self._of_matches is None:
            return False
        self._filters[topic] = self._of_matches
        self.version += 1
        return True

    def discard(self, topic: str) -> bool:
        """Forget a topic that is gone; False if it was named, and not found by the pattern."""
        if self._of_matches is None or topic == self.retry:
            return False
        self._filters.pop(topic, None)
        self.version += 1
        return True

    @property
    def all_topics(self) -> tuple[str, ...]:
        """The subscribed topics, and the retry topic."""
        return tuple(self._filters)

    def wanted_of(self, topic: str) -> MessageSelector:
        """Return the filter of `topic`."""
        return self._filters.get(topic) or self._of_matches or self._filters[topic]

    def data(self) -> list[SubscriptionData]:
        """Return the subscriptions as a heartbeat has them."""
        return [
            SubscriptionData.of(topic, wanted.expression, self.version, wanted.expression_type.value)
            for topic, wanted in self._filters.items()
        ]


def parse_topics(
    group: str,
    topic: str | None,
    topics: Iterable[str] | Mapping[str, str] | re.Pattern[str] | None,
    tags: str,
    sql: str | None,
    *,
    retries: bool,
    version: int,
) -> Subscriptions:
    """Return the subscriptions by the arguments of a `Consumer`; with `retries` including the retry topic.

    Raises like `Consumer`.
    """
    if (topic is None) == (topics is None):
        raise ValueError("give either topic= or topics=")
    retry = retry_topic(group) if retries else None
    if isinstance(topics, re.Pattern):
        return Subscriptions({topics.pattern: MessageSelector.of(tags, sql)}, version, retry, topics)
    if topic is not None:
        if isinstance(topic, list | tuple | set | dict | re.Pattern):
            raise TypeError(f"topic= is one name, not {type(topic).__name__}; pass it as topics=")
        wanted: Mapping[str, str] = {check_topic(topic): tags}
    elif isinstance(topics, Mapping):
        if sql is not None:
            raise ValueError("topics= has the tags of each topic; sql= goes with names only")
        wanted = topics
    else:
        assert topics is not None, "one of the two is given"
        wanted = dict.fromkeys([topics] if isinstance(topics, str) else topics, tags)
    if not wanted:
        raise ValueError("topics= names no topic")
    filters = {check_topic(name): MessageSelector.of(expression, sql) for name, expression in wanted.items()}
    return Subscriptions(filters, version, retry)


Start: TypeAlias = Literal["earliest", "latest"] | datetime | int | Callable[[MessageQueue], int]
"""Where a group begins in a queue for which it has no offset; see `Consumer`."""

_WHERE = {"earliest": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, "latest": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET}


def check_start(start: Start) -> None:
    """Raise ValueError or TypeError if `start` is not valid."""
    if isinstance(start, str) and start not in _WHERE:
        raise ValueError(f"start is 'earliest', 'latest', a datetime or a queue offset, not {start!r}")
    if isinstance(start, int) and start < 0:
        raise ValueError(f"start {start} is below 0, the first offset of every queue")
    if not (isinstance(start, str | int | datetime) or callable(start)):
        raise TypeError(f"start is 'earliest', 'latest', a datetime or a queue offset, not {type(start).__name__}")


def consume_from_where(start: Start) -> ConsumeFromWhere:
    """Return `start` as a heartbeat has it; RocketMQ has no form for an offset."""
    if isinstance(start, datetime):
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    return _WHERE.get(start if isinstance(start, str) else "", ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)


@dataclass(eq=False, repr=False)
class StartingPoints:
    """Determines where a group begins in a queue."""

    _offsets: OffsetRequests
    _start: Start
    _retry: str | None
    late_topics: set[str] = field(default_factory=set, init=False)
    """Topics created after this member joined, to be read from the beginning."""

    async def first(self, queue: MessageQueue) -> int:
        """Return where a group without an offset begins. Redelivered messages are never skipped."""
        start = self._start
        if queue.topic == self._retry or start == "earliest":
            return await self._offsets.min_offset(queue)
        if callable(start):
            return start(queue)
        if isinstance(start, int):
            return start
        if isinstance(start, datetime):
            return await self._offsets.offset_by_time(queue, start)
        if queue.topic in self.late_topics:
            return await self._offsets.min_offset(queue)
        return await self._offsets.max_offset(queue)


INTERVAL_S: Final = 20.0
_RETRY_S: Final = 1.0

log = logging.getLogger("reput_client")


class TopicSearch(Chore):
    """Asks for the cluster's topics every 20 s; of a member also when the group changes. A background chore.

    Without a pattern it is never due. A background search tries the client's own address once and waits a second for
    it at most, because pulls and pops wait for the search; after failures it pauses longer, up to the interval.

    Args:
        on_found: called with each topic that matches for the first time.
    """

    def __init__(self, session: Session, subscriptions: Subscriptions, on_found: Callable[[str], None]) -> None:
        self._session = session
        self._subscriptions = subscriptions
        self._on_found = on_found
        self._due_at = math.inf if subscriptions.pattern is None else 0.0
        self._pauses = Backoff(_RETRY_S, INTERVAL_S)

    @override
    def next_due(self) -> float:
        return self._due_at

    def soon(self) -> None:
        """Look now: another member may have found a topic."""
        if self._subscriptions.pattern is not None:
            self._due_at = self._session.runtime.now()

    @override
    async def do(self) -> None:
        session = self._session
        deadline = session.runtime.now() + SILENCE_S
        try:
            await session.connection_to(session.home).open(deadline, patient=False)
            await self.look(deadline)
        except ReputError as error:
            session.check_open()
            log.warning("the list of topics is not available, requesting it again: %s", error)
            self._due_at = session.runtime.now() + self._pauses.next_delay_s()
        else:
            self._pauses.reset()

    async def look(self, deadline: float) -> None:
        """Subscribe to the topics that match; raises `ReputError` if the list cannot be had before `deadline`."""
        pattern = self._subscriptions.pattern
        if pattern is None:
            return
        self._due_at = self._session.runtime.now() + INTERVAL_S
        topics = await self._session.topic_names(deadline)
        own_names = (await self._session.cluster(deadline)).own_names
        for topic in topics:
            is_ours = topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) or is_system_topic(topic, own_names)
            if not is_ours and pattern.fullmatch(topic) and self._subscriptions.add(topic):
                log.info("topic %s matches %s", topic, pattern.pattern)
                self._on_found(topic)
