"""Asking the brokers of the topics for messages.

A *source* is one topic at one broker: a pop takes messages from any of its queues, and from the group's retry topic of
it. The sources are asked one after the other, beginning with another one each time. While none has messages, the client
waits for a notification of each (RocketMQ: NOTIFICATION). A notification takes nothing, so that a caller that gives up
waiting leaves no message invisible with no one to handle it, as a held pop would.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from uuid import uuid4

from typing_extensions import override

from reput_client.consume.group.subscriptions import Start, StartingPoints, Subscriptions, TopicSearch
from reput_client.consume.offsets import OffsetRequests
from reput_client.consume.pull import MessageSelector
from reput_client.errors import NoQueue
from reput_client.pop.popped import Popped, Settling, popped_messages
from reput_client.transport.backoff import Backoff
from reput_client.transport.channel import RequestTemplate
from reput_client.transport.connection import BrokerConnection
from reput_client.transport.session import SILENCE_S, Session, wall_clock_ms
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.pop import POP_MESSAGES_MAX, NotificationHeader, PopMessageHeader
from reput_protocol.errors import BrokerError, ReputError, TopicNotFound, error_from_response
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call, Waiter

M = TypeVar("M", bound=Popped)

_NOTIFICATION_S: Final = 5.0
"""How long a broker holds a notification. It tells one member of a message, which may be one that does not wait any
more; the others find the message when their notifications end."""
_GRACE_S: Final = 3.0
"""How much later than its time a notification may be answered."""
_MISSING_S: Final = 1.0
"""How often a topic that does not exist is looked up."""
_ANY_QUEUE: Final = -1
_EMPTY: Final = (ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT)

log = logging.getLogger("reput_client")


class Wait(Waiter):
    """One wait for messages, which `end_waiting` of its owner may end. It may be used again."""

    is_over: bool = False

    def clear(self) -> None:
        """Begin to wait."""
        self.ready = self.is_over = False


@dataclass(slots=True, eq=False)
class _Source:
    """One topic at one broker.

    Attributes:
        has_begun: whether it is known where the group begins.
        call: the notification that is under way, or was answered, and until when its answer is waited for.
        failure: why the last request failed, or None.
        ask_at: when to ask for a notification again, after a failure or one that was in vain.
        pauses, vain: the pauses after these.
    """

    queue: MessageQueue
    wanted: MessageSelector
    has_begun: bool = False
    call: Call | None = None
    connection: BrokerConnection | None = None
    call_until: float = math.inf
    failure: ReputError | None = None
    ask_at: float = -math.inf
    pauses: Backoff = field(default_factory=lambda: Backoff(0.05, 5.0))
    vain: Backoff = field(default_factory=lambda: Backoff(0.005, 0.5))

    def abandon(self) -> None:
        """Forget the notification."""
        if self.call is not None and self.connection is not None and not self.call.done:
            self.connection.abandon(self.call)
        self.call = None


class PopFetcher:
    """Pops for one consumer; several tasks or threads may wait at a time.

    Args:
        init_mode: where a group without offsets begins if `start` is "earliest", see `PopMessageHeader`.
        missing_level: of the log, at which it says that it waits for a topic.
    """

    def __init__(
        self,
        session: Session,
        subscriptions: Subscriptions,
        settling: Settling,
        *,
        start: Start,
        wait_for_topic: bool,
        deserializer: Callable[[bytes], Any] | None,
        init_mode: int = 0,
        missing_level: int = logging.WARNING,
    ) -> None:
        self._init_mode = init_mode
        self._missing_level = missing_level
        self._deserializer = deserializer
        self.orderly = False
        self._session = session
        self._subscriptions = subscriptions
        self._settling = settling
        self._offsets = OffsetRequests(session)
        # The brokers begin at the first message themselves.
        self._starting = None if start == "earliest" else StartingPoints(self._offsets, start, None)
        self._wait_for_topic = wait_for_topic
        self._sources: dict[MessageQueue, _Source] = {}
        self._search = TopicSearch(session, subscriptions, self._found)
        self._has_begun = False
        self._missing: dict[str, float] = {}  # when to look the topic up again
        self._waits: dict[Wait, None] = {}  # in the order in which they began
        self._turn = 0

    async def begin(self) -> None:
        """Find the topics that match a pattern; raises `ReputError` if their list cannot be had."""
        await self._search.look(self._session.deadline(None))
        self._has_begun = True

    def _found(self, topic: str) -> None:
        if self._has_begun and self._starting is not None:
            self._starting.late_topics.add(topic)

    async def receive(
        self,
        kind: type[M],
        max_messages: int,
        invisible_s: float,
        until: float,
        wait: Wait,
        attempt_id: str | None = None,
    ) -> list[M]:
        """Return up to `max_messages` messages of one source, or none if `until` has passed or `wait` is over.

        Args:
            attempt_id: in order, a receive with the same one gets the messages of the one before again, whose answer
                may be lost; None: there is none before.

        Raises:
            ReputError: no source can be asked, or one refuses permanently.
        """
        runtime = self._session.runtime
        if self.orderly and attempt_id is None:
            attempt_id = uuid4().hex
        self._waits[wait] = None
        try:
            now = runtime.now()
            due = [source for source in await self._find() if source.failure is None or source.ask_at <= now]
            while True:
                for source in due:
                    count = min(max_messages, POP_MESSAGES_MAX)
                    found = await self._pop(kind, source, count, invisible_s, attempt_id)
                    if found:
                        return found
                if wait.is_over or runtime.now() >= until:
                    break
                due = await self._notified(until, wait)
        finally:
            self._waits.pop(wait, None)
            if self._waits:
                self.wake_one()  # which looks whether there is more
        failures = [source.failure for source in self._sources.values()]
        if failures and failures[0] is not None and None not in failures and not wait.is_over:
            raise failures[0]
        return []

    def wake_one(self) -> None:
        """Wake one wait that was not woken yet: one pop takes what a notification is about. Never waits."""
        for wait in self._waits:
            if not wait.ready:
                self._session.pump.wake(wait)
                return

    def end_waiting(self, wait: Wait | None = None) -> None:
        """End one wait, or all. Never waits."""
        for each in [*self._waits] if wait is None else [wait]:
            each.is_over = True
            self._session.pump.wake(each)

    # -- sources -----------------------------------------------------------------------------------------------

    async def _find(self) -> list[_Source]:
        """Return the sources by the topics' routes, each time beginning with the next one."""
        session = self._session
        found: dict[MessageQueue, _Source] = {}
        if session.runtime.now() >= self._search.next_due():
            await self._search.do()
        for topic in self._subscriptions.topics:
            if self._missing.get(topic, -math.inf) > session.runtime.now():
                continue
            try:
                route = await session.route(topic, session.deadline(None))
            except TopicNotFound as error:
                await self._is_missing(topic, error)
                continue
            self._missing.pop(topic, None)
            if not route.readable:
                raise NoQueue(topic, "readable queue")
            for name in dict.fromkeys(queue.broker_name for queue in route.readable):
                queue = MessageQueue(topic, name, _ANY_QUEUE)
                wanted = self._subscriptions.wanted_of(topic)
                found[queue] = self._sources.get(queue) or _Source(queue, wanted)
        for queue in self._sources.keys() - found.keys():
            self._sources[queue].abandon()
        self._sources = found
        self._turn = (self._turn + 1) % max(1, len(found))
        sources = [*found.values()]
        return sources[self._turn :] + sources[: self._turn]

    async def _is_missing(self, topic: str, error: TopicNotFound) -> None:
        """Wait for a topic, or raise `error`, as the application wants; forget one of a pattern that is gone."""
        is_named = self._subscriptions.pattern is None
        if is_named and not self._wait_for_topic:
            raise error
        if not is_named and await self._session.is_gone(topic, self._session.runtime.now() + SILENCE_S):
            log.info("topic %s, which matched the pattern, does not exist any more", topic)
            self._subscriptions.discard(topic)
            self._missing.pop(topic, None)
            return
        if is_named and topic not in self._missing:
            log.log(
                self._missing_level,
                "topic %s does not exist: group %s waits for it to be created (wait_for_topic=False raises)",
                topic,
                self._settling.group,
            )
        if is_named and self._starting is not None:
            self._starting.late_topics.add(topic)
        self._missing[topic] = self._session.runtime.now() + _MISSING_S

    def _failed(self, source: _Source, error: ReputError) -> None:
        self._session.check_open()
        if source.failure is None:
            queue = source.queue
            log.warning("nothing is popped from %s at %s: %s", queue.topic, queue.broker_name, error)
        source.failure = error
        source.ask_at = self._session.runtime.now() + source.pauses.next_delay_s()

    # -- pops --------------------------------------------------------------------------------------------------

    async def _pop(
        self, kind: type[M], source: _Source, max_messages: int, invisible_s: float, attempt_id: str | None
    ) -> list[M]:
        """Return what a source has now."""
        session, queue = self._session, source.queue
        header = PopMessageHeader(
            consumer_group=self._settling.group,
            topic=queue.topic,
            queue_id=_ANY_QUEUE,
            max_msg_nums=max_messages,
            invisible_time=max(1, round(invisible_s * 1000)),
            poll_time=0,
            born_time=wall_clock_ms(),
            init_mode=self._init_mode,
            exp_type=source.wanted.expression_type.value,
            exp=source.wanted.expression,
            order=self.orderly,
            attempt_id=attempt_id if self.orderly else None,
        )
        try:
            deadline = session.deadline(None)
            await self._begin(source)
            call = await session.ask(
                RequestCode.POP_MESSAGE,
                header.to_ext(),
                what=f"pop from {queue.topic} at {queue.broker_name}",
                queue=queue,
                deadline=deadline,
                patient=len(self._sources) == 1,  # no other waits for a broker that is away
            )
            if call.answer.code != ResponseCode.SUCCESS and call.answer.code not in _EMPTY:
                raise error_from_response(call.answer.code, call.answer.remark, call.answer.ext)
        except TopicNotFound as error:
            session.routes.forget(queue.topic)
            await self._is_missing(queue.topic, error)
            return []
        except BrokerError as error:
            if not error.retryable:
                raise
            self._failed(source, error)
            return []
        except ReputError as error:
            self._failed(source, error)
            return []
        source.failure = None
        source.pauses.reset()
        if call.answer.code != ResponseCode.SUCCESS:
            return []
        until = session.runtime.now() + invisible_s
        messages = popped_messages(kind, self._settling, queue, call, until, self._deserializer)
        source.vain.reset()
        source.ask_at = -math.inf
        return await self._fitting(source.wanted, messages)

    async def _begin(self, source: _Source) -> None:
        """Before the first pop, commit where a group without offsets begins."""
        if self._starting is None or source.has_begun:
            return
        if len(self._sources) > 1:  # as in `_pop`
            await self._session.open_for(source.queue, self._session.deadline(None), patient=False)
        topic, name, _ = source.queue
        group = self._settling.group
        for queue in (await self._session.route(topic, self._session.deadline(None))).readable:
            if queue.broker_name == name and await self._offsets.committed(group, queue) is None:
                first = await self._starting.first(queue)
                await self._offsets.commit(group, queue, first, increase_only=True)
        source.has_begun = True

    async def _fitting(self, wanted: MessageSelector, messages: list[M]) -> list[M]:
        """Return the messages with a wanted tag; acknowledge those that only share its hash."""
        tags = wanted.tag_filter
        if tags is None or tags.matches_all:
            return messages
        others = [message for message in messages if not tags.matches_tag(message.tag)]
        if not others:
            return messages
        for error in (await self._settling.ack(others)).values():
            log.info("a message with another tag is popped again: %s", error)
        return [message for message in messages if message not in others]

    # -- notifications -----------------------------------------------------------------------------------------

    async def _notified(self, until: float, wait: Wait) -> list[_Source]:
        """Wait for notifications; return the sources that may have messages, none if the wait has ended."""
        session = self._session
        while True:
            wait.ready = wait.is_over
            sources = await self._find()
            due = [source for source in sources if self._is_due(source)]
            now = session.runtime.now()
            if due or wait.is_over or now >= until:
                return due
            idle = [source for source in sources if source.call is None and source.ask_at <= now]
            for source in idle:
                await self._ask(source, until)
            if idle:
                continue
            wakes = [source.call_until if source.call else source.ask_at for source in sources]
            wakes += (*self._missing.values(), self._search.next_due())
            await session.pump.wait(wait, min(until, *wakes))

    def _is_due(self, source: _Source) -> bool:
        """Whether the source's notification has ended, in whatever way."""
        call = source.call
        now = self._session.runtime.now()
        if call is None or not (call.done or now >= source.call_until):
            return False
        source.abandon()
        if now < source.call_until - _GRACE_S:
            # It may be answered at once again: for messages that another member takes, or that do not fit the filter.
            source.ask_at = now + source.vain.next_delay_s()
        return True

    async def _ask(self, source: _Source, until: float) -> None:
        """Ask for a notification."""
        session, queue = self._session, source.queue
        try:
            is_alone = len(self._sources) == 1
            deadline = min(until, session.deadline(None))
            connection = await session.open_for(queue, deadline, patient=is_alone)
        except ReputError as error:
            self._failed(source, error)
            return
        now = session.runtime.now()
        wait_s = max(0.0, min(until - now, _NOTIFICATION_S))
        header = NotificationHeader(
            consumer_group=self._settling.group,
            topic=queue.topic,
            queue_id=_ANY_QUEUE,
            poll_time=round(wait_s * 1000),
            born_time=wall_clock_ms(),
            order=self.orderly,
        )
        source.connection = connection
        source.call_until = now + wait_s + _GRACE_S
        template = RequestTemplate(RequestCode.NOTIFICATION, header.to_ext())
        source.call = connection.start_template(template, _Arrival(self))

    def forget(self) -> None:
        """Forget all notifications, which are the parent's in a forked child."""
        self._sources.clear()
        self._waits.clear()


class _Arrival(Waiter):
    """Wakes one of those that wait for messages."""

    __slots__ = ("_fetcher",)

    def __init__(self, fetcher: PopFetcher) -> None:
        self._fetcher = fetcher

    @override
    def notify(self) -> None:
        super().notify()
        self._fetcher.wake_one()
