"""Redelivers popped messages that were not acknowledged in time (RocketMQ: PopReviveService).

The queues of the revive topic bring check points, and for each its acknowledgements (`checkpoints`). When the time of a
check point is over and everything that the timer had to deliver until then was read, its remaining messages are copied
to the group's retry topic.

The progress is the offset of the group CID_RMQ_SYS_REVIVE_GROUP in each queue: the last entry before the first check
point that is not done with, as RocketMQ counts. It is saved once the copies are on disk, so a crash loses no
redelivery. A start or a new master reads check points again that were done with; each copy names the pop of its
message, so none is made twice, as RocketMQ does.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

import msgspec
import structlog
import trio

from reput_broker.delay.record_reader import RecordReader
from reput_broker.delay.timer_message_store import TimerMessageStore
from reput_broker.pop.checkpoints import REVIVE_QUEUES, Ack, CheckPoint, CheckPointKey, read_entry
from reput_broker.pop.state import PRIORITY_TYPE, InFlightMessages
from reput_broker.send.retry_records import DeadLetterReason, dead_letter, fitted_properties, next_attempt, set_origin
from reput_broker.store.base.results import PutStatus
from reput_broker.tenure.core import Core
from reput_protocol import properties as names
from reput_protocol.commands.topic import TopicConfig
from reput_protocol.errors import InvalidName, RecordMalformed, ReputError
from reput_protocol.names import RETRY_PREFIX, REVIVE_GROUP, TIMER_TOPIC, pop_retry_topic, popped_topic, revive_topic
from reput_protocol.properties import CRC_PROPERTY_BYTES
from reput_protocol.record.delays import fix_expiry, priority_of
from reput_protocol.record.layout import record_bytes
from reput_protocol.record.record import Record, RecordView, decode_record

log = structlog.get_logger(__name__)

_READ_AT_ONCE = 64
_POLL_S = 1.0
_SETTLE_S = 0.005
_STUCK_S = 0.1
_RETRY_S = 1.0
_RECORD_ROOM = 64


class Stuck(Exception):
    """The store refuses writes now; the same check point must be tried again."""


@dataclass(slots=True)
class _Open:
    """A check point that was read and is not done with."""

    point: CheckPoint
    revive_queue_id: int
    entry: int
    """Its offset in the revive queue."""
    left: set[int]
    """Queue offsets of its messages that are neither acknowledged nor redelivered."""


@dataclass(slots=True)
class _ReviveQueue:
    next_offset: int
    saved: int
    """The offset of the group: the last entry done with."""
    ended_at: int
    """Its end at the start. An earlier run may have redelivered messages of the check points before."""
    points: dict[CheckPointKey, _Open] = field(default_factory=dict)
    """In the order of their entries."""

    @property
    def done(self) -> int:
        """The last entry before the first check point that is not done with."""
        first = next(iter(self.points.values()), None)
        return (self.next_offset if first is None else first.entry) - 1


class PopReviveService:
    """The service of one broker, as master.

    Args:
        timers: deliver check points and acknowledgements.
    """

    def __init__(self, core: Core, timers: TimerMessageStore, in_flight: InFlightMessages) -> None:
        self._core = core
        self._topic = revive_topic(core.config.cluster)
        self._timers = timers
        self._reader = RecordReader(core.store, core.warm_from)
        self._in_flight = in_flight
        self._queues = [self._begin(queue_id) for queue_id in range(REVIVE_QUEUES)]
        self._copies_from = self._first_unread()
        self._copies: dict[str, set[str]] = {}
        """By topic, the origins of the copies that an earlier run made."""
        self._due: list[tuple[int, int, _Open]] = []
        self._numbers = count()
        self._unsaved: deque[tuple[int, list[int]]] = deque()
        self._arrived = trio.Event()
        core.arrivals.watch(self._topic, self.arrived)

    def _begin(self, queue_id: int) -> _ReviveQueue:
        saved = self._core.tables.offsets.query(REVIVE_GROUP, self._topic, queue_id)
        done = -1 if saved is None else saved
        return _ReviveQueue(done + 1, done, self._core.store.max_offset_in_queue(self._topic, queue_id))

    def _first_unread(self) -> int:
        """Return the log offset of the first entry to be read; copies that an earlier run made are behind it."""
        found = [
            unit.physical_offset
            for queue_id, queue in enumerate(self._queues)
            for unit in self._core.store.queue_units(self._topic, queue_id, queue.next_offset, 1)
        ]
        return min(found, default=self._core.store.max_physical_offset)

    def arrived(self) -> None:
        """Note that the revive topic has new messages."""
        self._arrived.set()

    def take_behind_s(self) -> float:
        """Drop the first check points that are done with; return how long the next has been due, 0 if it is not."""
        while self._due and not self._is_open(self._due[0][2]):
            heapq.heappop(self._due)
        return max(0, self._core.clock_ms() - self._due[0][0]) / 1000 if self._due else 0.0

    async def run(self) -> None:
        """Redeliver until cancelled."""
        while True:
            self._arrived = trio.Event()
            try:
                await self._read()
                waits_s = await self._revive_due()
                self._save()
            except Stuck:
                await trio.sleep(_STUCK_S)
                continue
            except (ReputError, OSError) as error:
                log.error("popped_messages_not_redelivered", detail=str(error), hint="the broker retries")
                await trio.sleep(_RETRY_S)
                continue
            with trio.move_on_after(waits_s):
                await self._arrived.wait()

    # -- reading -------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Read everything that the queues have now."""
        for queue_id, queue in enumerate(self._queues):
            low = self._core.store.min_offset_in_queue(self._topic, queue_id)
            queue.next_offset = max(queue.next_offset, low)
            end = self._core.store.max_offset_in_queue(self._topic, queue_id)
            while queue.next_offset < end:
                units = self._core.store.queue_units(self._topic, queue_id, queue.next_offset, _READ_AT_ONCE)
                if not units:
                    queue.next_offset += 1  # a damaged place
                    continue
                for data in await self._reader.read([(unit.physical_offset, unit.size) for unit in units]):
                    self._take(queue_id, queue, data)
                    queue.next_offset += 1
                await trio.lowlevel.checkpoint()

    def _take(self, queue_id: int, queue: _ReviveQueue, data: bytes | None) -> None:
        entry = None if data is None else read_entry(RecordView(data, 0), self._core.config.broker_name)
        if isinstance(entry, CheckPoint):
            queue.points.pop(entry.key, None)
            if entry.offsets:
                found = _Open(entry, queue_id, queue.next_offset, set(entry.offsets))
                queue.points[entry.key] = found
                heapq.heappush(self._due, (entry.revive_time, next(self._numbers), found))
        elif isinstance(entry, Ack):
            opened = queue.points.get(entry.key)
            if opened is not None:
                opened.left.difference_update(entry.offsets)
                if not opened.left:
                    del queue.points[entry.key]
        else:
            log.warning(
                "check_point_unreadable",
                topic=self._topic,
                queue_id=queue_id,
                queue_offset=queue.next_offset,
                hint="it is skipped: run reput store verify",
            )

    def _is_open(self, one: _Open) -> bool:
        return self._queues[one.revive_queue_id].points.get(one.point.key) is one

    # -- redelivering --------------------------------------------------------------------------------------

    async def _revive_due(self) -> float:
        """Redeliver what is due; return how long to wait for more, in seconds."""
        if not self.take_behind_s() and (not self._due or self._due[0][0] > self._core.clock_ms()):
            return self._pause_s()
        until = await self._settled()
        while self._due and self._due[0][0] <= until:
            opened = self._due[0][2]
            if self._is_open(opened):
                await self._revive(opened)
            heapq.heappop(self._due)
        return min(_SETTLE_S, self._pause_s()) if self.take_behind_s() else self._pause_s()

    def _pause_s(self) -> float:
        if not self._due:
            return _POLL_S
        return min(_POLL_S, max(_SETTLE_S, (self._due[0][0] - self._core.clock_ms()) / 1000))

    async def _settled(self) -> int:
        """Read all acknowledgements up to now; return the time up to which all were read that can count.

        What was stored before this call and is due is in the revive topic when the timer has passed it.
        """
        now_ms = self._core.clock_ms()
        await self._dispatched()
        end = self._core.store.max_offset_in_queue(TIMER_TOPIC, 0)
        while self._timers.queue_offset < end:  # noqa: ASYNC110 - rare, and another event would cost every message
            await trio.sleep(_SETTLE_S)
        until = self._timers.settled_until(now_ms)
        await self._dispatched()
        await self._read()
        return until

    async def _dispatched(self) -> None:
        end = self._core.store.wrote_offset
        while self._core.store.dispatched_offset < end:  # noqa: ASYNC110 - likewise
            await trio.sleep(_SETTLE_S)

    async def _revive(self, opened: _Open) -> None:
        key = opened.point.key
        tables = self._core.tables
        origin = tables.topics.get(popped_topic(key.topic, key.group))
        group = tables.groups.get(key.group)
        for offset in sorted(opened.left):
            if origin is not None and group is not None:
                await self._revive_one(opened, offset, origin, group.retry_max_times)
            self._in_flight.done(key.group, key.topic, key.queue_id, key.pop_time)
            opened.left.discard(offset)
        queue = self._queues[opened.revive_queue_id]
        if queue.points.get(key) is opened:
            del queue.points[key]

    async def _revive_one(self, opened: _Open, offset: int, origin: TopicConfig, max_reconsume_times: int) -> None:
        key = opened.point.key
        units = self._core.store.queue_units(key.topic, key.queue_id, offset, 1)
        if not units:
            return  # expired
        (data,) = await self._reader.read([(units[0].physical_offset, units[0].size)])
        if data is None:
            return
        try:
            record = decode_record(data)
        except RecordMalformed:
            return
        revived = revived_message(record, key, max_reconsume_times, is_attempt=not opened.point.is_suspended)
        is_early = opened.entry < self._queues[opened.revive_queue_id].ended_at
        if is_early and origin_of(record, key) in await self._copies_in(revived.record.topic):
            return
        by_priority = not revived.is_dead_letter and origin.message_type == PRIORITY_TYPE
        made = await self._make_topic(revived.record.topic, origin.read_queue_nums if by_priority else 1)
        if made is None:
            return
        if by_priority:  # a redelivered message keeps its priority
            priority = priority_of(record.property_map().get(names.PRIORITY))
            wanted = record.queue_id if priority is None else priority  # the topic may have got more queues
            queue_id = min(wanted, made.read_queue_nums - 1)
            revived = revived._replace(record=replace(revived.record, queue_id=queue_id))
        size = record_bytes(len(revived.record.body), revived.record.topic, len(revived.record.properties))
        result = await self._core.puts.own.put(size + _RECORD_ROOM, lambda: revived.record)
        assert result is not None
        if result.status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED):
            log.error(
                "popped_message_dropped",
                topic=key.topic,
                group=key.group,
                queue_offset=offset,
                detail=str(result.status),
                hint="it stays in its queue until it expires",
            )
            return
        if result.status is not PutStatus.PUT_OK:
            raise Stuck(str(result.status))
        self._count(key.group, revived)

    async def _copies_in(self, topic: str) -> set[str]:
        """Return the origins of the copies in a topic that an earlier run made since the progress that it saved."""
        found = self._copies.get(topic)
        if found is not None:
            return found
        found = set()
        config = self._core.tables.topics.get(topic)
        for queue_id in range(0 if config is None else config.read_queue_nums):
            found |= await self._copies_in_queue(topic, queue_id)
        self._copies[topic] = found
        return found

    async def _copies_in_queue(self, topic: str, queue_id: int) -> set[str]:
        found = set()
        low, offset = (
            self._core.store.min_offset_in_queue(topic, queue_id),
            self._core.store.max_offset_in_queue(topic, queue_id),
        )
        while offset > low:
            first = max(low, offset - _READ_AT_ONCE)
            units = self._core.store.queue_units(topic, queue_id, first, offset - first)
            places = [(unit.physical_offset, unit.size) for unit in units if unit.physical_offset >= self._copies_from]
            for data in await self._reader.read(places) if places else ():
                origin = None if data is None else RecordView(data, 0).property_map().get(names.POP_ORIGIN)
                if origin is not None:
                    found.add(origin)
            if len(places) < len(units) or not units:
                break
            offset = first
        return found

    async def _make_topic(self, topic: str, queues: int) -> TopicConfig | None:
        """Return a topic with at least so many queues; None if there can be none."""
        topics = self._core.tables.topics
        config = topics.get(topic)
        if config is not None and config.read_queue_nums >= queues:
            return config
        if config is None:
            try:
                topics.create_internal(topic, queues)
            except InvalidName as error:
                log.error("popped_message_dropped", topic=topic, detail=str(error), hint="shorten the names")
                return None
        else:
            write = max(config.write_queue_nums, queues)
            topics.put(msgspec.structs.replace(config, read_queue_nums=queues, write_queue_nums=write))
        await self._core.tables.topic_saver.save()
        return topics.get(topic)

    def _count(self, group: str, revived: Revived) -> None:
        topic = revived.origin_topic
        if not revived.is_dead_letter:
            self._core.counters.retry.retries[group, topic] += 1
            return
        self._core.counters.retry.dead_letters[group, topic] += 1
        log.warning(
            "dead_letter",
            group=group,
            topic=topic,
            message_id=revived.record.unique_key,
            attempts=revived.record.reconsume_times,
            hint=f"reput dlq peek {group}",
        )

    # -- progress ------------------------------------------------------------------------------------------

    def _save(self) -> None:
        """Save the progress whose copies are on disk, and remember what was reached now."""
        store = self._core.store
        reached = [queue.done for queue in self._queues]
        if not self._unsaved or self._unsaved[-1][1] != reached:
            self._unsaved.append((store.wrote_offset, reached))
        found = None
        while self._unsaved and self._unsaved[0][0] <= store.flushed_offset:
            found = self._unsaved.popleft()[1]
        for queue_id, done in enumerate(found or ()):
            queue = self._queues[queue_id]
            if done > queue.saved:
                self._core.tables.offsets.commit(REVIVE_GROUP, self._topic, queue_id, done)
                self._core.tables.offsets_soon.committed()
                queue.saved = done


class Revived(NamedTuple):
    """What to store for a message that becomes visible again."""

    record: Record
    is_dead_letter: bool
    origin_topic: str
    """The topic from which the group consumes."""


def origin_of(record: Record, key: CheckPointKey) -> str:
    """Return what identifies the pop of a message; the copy has it as a property, so that it is made once."""
    return f"{record.physical_offset} {key.pop_time}"


def revived_message(record: Record, key: CheckPointKey, max_reconsume_times: int, *, is_attempt: bool) -> Revived:
    """Return what to store for a popped message whose time is over.

    It goes to the group's retry topic of its topic, as one more attempt. Unlike RocketMQ's broker, which leaves that
    to consumers, this one makes it a dead letter once it was redelivered as often as allowed.

    Args:
        record: as it was popped.
        key: of its check point.
        max_reconsume_times: how often it may be redelivered.
        is_attempt: whether the delivery that has ended counts.
    """
    origin_topic = popped_topic(key.topic, key.group)
    is_copy = origin_topic != key.topic
    properties = record.property_map()
    properties.pop(names.CRC32, None)
    fix_expiry(properties, record.store_timestamp_ms)
    if not is_copy:
        properties.pop(names.ORIGIN_MESSAGE_ID, None)
    elif properties.keys().isdisjoint((names.FIRST_POP_TIME, names.POP_ORIGIN)):
        properties[names.ORIGIN_UNPROVEN] = "true"  # a client has put it into the retry topic itself
    if record.reconsume_times == 0 or names.FIRST_POP_TIME not in properties:
        properties[names.FIRST_POP_TIME] = str(key.pop_time)
    properties[names.POP_ORIGIN] = origin_of(record, key)
    attempts = next_attempt(record) if is_attempt else record.reconsume_times
    again = replace(record, reconsume_times=attempts, prepared_transaction_offset=0)
    if is_attempt and record.reconsume_times >= max_reconsume_times:
        if names.ORIGIN_UNPROVEN not in properties:
            first = properties.get(names.ORIGIN_MESSAGE_ID, record.offset_message_id)
            set_origin(properties, origin_topic, first)
        dead = dead_letter(again, key.group, properties, DeadLetterReason.MAX_RECONSUME_TIMES)
        return Revived(dead, True, origin_topic)
    text = fitted_properties(properties, key.topic, spare_bytes=CRC_PROPERTY_BYTES)
    is_retried = key.topic.startswith(RETRY_PREFIX)
    topic = key.topic if is_retried else pop_retry_topic(key.topic, key.group)
    return Revived(replace(again, topic=topic, queue_id=0, properties=text, version=0), False, origin_topic)
