"""Iterate over the waiting messages in the order of their times, to the second, a few at a time.

Levels are read from their queues, slots from their chains. A cursor holds the position in each, so that a walk can
continue later although messages come and go. It meets every message that waits throughout once, and one that is
rescheduled meanwhile perhaps twice.

A message is cancelled by its key, and the answer says reliably whether that was in time. It is cancelled when the
record that says so is in the log: it still waits in the same step of the event loop, and is never delivered afterwards.
The answer is sent after that record has been flushed, so that no crash can contradict it. A message that no longer
waits counts as delivered unless the log says that it was cancelled.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from operator import attrgetter

import trio

from reput_broker.delay.delayed_record import DelayedRecord, DeleteId, Due, cancel_record, decode_delayed, origin_of
from reput_broker.delay.deliverer import LevelCounts
from reput_broker.delay.levels import Level
from reput_broker.delay.record_reader import RecordRange, RecordReader
from reput_broker.delay.state import DelayState
from reput_broker.delay.timer_log import NO_POSITION
from reput_broker.delay.timer_wheel import PRECISION_MS, slot_of
from reput_broker.remoting.request import Refusal
from reput_broker.store.base.errors import DiskFull, FileNotMade, StoreClosed
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.store.message_store import MessageStore
from reput_broker.tenure.core import Core
from reput_protocol.commands.delay import CancelOutcome
from reput_protocol.errors import ErrorCode
from reput_protocol.names import DELAY_CANCEL_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from reput_protocol.record.record import Record, RecordView

_READ_AT_ONCE = 64
_UNITS_A_STEP = 1024
_NEVER_MS = 1 << 62
_SETTLE_S = 5.0
_POLL_S = 0.002
_FOUND_MAX = 64
_WALKED_AT_ONCE = 256
_RECORD_BYTES = 512
"""More than the size of a record without its properties."""


@dataclass(slots=True)
class WalkCursor:
    """The position of a walk."""

    levels: dict[int, int] = field(default_factory=dict)
    """Next queue offset by level."""
    slot_ms: int = -1
    """The slot of the wheel, and the last record of it that was met."""
    physical_offset: int = -1

    def __str__(self) -> str:
        return json.dumps([self.levels, self.slot_ms, self.physical_offset], separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> WalkCursor:
        """Parse what `str` returns. Raises ValueError for anything else."""
        try:
            levels, slot_ms, physical_offset = json.loads(text)
            cursor = cls(
                {int(level): int(offset) for level, offset in levels.items()}, int(slot_ms), int(physical_offset)
            )
        except (ValueError, TypeError, AttributeError):
            raise ValueError(f"{text[:60]!r} is not a cursor") from None
        return cursor


async def until(condition: Callable[[], bool]) -> None:
    """Poll until `condition` holds; raises `Refusal` (BUSY) after 5 seconds."""
    with trio.move_on_after(_SETTLE_S):
        while not condition():  # noqa: ASYNC110 - a rare request
            await trio.sleep(_POLL_S)
        return
    raise Refusal(ErrorCode.BUSY, "the broker has not processed the latest messages yet; try again")


@dataclass(eq=False, repr=False)
class WaitingMessages:
    """Walks over what waits."""

    _state: DelayState
    _store: MessageStore
    _reader: RecordReader
    _clock_ms: Callable[[], int]

    async def until_walked(self) -> None:
        """Wait until a walk meets everything put so far.

        Raises:
            Refusal: that takes too long.
        """
        store, timers, end = self._store, self._state.timers, self._store.wrote_offset
        await until(lambda: store.dispatched_offset >= end)
        queue_end = store.max_offset_in_queue(TIMER_TOPIC, 0)
        await until(lambda: timers.queue_offset >= queue_end)

    async def next(self, cursor: WalkCursor, count: int) -> list[DelayedRecord] | None:
        """Return at most `count` of the next messages and advance the cursor; None at the end.

        An empty list is not the end: of these records none still waits.
        """
        slot_ms = await self._next_slot(cursor)
        heads = self._heads(cursor)
        nearest = min(heads, default=None)
        if nearest is None or (slot_ms is not None and slot_ms <= nearest[0]):
            return None if slot_ms is None else await self._of_slot(cursor, slot_ms, count)
        until_ms = min((head[0] for head in heads if head != nearest), default=_NEVER_MS)
        if slot_ms is not None:
            until_ms = min(until_ms, slot_ms)
        return await self._of_level(cursor, nearest[1], until_ms, count)

    # -- levels --------------------------------------------------------------------------------------------

    def _heads(self, cursor: WalkCursor) -> list[tuple[int, int]]:
        heads: list[tuple[int, int]] = []
        for level, _ in self._state.levels.waiting():
            dues = self._dues(cursor, level, 1)
            if dues:
                heads.append((dues[0].due_ms, level.number))
        return heads

    def _dues(self, cursor: WalkCursor, level: Level, count: int) -> list[Due]:
        offset = max(cursor.levels.get(level.number, 0), level.next_offset)
        units = self._store.queue_units(SCHEDULE_TOPIC, level.queue_id, offset, count)
        latest_ms = self._clock_ms() + level.delay_ms
        deliver_ms = self._state.levels.deliver_ms
        return [
            Due(min(deliver_ms(physical_offset, code), latest_ms), physical_offset, size, level.number, place)
            for place, (physical_offset, size, code) in enumerate(units, offset)
        ]

    async def _of_level(self, cursor: WalkCursor, number: int, until_ms: int, count: int) -> list[DelayedRecord]:
        level = self._state.levels.of(number)
        dues = self._dues(cursor, level, count)
        taken = [dues[0], *takewhile(lambda due: due.due_ms <= until_ms, dues[1:])]
        cursor.levels[number] = taken[-1].place + 1
        return await self._read(taken, ())

    # -- slots of the wheel --------------------------------------------------------------------------------

    async def _next_slot(self, cursor: WalkCursor) -> int | None:
        timers = self._state.timers
        if cursor.slot_ms < timers.read_ms:
            cursor.slot_ms, cursor.physical_offset = timers.read_ms, -1
        start = cursor.slot_ms
        active = min((slot_ms for slot_ms in timers.active.slots if slot_ms >= start), default=None)
        if active is not None and active < timers.active_until:
            return active
        stop = max(timers.read_ms, self._clock_ms()) + timers.wheel.span_ms // 2
        filled = await trio.to_thread.run_sync(
            timers.wheel.first_filled, max(start, timers.active_until), slot_of(stop)
        )
        return min((slot_ms for slot_ms in (active, filled) if slot_ms is not None), default=None)

    async def _of_slot(self, cursor: WalkCursor, slot_ms: int, count: int) -> list[DelayedRecord]:
        after = cursor.physical_offset if slot_ms == cursor.slot_ms else -1
        active = self._state.timers.active.slots.get(slot_ms)
        if active is not None and active.is_loaded:
            dues = self._state.timers.active.waiting_in(slot_ms, after, count + 1)
            deleted: Collection[DeleteId] = active.deletes.keys()
        else:
            dues, deleted = await self._in_chain(slot_ms, after, count + 1)
        if len(dues) > count:
            del dues[count:]
            cursor.slot_ms, cursor.physical_offset = slot_ms, dues[-1].physical_offset
        else:
            cursor.slot_ms, cursor.physical_offset = slot_ms + PRECISION_MS, -1
        return await self._read(dues, deleted)

    async def _in_chain(self, slot_ms: int, after: int, count: int) -> tuple[list[Due], set[DeleteId]]:
        """Return up to `count` messages of a slot that is not loaded, beyond `after`, and the ids in all of its delete
        messages."""
        timers, consumed = self._state.timers, self._state.consumed
        dues: list[Due] = []
        deletes: list[RecordRange] = []
        position = timers.wheel.slot(slot_ms).last
        while position != NO_POSITION:
            units, position = await trio.to_thread.run_sync(timers.log.chain, position, _UNITS_A_STEP)
            for unit in units:
                place = (unit.physical_offset, unit.record_size)
                if unit.cancels:
                    deletes.append(place)
                elif unit.physical_offset > after and unit.physical_offset not in consumed:
                    dues.append(Due(slot_ms, *place, 0, slot_ms, unit.rolls))
            dues = heapq.nsmallest(count, dues, key=attrgetter("physical_offset"))
        deleted: set[DeleteId] = set()
        for start in range(0, len(deletes), _READ_AT_ONCE):
            for data in await self._reader.read(deletes[start : start + _READ_AT_ONCE]):
                delayed = None if data is None else decode_delayed(data)
                if delayed is not None and delayed.cancels is not None:
                    deleted.add(delayed.cancels)
        return dues, deleted

    # -- records -------------------------------------------------------------------------------------------

    async def _read(self, dues: Sequence[Due], deleted: Collection[DeleteId]) -> list[DelayedRecord]:
        """Read the records that still wait."""
        waiting: list[DelayedRecord] = []
        for start in range(0, len(dues), _READ_AT_ONCE):
            part = dues[start : start + _READ_AT_ONCE]
            found = await self._reader.read([(due.physical_offset, due.size) for due in part])
            for due, data in zip(part, found, strict=True):
                delayed = None if data is None else decode_delayed(data)
                if delayed is None or delayed.cancels is not None:
                    continue
                if deleted and any(delete in deleted for delete in delayed.cancelled_by):
                    continue
                if self._still_waits(due):
                    waiting.append(delayed)
            await trio.lowlevel.checkpoint()
        return waiting

    def _still_waits(self, due: Due) -> bool:
        state = self._state
        if due.physical_offset in state.cancelled:
            return False
        if due.level:
            level = state.levels.of(due.level)
            return due.place >= level.next_offset and due.place not in level.done_ahead
        active = state.timers.active.slots.get(due.place)
        if active is None or not active.is_loaded:
            return due.place >= state.timers.read_ms
        return state.timers.active.is_waiting(due.physical_offset)


@dataclass(slots=True)
class Cancelled:
    """The result of cancelling one message."""

    delayed: DelayedRecord
    outcome: CancelOutcome
    end_offset: int = 0
    """The result is durable once the log is flushed up to here."""


@dataclass(slots=True)
class _Found:
    waiting: list[DelayedRecord]
    """Delayed records, each at the last place to which it was rescheduled."""
    cancelled: set[int]
    """Log offsets of delayed records that one of our records cancels."""
    deleted: set[tuple[DeleteId, int]]
    """What RocketMQ's delete messages cancel, and in which slot of the wheel."""

    def cancels(self, delayed: DelayedRecord) -> bool:
        return delayed.physical_offset in self.cancelled or any(
            (delete, delayed.out_ms) in self.deleted for delete in delayed.cancelled_by
        )


class Canceller:
    """Cancels delayed messages. Without an index, it searches everything that waits."""

    def __init__(self, core: Core, state: DelayState, counts: LevelCounts, waiting: WaitingMessages) -> None:
        self._core = core
        self._state = state
        self._counts = counts
        self._waiting = waiting
        self._limiter = trio.CapacityLimiter(1)

    async def cancel(self, topic: str, key: str, *, is_unique_id: bool = False) -> list[Cancelled]:
        """Cancel the messages for `topic` with this unique id or key; return the result for each.

        With `is_unique_id` only the one with that unique id.

        Raises:
            Refusal: the store refuses writes, or the latest messages cannot be searched yet.
                Repeating the call reports messages that were cancelled before.
        """
        results: dict[int, Cancelled] = {}
        moved: set[int] = set()
        while True:
            self._core.puts.own.wrote()
            await self._waiting.until_walked()
            found = await self._find(topic, key, is_unique_id=is_unique_id)
            has_moved = False
            for delayed in found.waiting:
                place = delayed.physical_offset
                if place in results:
                    continue
                if found.cancels(delayed):
                    outcome = CancelOutcome.ALREADY_CANCELLED
                    results[place] = Cancelled(delayed, outcome, self._core.store.wrote_offset)
                    continue
                cancelled = await self._cancel(delayed)
                if cancelled.outcome is CancelOutcome.DELIVERED and self._is_far(delayed) and place not in moved:
                    moved.add(place)  # unless it has been rescheduled meanwhile
                    has_moved = True
                    continue
                results[place] = cancelled
            if not has_moved:
                return [*results.values()]

    def _is_far(self, delayed: DelayedRecord) -> bool:
        return not delayed.level and self._state.timers.is_far(delayed.out_ms, delayed.record.store_timestamp_ms)

    # -- finding -------------------------------------------------------------------------------------------

    async def _find(self, topic: str, key: str, *, is_unique_id: bool) -> _Found:
        is_settled = True
        try:
            self._core.store.complete_index()
        except DiskFull:
            is_settled = False
        records: list[bytes] = []
        for delay_topic in (SCHEDULE_TOPIC, TIMER_TOPIC, DELAY_CANCEL_TOPIC):
            find = partial(self._core.store.query_message, delay_topic, key, _FOUND_MAX, for_clients=False)
            found = await trio.to_thread.run_sync(find, limiter=self._limiter)
            is_settled = is_settled and found.is_complete and len(found.records) < _FOUND_MAX
            records += found.records
        delayed_records = [delayed for data in records if (delayed := decode_delayed(data)) is not None]
        if not is_settled:
            cursor = WalkCursor()
            while (some := await self._waiting.next(cursor, _WALKED_AT_ONCE)) is not None:
                delayed_records += [delayed for delayed in some if has_key(delayed, key)]
        by_place = {
            delayed.physical_offset: delayed
            for delayed in delayed_records
            if delayed.topic == topic and (not is_unique_id or delayed.unique_key == key)
        }
        return _found([by_place[place] for place in sorted(by_place)], records)

    # -- deciding ------------------------------------------------------------------------------------------

    async def _cancel(self, delayed: DelayedRecord) -> Cancelled:
        slot_ms: int | None = slot_of(delayed.out_ms)
        if self._is_far(delayed):
            slot_with = self._state.timers.slot_with
            slot_ms = await trio.to_thread.run_sync(slot_with, delayed.physical_offset, limiter=self._limiter)
        record = cancel_record(delayed, slot_ms or slot_of(delayed.out_ms), self._core.clock_ms())
        size = len(record.properties) + _RECORD_BYTES
        while True:
            try:
                cancelled = await self._core.puts.own.under_lock(
                    size, lambda: self._cancel_now(delayed, slot_ms, record)
                )
            except DiskFull as error:
                raise Refusal(ErrorCode.DISK_FULL, str(error)) from error
            except (FileNotMade, StoreClosed) as error:
                raise Refusal(ErrorCode.BUSY, str(error)) from error
            if cancelled is not None:
                return cancelled
            await until(lambda: not self._state.timers.active.is_loading)

    def _cancel_now(self, delayed: DelayedRecord, slot_ms: int | None, record: Record) -> Cancelled | None:
        """Decide and put the record; None if slots must be loaded first."""
        if delayed.physical_offset in self._state.cancelled:
            return Cancelled(delayed, CancelOutcome.ALREADY_CANCELLED, self._core.store.wrote_offset)
        if self._is_waiting(delayed, slot_ms):
            return Cancelled(delayed, CancelOutcome.CANCELLED, self._put(delayed, record).end_offset)
        if not delayed.level and self._state.timers.active.is_loading:
            return None
        if delayed.physical_offset in self._state.stats.dropped_places:
            return Cancelled(delayed, CancelOutcome.DROPPED)
        return Cancelled(delayed, CancelOutcome.DELIVERED)

    def _is_waiting(self, delayed: DelayedRecord, slot_ms: int | None) -> bool:
        queue_offset, timers = delayed.record.queue_offset, self._state.timers
        if delayed.level:
            level = self._state.levels.of(delayed.level)
            return queue_offset >= level.next_offset and queue_offset not in level.done_ahead
        if delayed.physical_offset in self._state.consumed:
            return False
        if timers.active.is_waiting(delayed.physical_offset):
            return True
        return slot_ms is not None and slot_ms >= timers.active_until

    def _put(self, delayed: DelayedRecord, record: Record) -> PutResult:
        result = self._core.store.put_record(record)
        if result.status is not PutStatus.PUT_OK:
            code = ErrorCode.DISK_FULL if result.status is PutStatus.DISK_FULL else ErrorCode.READ_ONLY
            raise Refusal(code, f"the cancellation cannot be stored ({result.status}); the message still waits")
        self._core.puts.own.wrote()
        state, queue_offset = self._state, delayed.record.queue_offset
        state.cancelled.add(delayed.physical_offset)
        if delayed.level:
            self._state.cancellations.add(result.queue_offset, delayed.level, queue_offset)
        else:
            state.timers.active.done(delayed.physical_offset)
        state.stats.cancelled[delayed.topic] += 1
        self._counts.finished(delayed.topic, delayed.level, queue_offset)
        return result


def has_key(delayed: DelayedRecord, key: str) -> bool:
    """Whether a delayed record has this unique id or key."""
    return key == delayed.unique_key or key in delayed.record.keys


def _found(found: list[DelayedRecord], records: Iterable[bytes]) -> _Found:
    messages = [delayed for delayed in found if delayed.cancels is None]
    # These have been rescheduled: the message waits in the derived record now.
    made_of = {origin_of(delayed.record) for delayed in messages if delayed.rolled}
    cancelled: set[int] = set()
    for data in records:
        record = RecordView(data, 0)
        origin = origin_of(record)
        if origin is not None and record.topic == DELAY_CANCEL_TOPIC:
            cancelled.add(origin)
    deleted: set[tuple[DeleteId, int]] = set()
    for delayed in found:
        origin = origin_of(delayed.record)
        if delayed.cancels is None:
            continue
        if origin is not None and not delayed.rolled:
            cancelled.add(origin)
        else:
            deleted.add((delayed.cancels, delayed.out_ms))
    return _Found([delayed for delayed in messages if delayed.physical_offset not in made_of], cancelled, deleted)
