"""Feed the timer, and put the copies of due messages, many at a time (RocketMQ: deliverMessage,
TimerDequeuePutMessageService).

Messages of one queue are appended together in the order of their times, and one sync covers everything put since the
last one. A message is delivered when its copy is in the log. That, and that it was not cancelled before, is decided in
one step of the event loop, so that a cancellation gets a reliable answer.

Messages that can never be delivered are dropped and counted: their topic has been deleted, their record has left the
log or is damaged, or the store refuses them. A queue that no longer exists, since a topic can be altered, is replaced
by one that does.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import structlog
import trio

from reput_broker.delay.active_slots import ActiveSlot
from reput_broker.delay.delayed_record import (
    DelayedRecord,
    DeleteId,
    Due,
    decode_delayed,
    delivered_copy,
    number_of,
    origin_of,
    rolled_copy,
    timer_due_ms,
)
from reput_broker.delay.levels import Level
from reput_broker.delay.record_reader import RecordRange, RecordReader
from reput_broker.delay.state import DelayState
from reput_broker.delay.timer_log import NO_POSITION, TimerUnit
from reput_broker.delay.timer_message_store import Chain, Timed
from reput_broker.delay.timer_wheel import PRECISION_MS, slot_of
from reput_broker.observe.counters import UNKNOWN_TOPIC
from reput_broker.store.base.errors import DiskFull, FileNotMade
from reput_broker.store.base.results import PutStatus
from reput_broker.store.message_store import MessageStore
from reput_broker.tenure.core import Core
from reput_protocol.errors import InvalidMessage, ReputError
from reput_protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from reput_protocol.properties import find_property
from reput_protocol.record.record import RecordView

log = structlog.get_logger(__name__)

_RECORDS_A_STEP = 64
_UNITS_A_STEP = 1024
_RETRY_S = 1.0
LOADED_MAX = 200_000
"""With more messages in memory no further slot is loaded; they are late anyway."""
_TAKEN_MAX = 64
_TAKEN_OF_LEVELS_MIN = 16
_PUT_BYTES_MAX = 1 << 20


class TimerFeed:
    """Moves messages from the timer's queue into the wheel, and from the wheel's slots into memory (RocketMQ:
    TimerEnqueue..., TimerDequeueGet...).

    To load a slot, its whole chain is read first, so that delete messages are known before any other message of the
    slot becomes due.
    """

    def __init__(self, state: DelayState, store: MessageStore, reader: RecordReader) -> None:
        self._state = state
        self._store = store
        self._reader = reader
        self._names = state.topic_names

    # -- from the queue into slots -------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether messages of the queue have no unit, or the wheel is missing."""
        return self.behind > 0 or self._state.timers.lacks_wheel

    @property
    def behind(self) -> int:
        """Number of messages in the queue without a unit, delete messages included."""
        return max(0, self._store.max_offset_in_queue(TIMER_TOPIC, 0) - self._state.timers.queue_offset)

    async def take_from_queue(self, now_ms: int) -> int:
        """Give the next messages of the queue their units; return how many, 0 if there are none or no
        room.

        Raises:
            DiskFull, FlushFailed, OSError: a file could not be made; the messages stay in the
                queue.
        """
        timers = self._state.timers
        low = self._store.min_offset_in_queue(TIMER_TOPIC, 0)
        if timers.queue_offset < low:
            self._state.stats.dropped["lost"] += low - timers.queue_offset
            timers.skip(low - timers.queue_offset)
        units = self._store.queue_units(TIMER_TOPIC, 0, timers.queue_offset, _RECORDS_A_STEP)
        places = [(physical_offset, size) for physical_offset, size, _ in units]
        delayed = [None if data is None else decode_delayed(data) for data in await self._reader.read(places)]
        entries = [
            self._entry(queue_offset, *place, one)
            for queue_offset, (place, one) in enumerate(zip(places, delayed, strict=True), timers.queue_offset)
        ]
        if timers.needs_files() or timers.log.should_prepare_file():
            await trio.to_thread.run_sync(timers.make_files)
        if not entries:
            return 0
        slots = timers.add(entries, now_ms)
        for entry, one, slot_ms in zip(entries, delayed, slots, strict=False):
            self._note_added(entry, one, timers.active.slots.get(slot_ms))
        return len(slots)

    def _entry(self, queue_offset: int, physical_offset: int, size: int, delayed: DelayedRecord | None) -> Timed:
        if delayed is None:
            return Timed(physical_offset, size, 0, 0, 0, 0, cancels=False, is_done=True)
        cancels = delayed.cancels
        timed = Timed(
            physical_offset,
            size,
            delayed.record.store_timestamp_ms,
            delayed.out_ms,
            delayed.due_ms,
            delayed.topic_hash,
            cancels=cancels is not None,
            stays=cancels is not None and cancels.born_ms is not None,
            # The delete message of a cancelled one follows it.
            is_done=physical_offset in self._state.consumed or physical_offset in self._state.cancelled,
        )
        return timed._replace(is_done=True) if self._state.timers.was_finished(queue_offset, timed) else timed

    def _note_added(self, entry: Timed, delayed: DelayedRecord | None, slot: ActiveSlot | None) -> None:
        if delayed is None:
            data = None if entry.size <= 0 else self._store.record_at(entry.physical_offset)
            self._state.stats.dropped["lost" if data is None else "unreadable"] += 1
        elif entry.is_done:
            pass
        elif entry.cancels:
            cancels = delayed.cancels
            assert cancels is not None
            self._apply_delete(delayed, cancels, slot)
        elif not delayed.rolled:
            self._state.stats.waiting[delayed.topic] += 1
            self._state.stats.note_sent_ahead(delayed.topic, max(0, entry.due_ms - entry.stored_ms) / 1000)
            self._names[entry.topic_hash] = delayed.topic

    def _apply_delete(self, delayed: DelayedRecord, cancels: DeleteId, slot: ActiveSlot | None) -> None:
        """Apply a delete message. Ours named the record and took effect at their put; RocketMQ's only have a key.

        If the slot is not active, loading its chain finds the delete message.
        """
        target = origin_of(delayed.record)
        was_heeded = target in self._state.cancelled
        if target is not None:
            self._state.cancelled.discard(target)
        if slot is not None:
            slot.deletes.setdefault(cancels, None if was_heeded else delayed.topic)
        if not was_heeded and not delayed.rolled:
            self._state.stats.waiting[delayed.topic] -= 1

    # -- from slots into memory ----------------------------------------------------------------------------

    def finish_slots(self, now_ms: int) -> None:
        """Move past finished slots; correct the counts for delete messages that cancelled nothing."""
        for topic in self._state.timers.finish_slots(now_ms):
            self._state.stats.waiting[topic] += 1

    async def load(self, chain: Chain) -> None:
        """Load the messages of an active slot into memory."""
        slot = self._state.timers.active.slots[chain.slot_ms]
        offsets, sizes, rolls, hashes = array("q"), array("l"), bytearray(), array("l")
        deletes: list[TimerUnit] = []
        position = chain.last
        while position != NO_POSITION:
            units, position = await trio.to_thread.run_sync(self._state.timers.log.chain, position, _UNITS_A_STEP)
            for unit in units:
                if unit.cancels:
                    deletes.append(unit)
                elif unit.physical_offset not in self._state.consumed:
                    offsets.append(unit.physical_offset)
                    sizes.append(unit.record_size)
                    rolls.append(unit.rolls)
                    hashes.append(unit.topic_hash)
        await self._load_deletes(slot, deletes)
        for stop in range(len(offsets), 0, -_RECORDS_A_STEP):
            part = slice(max(0, stop - _RECORDS_A_STEP), stop)
            places = [*zip(reversed(offsets[part]), reversed(sizes[part]), strict=True)]
            found = await self._read(places)
            for (physical_offset, size), data, is_rolling, topic_hash in zip(
                places, found, reversed(rolls[part]), reversed(hashes[part]), strict=True
            ):
                if physical_offset in self._state.cancelled:
                    continue  # its delete message follows it
                if data is None:  # lost: the hash is the only trace of its topic
                    self._state.stats.waiting[self._names.get(topic_hash, UNKNOWN_TOPIC)] -= 1
                due_ms = chain.slot_ms if is_rolling else _due_ms(data, chain.slot_ms)
                self._state.timers.active.push(Due(due_ms, physical_offset, size, 0, chain.slot_ms, bool(is_rolling)))
            await trio.lowlevel.checkpoint()
        slot.is_loaded = True

    async def _read(self, places: list[RecordRange]) -> list[bytes | None]:
        """Read records, retrying until it succeeds: a slot must not be loaded twice."""
        while True:
            try:
                return await self._reader.read(places)
            except (ReputError, OSError) as error:
                log.error("timer_slot_not_loaded", detail=str(error), hint="the broker retries")
                await trio.sleep(_RETRY_S)

    async def _load_deletes(self, slot: ActiveSlot, deletes: list[TimerUnit]) -> None:
        for start in range(0, len(deletes), _RECORDS_A_STEP):
            places = [(u.physical_offset, u.record_size) for u in deletes[start : start + _RECORDS_A_STEP]]
            for data in await self._read(places):
                delayed = None if data is None else decode_delayed(data)
                if delayed is not None and delayed.cancels is not None:
                    slot.deletes.setdefault(delayed.cancels, delayed.topic)
            await trio.lowlevel.checkpoint()


def _due_ms(data: bytes | None, slot_ms: int) -> int:
    """Return when a delayed record is due; the end of its slot if the record is missing."""
    if data is None:
        return slot_ms + PRECISION_MS
    text = RecordView(data, 0).properties
    out = number_of(find_property(text, b"TIMER_OUT_MS"))
    return timer_due_ms(slot_ms if out is None else slot_of(out), find_property(text, b"TIMER_DELIVER_MS"))


class LevelCounts:
    """Counts the waiting messages of the delay levels by topic, by reading each once in the background. One owner.

    For each level a mark moves along its queue, from the delivered offset to the end. Messages before it are subtracted
    when they finish; messages that finish before it reaches them are never counted.
    """

    def __init__(self, state: DelayState, store: MessageStore, reader: RecordReader) -> None:
        self._state = state
        self._store = store
        self._reader = reader
        self._marks = dict.fromkeys((level.number for level in self._state.levels.levels), 0)
        self._counted: dict[int, Counter[str]] = {level.number: Counter() for level in self._state.levels.levels}

    def finished(self, topic: str, level: int, place: int) -> None:
        """Subtract a finished message if it has been counted.

        Args:
            topic: its destination.
            level, place: as in `Due`.
        """
        if level:
            if place >= self._marks[level]:
                return
            self._counted[level][topic] -= 1
        self._state.stats.waiting[topic] -= 1

    def recount(self, level: Level) -> None:
        """Count a level again, since the topics of its lost messages are unknown."""
        for topic, number in self._counted[level.number].items():
            self._state.stats.waiting[topic] -= number
        self._counted[level.number].clear()
        self._marks[level.number] = 0

    async def step(self) -> int:
        """Count some messages; return how many, 0 if all have been counted."""
        counted = 0
        for level, _ in self._state.levels.waiting():
            counted += await self._count(level)
        return counted

    async def _count(self, level: Level) -> int:
        mark = max(self._marks[level.number], level.next_offset)
        units = self._store.queue_units(SCHEDULE_TOPIC, level.queue_id, mark, _RECORDS_A_STEP)
        places = [(physical_offset, size) for physical_offset, size, _ in units]
        found = await self._reader.read(places)
        for number, (place, data) in enumerate(zip(places, found, strict=True), mark):
            if number >= level.next_offset and number not in level.done_ahead and place[0] not in self._state.cancelled:
                topic = None if data is None else find_property(RecordView(data, 0).properties, b"REAL_TOPIC")
                if topic is not None:
                    name = topic.decode("utf-8", "replace")
                    self._counted[level.number][name] += 1
                    self._state.stats.waiting[name] += 1
        self._marks[level.number] = mark + len(places)
        return len(places)


class Copy(NamedTuple):
    """One message to be appended."""

    due: Due
    delayed: DelayedRecord
    topic: str
    queue_id: int
    data: bytes


class Stuck(Exception):
    """The store refuses writes now; the same messages must be tried again."""


class Deliverer:
    """Moves due messages into their queues. One owner, one step at a time."""

    def __init__(self, core: Core, state: DelayState, counts: LevelCounts, reader: RecordReader) -> None:
        self._core = core
        self._state = state
        self._counts = counts
        self._reader = reader
        options = core.store.options
        self._store_host = options.host.packed()
        self._with_crc = options.record_crc
        self._put_bytes_max = min(_PUT_BYTES_MAX, options.commit_log_file_size // 4)

    async def step(self, *, with_timers: bool = True) -> int:
        """Deliver some due messages; return how many were handled, 0 if none is due.

        Raises:
            Stuck: the store refuses writes now; unfinished messages stay due.
        """
        now_ms = self._core.clock_ms()
        timed = self._state.timers.active.take(now_ms, _TAKEN_MAX) if with_timers else []
        dues = timed + self._state.levels.take(now_ms, max(_TAKEN_OF_LEVELS_MIN, _TAKEN_MAX - len(timed)))
        if not dues:
            return 0
        try:
            found = await self._reader.read([(due.physical_offset, due.size) for due in dues])
            for copies in self._copies(dues, found, now_ms):
                await self._put(copies)
        finally:
            self._state.timers.active.give_back(due for due in timed if self._is_open(due))
        return len(dues)

    @property
    def next_ms(self) -> int | None:
        """When the next message in memory or of a level is due; None if none waits."""
        times = (self._state.timers.active.next_ms, self._state.levels.next_ms(self._core.clock_ms()))
        return min((time for time in times if time is not None), default=None)

    # -- what is put ---------------------------------------------------------------------------------------

    def _copies(self, dues: Sequence[Due], found: Sequence[bytes | None], now_ms: int) -> list[list[Copy]]:
        """Return the copies, one list for each queue and put; drop what cannot be delivered."""
        queues: dict[tuple[str, int], list[Copy]] = {}
        for due, data in zip(dues, found, strict=True):
            copy = self._copy_of(due, data, now_ms)
            if copy is not None:
                queues.setdefault((copy.topic, copy.queue_id), []).append(copy)
        lists: list[list[Copy]] = []
        for copies in queues.values():
            size = self._put_bytes_max
            for copy in copies:
                size += len(copy.data)
                if size > self._put_bytes_max:
                    lists.append([])
                    size = len(copy.data)
                lists[-1].append(copy)
        return lists

    def _copy_of(self, due: Due, data: bytes | None, now_ms: int) -> Copy | None:
        if data is None:
            self._drop(due, None, "lost")
            return None
        delayed = decode_delayed(data)
        if delayed is None:
            self._drop(due, None, "unreadable")
            return None
        if not due.level and self._is_deleted(due, delayed):
            self._done(due, None)
            return None
        if due.rolls and delayed.due_ms > now_ms:
            return self._rolled(due, delayed)
        if not due.level and delayed.cancels is not None:
            self._done(due, None)  # a delete message that is due has no further effect
            return None
        # What was put back into the wheel has a later time than the message had first.
        stored_ms = 0 if delayed.rolled else delayed.record.store_timestamp_ms
        config = self._core.tables.topics.of_accepted(delayed.topic, delayed.queue_id, stored_ms)
        if config is None or delayed.topic == TRANS_HALF_TOPIC:
            self._drop(due, delayed, "no_topic")
            return None
        queue_id = delayed.queue_id
        if queue_id >= max(config.read_queue_nums, config.write_queue_nums):
            queue_id %= max(1, config.read_queue_nums)
        try:
            data = delivered_copy(delayed, queue_id, self._store_host, with_crc=self._with_crc)
        except InvalidMessage:
            self._drop(due, delayed, "refused")
            return None
        return Copy(due, delayed, delayed.topic, queue_id, data)

    def _rolled(self, due: Due, delayed: DelayedRecord) -> Copy | None:
        try:
            data = rolled_copy(delayed, self._store_host, with_crc=self._with_crc)
        except InvalidMessage:  # its properties leave no room
            self._drop(due, delayed, "refused")
            return None
        return Copy(due, delayed, TIMER_TOPIC, 0, data)

    def _is_deleted(self, due: Due, delayed: DelayedRecord) -> bool:
        deletes = self._state.timers.active.slots[due.place].deletes
        if not deletes:
            return False
        for delete in delayed.cancelled_by:
            if delete in deletes:
                deletes[delete] = None
                return True
        return False

    # -- putting -------------------------------------------------------------------------------------------

    async def _put(self, copies: list[Copy]) -> None:
        size = sum([len(copy.data) for copy in copies])
        try:
            await self._core.puts.own.under_lock(size, lambda: self._put_now(copies))
        except (DiskFull, FileNotMade) as error:
            raise Stuck(str(error)) from error

    def _put_now(self, copies: list[Copy]) -> None:
        copies = [copy for copy in copies if self._is_open(copy.due)]
        if not copies:
            return
        before = self._core.store.max_physical_offset
        first = copies[0]
        result = self._core.store.put_encoded(first.topic, first.queue_id, [copy.data for copy in copies])
        if result.status is PutStatus.MESSAGE_ILLEGAL:  # one of them is too large for a file of the log
            if len(copies) == 1:
                self._drop(first.due, first.delayed, "refused")
                return
            for copy in copies:  # the others can be put
                self._put_now([copy])
            return
        if result.status is not PutStatus.PUT_OK:
            raise Stuck(str(result.status))
        self._core.puts.own.wrote()
        for copy in copies:
            self._delivered(copy, before, result.store_timestamp_ms)

    # -- what became of it ---------------------------------------------------------------------------------

    def _delivered(self, copy: Copy, before: int, stored_ms: int) -> None:
        stats = self._state.stats
        if copy.topic == TIMER_TOPIC:
            stats.rolled += 1
        else:
            stats.delivered[copy.delayed.topic] += 1
            stats.error_seconds.observe(max(0, stored_ms - copy.due.due_ms) / 1000)
            self._counts.finished(copy.delayed.topic, copy.due.level, copy.due.place)
        self._done(copy.due, before)

    def _drop(self, due: Due, delayed: DelayedRecord | None, reason: str) -> None:
        self._state.stats.note_dropped(reason, due.physical_offset)
        if delayed is not None:
            self._counts.finished(delayed.topic, due.level, due.place)
        self._done(due, None)
        log.warning(
            "delayed_message_dropped",
            reason=reason,
            topic=None if delayed is None else delayed.topic,
            physical_offset=due.physical_offset,
            hint="its record stays in the log until its file expires: reput store dump",
        )

    def _done(self, due: Due, delivered_from: int | None) -> None:
        if due.level:
            self._state.levels.done(due, delivered_from=delivered_from)
        else:
            self._state.timers.active.done(due.physical_offset, delivered_from=delivered_from)

    def _is_open(self, due: Due) -> bool:
        if due.level:
            return due.physical_offset not in self._state.cancelled
        return self._state.timers.active.is_waiting(due.physical_offset)
