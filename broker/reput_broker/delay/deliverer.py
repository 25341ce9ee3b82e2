"""Put the copies of due messages, many at a time (RocketMQ: deliverMessage, TimerDequeuePutMessageService).

Messages of one queue are appended together in the order of their times, and one sync covers everything put since the
last one. A message is delivered when its copy is in the log. That, and that it was not cancelled before, is decided in
one step of the event loop, so that a cancellation gets a reliable answer.

Messages that can never be delivered are dropped and counted: their topic has been deleted, their record has left the
log or is damaged, or the store refuses them. A queue that no longer exists, since a topic can be altered, is replaced
by one that does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from reput_broker.delay.delayed_record import DelayedRecord, Due, decode_delayed, delivered_copy, rolled_copy
from reput_broker.delay.level_counts import LevelCounts
from reput_broker.delay.record_reader import RecordReader
from reput_broker.delay.state import DelayState
from reput_broker.put.put_lock import OwnPuts
from reput_broker.store.base.errors import DiskFull, FileNotMade
from reput_broker.store.base.results import PutStatus
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.topics import TopicConfigManager
from reput_protocol.errors import InvalidMessage
from reput_protocol.names import TIMER_TOPIC, TRANS_HALF_TOPIC

log = structlog.get_logger(__name__)

_TAKEN_MAX = 64
_TAKEN_OF_LEVELS_MIN = 16
_PUT_BYTES_MAX = 1 << 20


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

    def __init__(
        self,
        state: DelayState,
        counts: LevelCounts,
        store: MessageStore,
        puts: OwnPuts,
        reader: RecordReader,
        topics: TopicConfigManager,
        *,
        clock_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._puts = puts
        self._reader = reader
        self._topics = topics
        self._levels = state.levels
        self._timers = state.timers
        self._cancelled = state.cancelled
        self._stats = state.stats
        self._counts = counts
        self._clock_ms = clock_ms
        self._store_host = store.options.host.packed()
        self._with_crc = store.options.record_crc
        self._put_bytes_max = min(_PUT_BYTES_MAX, store.options.commit_log_file_size // 4)

    async def step(self, *, with_timers: bool = True) -> int:
        """Deliver some due messages; return how many were handled, 0 if none is due.

        Raises:
            Stuck: the store refuses writes now; unfinished messages stay due.
        """
        now_ms = self._clock_ms()
        timed = self._timers.active.take(now_ms, _TAKEN_MAX) if with_timers else []
        dues = timed + self._levels.take(now_ms, max(_TAKEN_OF_LEVELS_MIN, _TAKEN_MAX - len(timed)))
        if not dues:
            return 0
        try:
            found = await self._reader.read([(due.physical_offset, due.size) for due in dues])
            for copies in self._copies(dues, found, now_ms):
                await self._put(copies)
        finally:
            self._timers.active.give_back(due for due in timed if self._is_open(due))
        return len(dues)

    @property
    def next_ms(self) -> int | None:
        """When the next message in memory or of a level is due; None if none waits."""
        times = (self._timers.active.next_ms, self._levels.next_ms(self._clock_ms()))
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
        config = self._topics.of_accepted(delayed.topic, delayed.queue_id, stored_ms)
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
        deletes = self._timers.active.slots[due.place].deletes
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
            await self._puts.under_lock(size, lambda: self._put_now(copies))
        except (DiskFull, FileNotMade) as error:
            raise Stuck(str(error)) from error

    def _put_now(self, copies: list[Copy]) -> None:
        copies = [copy for copy in copies if self._is_open(copy.due)]
        if not copies:
            return
        before = self._store.max_physical_offset
        first = copies[0]
        result = self._store.put_encoded(first.topic, first.queue_id, [copy.data for copy in copies])
        if result.status is PutStatus.MESSAGE_ILLEGAL:  # one of them is too large for a file of the log
            if len(copies) == 1:
                self._drop(first.due, first.delayed, "refused")
                return
            for copy in copies:  # the others can be put
                self._put_now([copy])
            return
        if result.status is not PutStatus.PUT_OK:
            raise Stuck(str(result.status))
        self._puts.wrote()
        for copy in copies:
            self._delivered(copy, before, result.store_timestamp_ms)

    # -- what became of it ---------------------------------------------------------------------------------

    def _delivered(self, copy: Copy, before: int, stored_ms: int) -> None:
        stats = self._stats
        if copy.topic == TIMER_TOPIC:
            stats.rolled += 1
        else:
            stats.delivered[copy.delayed.topic] += 1
            stats.error_seconds.observe(max(0, stored_ms - copy.due.due_ms) / 1000)
            self._counts.finished(copy.delayed.topic, copy.due.level, copy.due.place)
        self._done(copy.due, before)

    def _drop(self, due: Due, delayed: DelayedRecord | None, reason: str) -> None:
        self._stats.note_dropped(reason, due.physical_offset)
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
            self._levels.done(due, delivered_from=delivered_from)
        else:
            self._timers.active.done(due.physical_offset, delivered_from=delivered_from)

    def _is_open(self, due: Due) -> bool:
        if due.level:
            return due.physical_offset not in self._cancelled
        return self._timers.active.is_waiting(due.physical_offset)
