"""The queues of a pop: which they are, in which order, and whether they may be popped."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, TypeAlias

from reput_broker.pop.positions import PoppedQueue, PopPositions
from reput_broker.store.base.results import GetStatus
from reput_broker.tenure import Core
from reput_protocol.commands.pop import (
    NotificationHeader,
    PeekMessageHeader,
    PollingInfoHeader,
    PopMessageHeader,
)
from reput_protocol.names import pop_retry_topic, pop_retry_topic_v2

WRONG_OFFSET: Final = (
    GetStatus.OFFSET_TOO_SMALL,
    GetStatus.OFFSET_OVERFLOW_BADLY,
    GetStatus.OFFSET_FOUND_NULL,
)
"""The queue begins or ends elsewhere; a get at the result's next offset finds what there is."""
PRIORITY_TYPE: Final = "PRIORITY"
_RETRY_FIRST: Final = 0.2
"""How many of the pops begin with the retry topic (RocketMQ: popFromRetryProbability)."""
PopTarget: TypeAlias = PopMessageHeader | PeekMessageHeader | NotificationHeader | PollingInfoHeader
"""A header that names the queues of a pop; queue id -1 means all of the topic."""


class PopQueues:
    """The queues that groups can pop."""

    def __init__(self, core: Core, positions: PopPositions) -> None:
        self._store = core.store
        self._topic_access = core.topic_access
        self._groups = core.group_access
        self._positions = positions

    def check(self, wanted: PopTarget, *, creates: bool) -> None:
        """Refuse what may not be popped.

        Args:
            creates: whether a group is created at first use, if that is allowed.
        """
        self._topic_access.readable(wanted.topic, max(0, wanted.queue_id))
        if creates:
            self._groups.consuming(wanted.consumer_group)
        else:
            self._groups.check_still_consuming(wanted.consumer_group)
        self._groups.check_readable(wanted.consumer_group, wanted.topic)

    def places(self, wanted: PopTarget, *, with_retries: bool) -> Iterator[PoppedQueue]:
        """Yield the queues in the order in which they are popped."""
        group, topic = wanted.consumer_group, wanted.topic
        if with_retries and wanted.queue_id < 0 and self._begins_with_highest(group, topic):
            yield from self._by_priority(group, topic)
            return
        retries = self._retry_topics(group, topic) if with_retries else []
        if retries and random.random() < _RETRY_FIRST:
            yield from self._queues_of(group, retries.pop(0))
        if wanted.queue_id >= 0:
            yield PoppedQueue(group, topic, wanted.queue_id)
        else:
            yield from self._queues_of(group, topic)
        for retry in retries:
            yield from self._queues_of(group, retry)

    def _begins_with_highest(self, group: str, topic: str) -> bool:
        """Tell whether a pop takes the highest priority first (RocketMQ: usePriorityMode)."""
        config = self._topic_access.known(topic)
        if config is None or config.message_type != PRIORITY_TYPE:
            return False
        settings = self._groups.settings_of(group)
        return settings is None or random.randrange(100) < settings.priority_factor

    def _by_priority(self, group: str, topic: str) -> Iterator[PoppedQueue]:
        """Yield the queues of a topic of the type PRIORITY, the highest first, after those of its redelivered messages.

        RocketMQ redelivers all of a topic last, or with an option first, and by default in one queue.
        """
        configs = map(self._topic_access.known, (*self._retry_topics(group, topic), topic))
        queues = [(config.topic_name, config.read_queue_nums) for config in configs if config is not None]
        for queue_id in reversed(range(max((count for _, count in queues), default=0))):
            for name, count in queues:
                if queue_id < count:
                    yield PoppedQueue(group, name, queue_id)

    def _retry_topics(self, group: str, topic: str) -> list[str]:
        """Return the group's retry topics of a topic that exist; those with `+` are left by RocketMQ."""
        names = (pop_retry_topic(topic, group), pop_retry_topic_v2(topic, group))
        return [name for name in names if self._topic_access.known(name) is not None]

    def _queues_of(self, group: str, topic: str) -> Iterator[PoppedQueue]:
        config = self._topic_access.known(topic)
        queues = 0 if config is None else config.read_queue_nums
        first = random.randrange(queues) if queues > 1 else 0
        for number in range(queues):
            yield PoppedQueue(group, topic, (first + number) % queues)

    def left(self, place: PoppedQueue) -> int:
        """Return how many messages of a queue the group has not popped."""
        end = self._store.max_offset_in_queue(place.topic, place.queue_id)
        return max(0, end - self._positions.look(place))
