"""Holding pops that found nothing until there is something (RocketMQ: PopLongPollingService).

Unlike a pull, a pop waits for any queue of its topic, or for one, and for the group's retry topics of it. A message
wakes one pop of each group that can have it, the one that has waited longest; the pop wakes the next one if it leaves
messages. `PullRequestHoldService` holds them, with its limits of time and memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from reput_broker.put.held_pulls import Arrived, HeldRequest, PullRequestHoldService
from reput_broker.remoting.request import Request
from reput_broker.store.base.dispatch import DispatchBatch
from reput_protocol.filter.tags import MessageFilter
from reput_protocol.names import RETRY_PREFIX, pop_retry_topic, pop_retry_topic_v2

ANY_QUEUE = -1


class PollingKey(NamedTuple):
    """What a request waits for."""

    topic: str
    group: str
    queue_id: int
    """-1 for any."""
    is_notification: bool = False


class PopPolling:
    """The held pops and notifications of one broker, in the order in which they came."""

    def __init__(self, hold: PullRequestHoldService) -> None:
        self._hold = hold
        self._held: dict[PollingKey, dict[HeldRequest, None]] = {}
        self._by_topic: dict[str, dict[PollingKey, None]] = {}

    @property
    def is_stopping(self) -> bool:
        """Whether nothing should be held, because the broker is about to stop."""
        return self._hold.is_stopping

    def count(self, key: PollingKey) -> int:
        """Return how many requests wait."""
        return len(self._held.get(key, ()))

    def hold(
        self,
        request: Request,
        key: PollingKey,
        message_filter: MessageFilter | None,
        wait_s: float,
        resume: Callable[[bool], None],
        abandon: Callable[[], None],
    ) -> None:
        """Hold a request for at most `wait_s` seconds; then, or earlier, call `resume`, with False if its member has
        left the group, or `abandon` if it has gone.

        Raises:
            Refusal: too many are held; neither will be called.
        """
        held: HeldRequest | None = None

        def wait_no_longer() -> None:
            waiting = self._held.get(key)
            if waiting is not None and held is not None:
                waiting.pop(held, None)
                if not waiting:
                    self._forget(key)

        def resumed(may_get_messages: bool) -> None:
            wait_no_longer()
            resume(may_get_messages)
            if not may_get_messages:
                self.wake(key)  # it may have been woken for a message

        def abandoned() -> None:
            wait_no_longer()
            abandon()
            self.wake(key)  # it may have been woken for a message

        # The queue of no message: only `wake` and the topic's deletion release it.
        queue = key.topic, ANY_QUEUE
        held = self._hold.hold(request, key.group, queue, 0, message_filter, wait_s, resumed, abandoned)
        waiting = self._held.get(key)
        if waiting is None:
            waiting = self._held[key] = {}
            for topic in _topics(key):
                self._by_topic.setdefault(topic, {})[key] = None
        waiting[held] = None

    def _forget(self, key: PollingKey) -> None:
        del self._held[key]
        for topic in _topics(key):
            keys = self._by_topic[topic]
            del keys[key]
            if not keys:
                del self._by_topic[topic]

    def dispatched(self, batch: DispatchBatch) -> None:
        """Wake requests for new messages; they run again once those can be read."""
        if not self._by_topic:
            return
        for rows in batch.queues:
            keys = self._by_topic.get(rows.topic)
            if keys is None:
                continue
            arrived = Arrived(rows, batch)
            is_retried = rows.topic.startswith(RETRY_PREFIX)
            for key in keys:
                if is_retried or key.queue_id in (ANY_QUEUE, rows.queue_id):
                    self._wake_one(key, arrived)

    def _wake_one(self, key: PollingKey, arrived: Arrived | None) -> bool:
        for held in self._held.get(key, ()):
            if held.is_let_go:
                continue
            if arrived is not None and not arrived.may_have_one_for(held.message_filter):
                return False  # those behind it have the group's filter too
            del self._held[key][held]
            self._hold.wake(held)
            return True
        return False

    def wake(self, key: PollingKey) -> None:
        """Run one request again now, because there are messages for it."""
        if self._wake_one(key, None):
            self._hold.answer_ready()

    def wake_group(self, topic: str, group: str, queue_id: int) -> None:
        """Run pops and notifications again that wait for a queue, which is free or has messages."""
        for number in (ANY_QUEUE, queue_id):
            for is_notification in (False, True):
                self.wake(PollingKey(topic, group, number, is_notification))


def _topics(key: PollingKey) -> tuple[str, ...]:
    """Return the topics whose messages a request waits for."""
    return key.topic, pop_retry_topic(key.topic, key.group), pop_retry_topic_v2(key.topic, key.group)
