"""Find the delayed records that were delivered before a restart."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from itertools import groupby

from reput_broker.delay.delayed_record import origin_of
from reput_broker.store.base.dispatch import DispatchBatch
from reput_broker.store.message_store import MessageStore
from reput_protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_OP_HALF_TOPIC
from reput_protocol.properties import find_property
from reput_protocol.record.record import RecordView


class DeliveredRecords:
    """A dispatcher that collects the delayed records of which the log holds a copy.

    A copy that a power loss removed does not count: its message is delivered again, and with `flush = "sync"` no
    consumer had seen it.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.timed = array("q")
        """Log offsets of records in the timer's queue that were delivered or rescheduled."""
        self.timed_ms = 0
        """When the last of them was, by the clock of that broker."""
        self.levelled: set[tuple[int, int]] = set()
        """Delay level and queue offset of records of the levels that were delivered or cancelled."""

    def dispatch(self, batch: DispatchBatch) -> None:
        """Note the origins of the batch's records."""
        for position in _with_prepared_offset(batch):
            record = RecordView(batch.data, position)
            if record.topic == TRANS_OP_HALF_TOPIC:
                continue  # its field is a log offset of any record, perhaps of one that still waits
            if record.topic == TIMER_TOPIC and find_property(record.properties, b"TIMER_DEL_UNIQKEY"):
                continue  # it is in the slot of the message that it cancels
            origin = origin_of(record)
            if origin is not None:
                self._note(origin, record.store_timestamp_ms)

    def _note(self, physical_offset: int, when_ms: int) -> None:
        data = self._store.record_at(physical_offset)
        if data is None:
            return  # it has left the log and waits no longer
        delayed = RecordView(data, 0)
        topic = delayed.topic
        if topic == TIMER_TOPIC:
            self.timed.append(physical_offset)
            self.timed_ms = max(self.timed_ms, when_ms)
        elif topic == SCHEDULE_TOPIC:
            self.levelled.add((delayed.queue_id + 1, delayed.queue_offset))


def _with_prepared_offset(batch: DispatchBatch) -> list[int]:
    named = zip(batch.rows.column("position"), batch.rows.column("prepared_transaction_offset"), strict=True)
    return [start for start, prepared_offset in named if prepared_offset]


class OffsetSet:
    """A set of log offsets that is filled once; 8 bytes an offset instead of 70 in Python's set."""

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        self._offsets = array("q")
        self.fill(array("q", offsets))

    def fill(self, offsets: array[int]) -> None:
        """Replace the content with these offsets, in any order."""
        self._offsets = array("q", (offset for offset, _ in groupby(sorted(offsets))))

    def clear(self) -> None:
        """Remove all offsets."""
        self._offsets = array("q")

    def __contains__(self, offset: int) -> bool:
        offsets = self._offsets
        if not offsets:
            return False
        index = bisect_left(offsets, offset)
        return index < len(offsets) and offsets[index] == offset

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def ascending(self) -> array[int]:
        """The offsets in ascending order."""
        return self._offsets
