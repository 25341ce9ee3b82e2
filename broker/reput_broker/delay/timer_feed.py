"""Move messages from the timer's queue into the wheel, and from the wheel's slots into memory (RocketMQ:
TimerEnqueue..., TimerDequeueGet...).

To load a slot, its whole chain is read first, so that delete messages are known before any other message of the slot
becomes due.
"""

from __future__ import annotations

from array import array

import structlog
import trio

from reput_broker.delay.active_slots import ActiveSlot
from reput_broker.delay.delayed_record import (
    DelayedRecord,
    DeleteId,
    Due,
    decode_delayed,
    number_of,
    origin_of,
    timer_due_ms,
)
from reput_broker.delay.record_reader import RecordRange, RecordReader
from reput_broker.delay.state import DelayState
from reput_broker.delay.timer_log import NO_POSITION, TimerUnit
from reput_broker.delay.timer_message_store import Chain, Timed
from reput_broker.delay.timer_wheel import PRECISION_MS, slot_of
from reput_broker.observe.counters import UNKNOWN_TOPIC
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ReputError
from reput_protocol.names import TIMER_TOPIC
from reput_protocol.properties import find_property
from reput_protocol.record.record import RecordView

log = structlog.get_logger(__name__)

_RECORDS_A_STEP = 64
_UNITS_A_STEP = 1024
_RETRY_S = 1.0
LOADED_MAX = 200_000
"""With more messages in memory no further slot is loaded; they are late anyway."""


class TimerFeed:
    """Feeds the timer."""

    def __init__(
        self,
        state: DelayState,
        store: MessageStore,
        reader: RecordReader,
    ) -> None:
        self._timers = state.timers
        self._store = store
        self._reader = reader
        self._cancelled = state.cancelled
        self._consumed = state.consumed
        self._stats = state.stats
        self._names = state.topic_names

    # -- from the queue into slots -------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether messages of the queue have no unit, or the wheel is missing."""
        return self.behind > 0 or self._timers.lacks_wheel

    @property
    def behind(self) -> int:
        """Number of messages in the queue without a unit, delete messages included."""
        return max(0, self._store.max_offset_in_queue(TIMER_TOPIC, 0) - self._timers.queue_offset)

    async def take_from_queue(self, now_ms: int) -> int:
        """Give the next messages of the queue their units; return how many, 0 if there are none or no
        room.

        Raises:
            DiskFull, FlushFailed, OSError: a file could not be made; the messages stay in the
                queue.
        """
        timers = self._timers
        low = self._store.min_offset_in_queue(TIMER_TOPIC, 0)
        if timers.queue_offset < low:
            self._stats.dropped["lost"] += low - timers.queue_offset
            timers.skip(low - timers.queue_offset)
        units = self._store.queue_units(TIMER_TOPIC, 0, timers.queue_offset, _RECORDS_A_STEP)
        places = [(physical_offset, size) for physical_offset, size, _ in units]
        delayed = [None if data is None else decode_delayed(data) for data in await self._reader.read(places)]
        entries = [
            self._entry(queue_offset, *place, one)
            for queue_offset, (place, one) in enumerate(
                zip(places, delayed, strict=True), timers.queue_offset
            )
        ]
        if timers.needs_files() or timers.log.should_prepare_file():
            await trio.to_thread.run_sync(timers.make_files)
        if not entries:
            return 0
        slots = timers.add(entries, now_ms)
        for entry, one, slot_ms in zip(entries, delayed, slots, strict=False):
            self._note_added(entry, one, timers.active.slots.get(slot_ms))
        return len(slots)

    def _entry(
        self, queue_offset: int, physical_offset: int, size: int, delayed: DelayedRecord | None
    ) -> Timed:
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
            is_done=physical_offset in self._consumed or physical_offset in self._cancelled,
        )
        return timed._replace(is_done=True) if self._timers.was_finished(queue_offset, timed) else timed

    def _note_added(self, entry: Timed, delayed: DelayedRecord | None, slot: ActiveSlot | None) -> None:
        if delayed is None:
            data = None if entry.size <= 0 else self._store.record_at(entry.physical_offset)
            self._stats.dropped["lost" if data is None else "unreadable"] += 1
        elif entry.is_done:
            pass
        elif entry.cancels:
            cancels = delayed.cancels
            assert cancels is not None
            self._apply_delete(delayed, cancels, slot)
        elif not delayed.rolled:
            self._stats.waiting[delayed.topic] += 1
            self._stats.note_sent_ahead(delayed.topic, max(0, entry.due_ms - entry.stored_ms) / 1000)
            self._names[entry.topic_hash] = delayed.topic

    def _apply_delete(self, delayed: DelayedRecord, cancels: DeleteId, slot: ActiveSlot | None) -> None:
        """Apply a delete message. Ours named the record and took effect at their put; RocketMQ's only have a key.

        If the slot is not active, loading its chain finds the delete message.
        """
        target = origin_of(delayed.record)
        was_heeded = target in self._cancelled
        if target is not None:
            self._cancelled.discard(target)
        if slot is not None:
            slot.deletes.setdefault(cancels, None if was_heeded else delayed.topic)
        if not was_heeded and not delayed.rolled:
            self._stats.waiting[delayed.topic] -= 1

    # -- from slots into memory ----------------------------------------------------------------------------

    def finish_slots(self, now_ms: int) -> None:
        """Move past finished slots; correct the counts for delete messages that cancelled nothing."""
        for topic in self._timers.finish_slots(now_ms):
            self._stats.waiting[topic] += 1

    async def load(self, chain: Chain) -> None:
        """Load the messages of an active slot into memory."""
        slot = self._timers.active.slots[chain.slot_ms]
        offsets, sizes, rolls, hashes = array("q"), array("l"), bytearray(), array("l")
        deletes: list[TimerUnit] = []
        position = chain.last
        while position != NO_POSITION:
            units, position = await trio.to_thread.run_sync(self._timers.log.chain, position, _UNITS_A_STEP)
            for unit in units:
                if unit.cancels:
                    deletes.append(unit)
                elif unit.physical_offset not in self._consumed:
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
                if physical_offset in self._cancelled:
                    continue  # its delete message follows it
                if data is None:  # lost: the hash is the only trace of its topic
                    self._stats.waiting[self._names.get(topic_hash, UNKNOWN_TOPIC)] -= 1
                due_ms = chain.slot_ms if is_rolling else _due_ms(data, chain.slot_ms)
                self._timers.active.push(
                    Due(due_ms, physical_offset, size, 0, chain.slot_ms, bool(is_rolling))
                )
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
