"""What the requests of POP share: the queues, the log of check points, and the counts of messages in flight."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, TypeAlias

from reput_broker.delay.delayed_record import DelayRedirects
from reput_broker.pop.checkpoints import REVIVE_QUEUES, Ack, CheckPoint, Passed, ack_record, check_point_record
from reput_broker.pop.order_info import FreeQueues, OrderInfos
from reput_broker.pop.polling import PopPolling
from reput_broker.pop.positions import PoppedQueue, PopPositions, Written
from reput_broker.store.base.results import GetStatus, PutResult, PutStatus
from reput_broker.tenure.core import Core
from reput_protocol.commands.pop import NotificationHeader, PeekMessageHeader, PollingInfoHeader, PopMessageHeader
from reput_protocol.names import pop_retry_topic, pop_retry_topic_v2, revive_topic
from reput_protocol.record.layout import record_bytes
from reput_protocol.record.record import Record

WRONG_OFFSET: Final = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL)
"""The queue begins or ends elsewhere; a get at the result's next offset finds what there is."""
PRIORITY_TYPE: Final = "PRIORITY"
_RETRY_FIRST: Final = 0.2
"""How many of the pops begin with the retry topic (RocketMQ: popFromRetryProbability)."""
PopTarget: TypeAlias = PopMessageHeader | PeekMessageHeader | NotificationHeader | PollingInfoHeader
"""A header that names the queues of a pop; queue id -1 means all of the topic."""
_ROOM = 64


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


class ReviveLog:
    """Puts check points and acknowledgements into the log: until it is due, a record is in the topic of the timer.

    Attributes:
        topic: its name.

    Args:
        delay_redirects: delays the records.
    """

    def __init__(self, core: Core, delay_redirects: DelayRedirects) -> None:
        self.topic = revive_topic(core.config.cluster)
        self._store = core.store
        self._delay_redirects = delay_redirects
        self._tables = core.tables
        self._clock_ms = core.clock_ms
        self._pops = 0

    @property
    def is_ready(self) -> bool:
        """Whether the topic exists."""
        return self._tables.topics.get(self.topic) is not None

    async def make_topic(self) -> None:
        """Create the topic, and save the table."""
        self._tables.topics.create_system(self.topic, REVIVE_QUEUES)
        await self._tables.topic_saver.save()

    def next_queue_id(self) -> int:
        """Return the revive queue for the next pop: one after the other."""
        self._pops += 1
        return self._pops % REVIVE_QUEUES

    def check_point(self, point: CheckPoint, revive_queue_id: int, passed: Passed | None = None) -> Record:
        """Return the record to put for a check point; `passed` as of `check_point_record`.

        Raises:
            Refusal: its time is too far ahead, or messages with a deliver time are disabled.
        """
        return self._delayed(
            check_point_record(
                point, self.topic, revive_queue_id, self._clock_ms(), self._store.options.host, passed=passed
            )
        )

    def ack(self, ack: Ack, deliver_ms: int, revive_queue_id: int, *, is_batch: bool = False) -> Record:
        """Return the record to put for an acknowledgement; raises as `check_point`."""
        return self._delayed(
            ack_record(
                ack,
                deliver_ms,
                self.topic,
                revive_queue_id,
                self._clock_ms(),
                self._store.options.host,
                is_batch=is_batch,
            )
        )

    def _delayed(self, record: Record) -> Record:
        return self._delay_redirects.redirect(record, record.property_map()) or record

    def put(self, records: Sequence[Record]) -> tuple[PutResult, list[Written]]:
        """Put records in order under the put lock, those of one queue together.

        Records that were made at different times can be in different queues: those that are due already are in the
        revive topic, the others in that of the timer.

        Returns:
            The last result, after which nothing more was put if it is not PUT_OK; where each record is.
        """
        result, places = PutResult(PutStatus.PUT_OK), list[Written]()
        for (topic, queue_id), some in groupby(records, lambda record: (record.topic, record.queue_id)):
            result = self._store.put_records(together := list(some))
            if result.status is not PutStatus.PUT_OK:
                break
            places += [Written(topic, queue_id, result.queue_offset + n) for n in range(len(together))]
        return result, places


def size_of(records: Sequence[Record]) -> int:
    """Return an upper bound of the bytes of records in the log."""
    return sum(record_bytes(len(record.body), record.topic, len(record.properties)) + _ROOM for record in records)


@dataclass(eq=False, repr=False)
class InFlightMessages:
    """Counts of this run, by group, topic and queue; messages popped before the start are not counted.

    Args:
        started_ms: pops before that time were not counted.
    """

    _started_ms: int
    _counts: Counter[tuple[str, str, int]] = field(default_factory=Counter, init=False)

    def popped(self, group: str, topic: str, queue_id: int, count: int) -> None:
        """Count popped messages."""
        self._counts[group, topic, queue_id] += count

    def done(self, group: str, topic: str, queue_id: int, pop_time: int, count: int = 1) -> None:
        """Count messages that were acknowledged or redelivered."""
        key = group, topic, queue_id
        if pop_time < self._started_ms or key not in self._counts:
            return
        left = self._counts[key] - count
        if left > 0:
            self._counts[key] = left
        else:
            del self._counts[key]

    def begins_again(self, group: str, topic: str, queue_id: int) -> None:
        """Count nothing as popped: ordered messages of a queue are popped again from the first."""
        self._counts.pop((group, topic, queue_id), None)

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Forget a deleted group or topic."""
        for key in [key for key in self._counts if group == key[0] or topic == key[1]]:
            del self._counts[key]

    def by_place(self) -> Iterator[tuple[tuple[str, str], int]]:
        """Yield the number of messages by group and topic."""
        places: Counter[tuple[str, str]] = Counter()
        for (group, topic, _), count in self._counts.items():
            places[group, topic] += count
        yield from places.items()


@dataclass(slots=True, kw_only=True)
class PopState:
    """The state of POP in one tenure.

    Attributes:
        positions: how far groups have popped.
        orders: what groups that pop in order have in flight, which blocks its queue.
        free_queues: wakes pops of queues that are not blocked any more.
    """

    queues: PopQueues
    positions: PopPositions
    orders: OrderInfos
    in_flight: InFlightMessages
    revive_log: ReviveLog
    polling: PopPolling
    free_queues: FreeQueues
