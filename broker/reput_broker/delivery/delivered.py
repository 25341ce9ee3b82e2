"""What an earlier run was done with, as the log tells it: the parked records of which there is a copy.

After a crash the saved progress is a little old. Every copy that was put since names its parked record, so that the
log, read from where that progress says, holds all that is missing. A copy that a power cut took is none: its message
is delivered again, and nobody has seen it before (with `flush = "sync"`).
"""

from __future__ import annotations

from array import array

from reput_broker.delivery.origin import origin_of
from reput_broker.store.dispatch import DispatchBatch
from reput_broker.store.message_store import MessageStore
from reput_protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_OP_HALF_TOPIC
from reput_protocol.properties import find_property
from reput_protocol.record_layout import BACK, HEAD_BYTES
from reput_protocol.record_view import RecordView

_PREPARED_AT = HEAD_BYTES - BACK.size + 4
"""Where PREPARED_TRANSACTION_OFFSET lies in a record with two 4-byte hosts."""


class DeliveredRecords:
    """A dispatcher that collects them."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.timed = array("q")
        """Log offsets of records in the timer's queue that were delivered or parked anew."""
        self.levelled: set[tuple[int, int]] = set()
        """Delay level and queue offset of records of the levels that were delivered or cancelled."""

    def dispatch(self, batch: DispatchBatch) -> None:
        """Look at every record of the batch."""
        for position in _with_prepared_offset(batch):
            record = RecordView(batch.data, position)
            if record.topic == TRANS_OP_HALF_TOPIC:
                continue  # it names a place in the log, where anything may lie, a message that waits too
            if record.topic == TIMER_TOPIC and find_property(record.properties, b"TIMER_DEL_UNIQKEY"):
                continue  # it lies in the slot of what it cancels
            origin = origin_of(record)
            if origin is not None:
                self._note(origin)

    def _note(self, physical_offset: int) -> None:
        data = self._store.message_at(physical_offset)
        if data is None:
            return  # it has left the log, and waits no more
        parked = RecordView(data, 0)
        topic = parked.topic
        if topic == TIMER_TOPIC:
            self.timed.append(physical_offset)
        elif topic == SCHEDULE_TOPIC:
            self.levelled.add((parked.queue_id + 1, parked.queue_offset))


def _with_prepared_offset(batch: DispatchBatch) -> list[int]:
    """Return where the records of a batch begin that name another one."""
    named = zip(batch.rows.column("position"), batch.rows.column("prepared_transaction_offset"), strict=True)
    return [start for start, prepared_offset in named if prepared_offset]
