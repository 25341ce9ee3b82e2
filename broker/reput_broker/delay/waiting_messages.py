"""Iterate over the waiting messages in the order of their times, to the second, a few at a time.

Levels are read from their queues, slots from their chains. A cursor holds the position in each, so that a walk can
continue later although messages come and go. It meets every message that waits throughout once, and one that is
rescheduled meanwhile perhaps twice.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from operator import attrgetter

import trio

from reput_broker.delay.delayed_record import DelayedRecord, DeleteId, Due, decode_delayed
from reput_broker.delay.levels import Level
from reput_broker.delay.record_reader import RecordRange, RecordReader
from reput_broker.delay.state import DelayState
from reput_broker.delay.timer_log import NO_POSITION
from reput_broker.delay.timer_wheel import PRECISION_MS, slot_of
from reput_broker.remoting.request import Refusal
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ErrorCode
from reput_protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC

_READ_AT_ONCE = 64
_UNITS_A_STEP = 1024
_NEVER_MS = 1 << 62
_SETTLE_S = 5.0
_POLL_S = 0.002


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
                {int(level): int(offset) for level, offset in levels.items()},
                int(slot_ms),
                int(physical_offset),
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


class WaitingMessages:
    """Walks over what waits."""

    def __init__(
        self, state: DelayState, store: MessageStore, reader: RecordReader, clock_ms: Callable[[], int]
    ) -> None:
        self._state = state
        self._store = store
        self._reader = reader
        self._clock_ms = clock_ms

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
            Due(
                min(deliver_ms(physical_offset, code), latest_ms),
                physical_offset,
                size,
                level.number,
                place,
            )
            for place, (physical_offset, size, code) in enumerate(units, offset)
        ]

    async def _of_level(
        self, cursor: WalkCursor, number: int, until_ms: int, count: int
    ) -> list[DelayedRecord]:
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
