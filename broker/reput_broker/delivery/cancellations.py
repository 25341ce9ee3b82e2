"""Messages of delay levels that were cancelled and whose turn has not come: each has a record in a topic of ours.

The records are read again at every start, from the first that still matters. (A message with a time of its own is
cancelled by a delete message in its slot, which needs no such table.)
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from reput_broker.delivery.levels import Levels
from reput_broker.delivery.origin import origin_of
from reput_broker.store.message_store import MessageStore
from reput_protocol.names import DELAY_CANCEL_TOPIC, SCHEDULE_TOPIC
from reput_protocol.record_view import RecordView

_UNITS_A_READ = 1024


class _Cancellation(NamedTuple):
    cancel_offset: int
    level: int
    queue_offset: int


class Cancellations:
    """The cancelled messages of one store. One owner.

    Args:
        store: has the records.
        levels: say how far each level has been delivered.
        cancelled: log offsets of parked records that must not be delivered; filled here.
    """

    def __init__(self, store: MessageStore, levels: Levels, cancelled: set[int]) -> None:
        self._store = store
        self._levels = levels
        self._cancelled = cancelled
        self._waiting: deque[_Cancellation] = deque()

    def recover(self, cancel_offset: int) -> None:
        """Read the records from a queue offset on. Blocks."""
        store = self._store
        offset = max(cancel_offset, store.min_offset_in_queue(DELAY_CANCEL_TOPIC, 0))
        while units := store.queue_units(DELAY_CANCEL_TOPIC, 0, offset, _UNITS_A_READ):
            for unit in units:
                self._recover_one(offset, unit.physical_offset)
                offset += 1

    def _recover_one(self, cancel_offset: int, physical_offset: int) -> None:
        data = self._store.message_at(physical_offset)
        target = None if data is None else origin_of(RecordView(data, 0))
        parked = None if target is None else self._store.message_at(target)
        if target is None or parked is None:
            return
        record = RecordView(parked, 0)
        if (
            record.topic == SCHEDULE_TOPIC
            and record.queue_offset >= self._levels.of(record.queue_id + 1).next_offset
        ):
            self._cancelled.add(target)
            self.add(cancel_offset, record.queue_id + 1, record.queue_offset)

    def add(self, cancel_offset: int, level: int, queue_offset: int) -> None:
        """Remember which message the record at a queue offset of our topic cancels."""
        self._waiting.append(_Cancellation(cancel_offset, level, queue_offset))

    def first_offset(self) -> int:
        """Return the queue offset of the first record that still matters."""
        waiting = self._waiting
        while waiting and waiting[0].queue_offset < self._levels.of(waiting[0].level).next_offset:
            waiting.popleft()
        return waiting[0].cancel_offset if waiting else self._store.max_offset_in_queue(DELAY_CANCEL_TOPIC, 0)
