"""Cancel delayed messages by key and report reliably whether that was in time.

A message is cancelled when the record that says so is in the log: it still waits in the same step of the event loop,
and is never delivered afterwards. The answer is sent after that record has been flushed, so that no crash can
contradict it. A message that no longer waits counts as delivered unless the log says that it was cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import trio

from reput_broker.delay.delayed_record import (
    DelayedRecord,
    DeleteId,
    cancel_record,
    decode_delayed,
    origin_of,
)
from reput_broker.delay.level_counts import LevelCounts
from reput_broker.delay.state import DelayState
from reput_broker.delay.timer_wheel import slot_of
from reput_broker.delay.waiting_messages import WaitingMessages, WalkCursor, until
from reput_broker.put.put_lock import OwnPuts
from reput_broker.remoting.request import Refusal
from reput_broker.store.base.errors import DiskFull, FileNotMade, StoreClosed
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.store.message_store import MessageStore
from reput_protocol.commands.delay import CancelOutcome
from reput_protocol.errors import ErrorCode
from reput_protocol.names import DELAY_CANCEL_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from reput_protocol.record.record import Record, RecordView

_FOUND_MAX = 64
_WALKED_AT_ONCE = 256
_RECORD_BYTES = 512
"""More than the size of a record without its properties."""


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

    def __init__(
        self,
        state: DelayState,
        counts: LevelCounts,
        store: MessageStore,
        puts: OwnPuts,
        waiting: WaitingMessages,
        *,
        clock_ms: Callable[[], int],
    ) -> None:
        self._state = state
        self._counts = counts
        self._store = store
        self._puts = puts
        self._waiting = waiting
        self._clock_ms = clock_ms
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
            self._puts.wrote()
            await self._waiting.until_walked()
            found = await self._find(topic, key, is_unique_id=is_unique_id)
            has_moved = False
            for delayed in found.waiting:
                place = delayed.physical_offset
                if place in results:
                    continue
                if found.cancels(delayed):
                    outcome = CancelOutcome.ALREADY_CANCELLED
                    results[place] = Cancelled(delayed, outcome, self._store.wrote_offset)
                    continue
                cancelled = await self._cancel(delayed)
                if (
                    cancelled.outcome is CancelOutcome.DELIVERED
                    and self._is_far(delayed)
                    and place not in moved
                ):
                    moved.add(place)  # unless it has been rescheduled meanwhile
                    has_moved = True
                    continue
                results[place] = cancelled
            if not has_moved:
                return [*results.values()]

    def _is_far(self, delayed: DelayedRecord) -> bool:
        return not delayed.level and self._state.timers.is_far(
            delayed.out_ms, delayed.record.store_timestamp_ms
        )

    # -- finding -------------------------------------------------------------------------------------------

    async def _find(self, topic: str, key: str, *, is_unique_id: bool) -> _Found:
        is_settled = True
        try:
            self._store.complete_index()
        except DiskFull:
            is_settled = False
        records: list[bytes] = []
        for delay_topic in (SCHEDULE_TOPIC, TIMER_TOPIC, DELAY_CANCEL_TOPIC):
            find = partial(self._store.query_message, delay_topic, key, _FOUND_MAX, for_clients=False)
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
        record = cancel_record(delayed, slot_ms or slot_of(delayed.out_ms), self._clock_ms())
        size = len(record.properties) + _RECORD_BYTES
        while True:
            try:
                cancelled = await self._puts.under_lock(
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
            return Cancelled(delayed, CancelOutcome.ALREADY_CANCELLED, self._store.wrote_offset)
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
        result = self._store.put_record(record)
        if result.status is not PutStatus.PUT_OK:
            code = ErrorCode.DISK_FULL if result.status is PutStatus.DISK_FULL else ErrorCode.READ_ONLY
            raise Refusal(
                code, f"the cancellation cannot be stored ({result.status}); the message still waits"
            )
        self._puts.wrote()
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
    return _Found(
        [delayed for delayed in messages if delayed.physical_offset not in made_of], cancelled, deleted
    )
