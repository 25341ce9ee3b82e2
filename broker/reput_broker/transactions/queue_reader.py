"""Read a system queue record by record, past expired and damaged ones."""

from __future__ import annotations

from typing import NamedTuple

from reput_broker.store.base.results import GetStatus
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import RecordMalformed
from reput_protocol.record.record import Record, decode_record


class QueueEntry(NamedTuple):
    """The entry at an offset of a queue."""

    record: Record | None
    """None at the end of the queue, and where the entry has expired or its record is damaged."""
    next_offset: int
    """The offset to read next."""
    is_end: bool
    """Whether the queue ends here."""


def read_entry(store: MessageStore, topic: str, queue_id: int, offset: int) -> QueueEntry:
    """Return the record at an offset of a queue, with its checksums verified."""
    result = store.get_message(topic, queue_id, offset, 1, 1)
    if result.status is GetStatus.FOUND:
        data = store.record_at(result.extents[0].physical_offset)
        return QueueEntry(None if data is None else _decoded(data), result.next_begin_offset, False)
    if offset < result.next_begin_offset <= result.max_offset:
        return QueueEntry(None, result.next_begin_offset, False)
    return QueueEntry(None, offset, True)


def record_at(store: MessageStore, physical_offset: int) -> Record | None:
    """Return the record at any log offset, whether or not consumers see it; None if there is no valid one.

    A half message may be acknowledged before the other members of a group have it, and ended at once.
    """
    data = store.record_at(physical_offset) if physical_offset >= 0 else None
    return None if data is None else _decoded(data)


def delivered_record_at(store: MessageStore, physical_offset: int) -> Record | None:
    """Return the record at a log offset if it is in its queue; None if there is none.

    A client names the offset. Bytes of a body may look like a record, with any topic.
    """
    record = record_at(store, physical_offset)
    if record is None or record.queue_id < 0 or record.queue_offset < 0:
        return None
    units = store.queue_units(record.topic, record.queue_id, record.queue_offset, 1)
    return record if units and units[0].physical_offset == physical_offset else None


def _decoded(data: bytes) -> Record | None:
    try:
        return decode_record(data)
    except RecordMalformed:
        return None
