"""What a parked record says, and the records that the broker makes of it.

A delayed record is the message as it was sent, in a topic of the system, with REAL_TOPIC and REAL_QID for where it is
to go. Everything that is made of one carries its place in the log (`origin_field`): the copy that is delivered, the
record that is delayed anew, and the one that cancels it. So the log itself tells what has become of a delayed record,
whatever else is lost. RocketMQ leaves the field at 0.

Unlike RocketMQ's, a delivered copy has the properties that its sender gave it and no more: who passes a message on with
its properties does not delay it once more.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from reput_protocol import properties as names
from reput_protocol.names import DELAY_CANCEL_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from reput_protocol.properties import decode_properties, encode_properties, find_property
from reput_protocol.record.delays import DELAY_LEVELS_MS, deliver_time
from reput_protocol.record.hashing import tags_code
from reput_protocol.record.record import Record
from reput_protocol.record.redirect import redirect_record
from reput_protocol.record.view import RecordView

_AT_ZERO: Final = -1


def origin_field(physical_offset: int) -> int:
    """Return what PREPARED_TRANSACTION_OFFSET holds in records made of the one at this log offset.

    Committed transactions name a half message there; in all other records the field is 0, so that the very first record
    of the log is named by -1.
    """
    return physical_offset or _AT_ZERO


def origin_of(record: RecordView) -> int | None:
    """Return the log offset of the record that this one names; None if it names none that lies before it."""
    field = record.prepared_transaction_offset
    if field == 0:
        return None
    origin = 0 if field == _AT_ZERO else field
    return origin if 0 <= origin < record.physical_offset else None


TIMER_PRECISION_MS: Final = 1000

BROKER_PROPERTIES: Final = (
    names.DELAY,
    names.REAL_TOPIC,
    names.REAL_QUEUE_ID,
    names.TIMER_DELIVER_MS,
    names.TIMER_DELAY_SEC,
    names.TIMER_DELAY_MS,
    names.TIMER_OUT_MS,
    names.TIMER_ENQUEUE_MS,
    names.TIMER_DEQUEUE_MS,
    names.TIMER_ROLL_TIMES,
    names.CRC32,
)
"""Properties that a delivered copy does not have."""
CANCELLED_BORN: Final = "REPUT_CANCELLED_BORN"
"""Says in a delete message of ours when the message was born that it cancels: another one with the same unique id, sent
for the same second later, is not meant."""
_MARKS: Final = tuple(name.encode() + b"\x01" for name in BROKER_PROPERTIES)
_NUMBER: Final = re.compile(rb"[+-]?[0-9]{1,19}")


class DeleteId(NamedTuple):
    """What a delete message says of the message that it cancels."""

    key: str
    born_ms: int | None
    """None in RocketMQ's, which mean every message with that key in the same slot."""


class DelayedRecord(NamedTuple):
    """A parked record, and what its properties say."""

    record: RecordView
    topic: str
    """Where the message goes: REAL_TOPIC."""
    queue_id: int
    out_ms: int
    """The slot of the wheel (TIMER_OUT_MS), 0 in a queue of the levels."""
    marks: dict[bytes, bytes]
    """Those of its properties that a delivered copy does not have."""
    kept: bytes
    """The text of the others."""

    @property
    def physical_offset(self) -> int:
        """Where the record lies in the log: what tells it from every other."""
        return int(self.record.physical_offset)

    @property
    def level(self) -> int:
        """The delay level, 0 for a time of its own."""
        return 0 if self.out_ms else self.record.queue_id + 1

    @property
    def due_ms(self) -> int:
        """When the message is to be delivered."""
        if self.out_ms:
            return timer_due_ms(self.out_ms, self.marks.get(b"TIMER_DELIVER_MS"))
        stored_ms = self.record.store_timestamp_ms
        due = deliver_time(self.marks.get(b"DELAY"), stored_ms, DELAY_LEVELS_MS)
        return stored_ms if due is None else due

    @property
    def unique_key(self) -> str | None:
        """The message's unique id."""
        return self.record.unique_key

    @property
    def cancels(self) -> DeleteId | None:
        """What the record cancels, if it is no message but a delete message (TIMER_DEL_UNIQKEY); else None."""
        key = find_property(self.kept, b"TIMER_DEL_UNIQKEY") if self.out_ms else None
        if key is None:
            return None
        born = find_property(self.kept, CANCELLED_BORN.encode())
        return DeleteId(key.decode("utf-8", "replace"), number_of(born))

    @property
    def cancelled_by(self) -> tuple[DeleteId, ...]:
        """What a delete message says that cancels this message; before 5.3 RocketMQ's said no topic."""
        key = self.key
        ours = DeleteId(key, self.record.born_timestamp_ms)
        if self.unique_key is None:
            return (ours,)
        return ours, DeleteId(key, None), DeleteId(self.unique_key, None)

    @property
    def rolled(self) -> int:
        """How often it has been parked anew."""
        return number_of(self.marks.get(b"TIMER_ROLL_TIMES")) or 0

    @property
    def key(self) -> str:
        """The key under which RocketMQ's delete messages name it (RocketMQ: buildDeleteKey)."""
        return f"{self.topic}+{self.unique_key}"

    @property
    def topic_hash(self) -> int:
        """The hash of its topic in timer units."""
        return tags_code(self.topic)


class Due(NamedTuple):
    """A parked message and when it fires. The order is that of delivery: by time, then by age."""

    due_ms: int
    """The message's own deliver time; of one that rolls, its slot's."""
    physical_offset: int
    """Where the parked record lies in the log: what tells it from every other."""
    size: int
    level: int
    """The delay level, 0 for a time of its own."""
    place: int
    """Queue offset in the queue of its level; or the time of its slot in the wheel."""
    rolls: bool = False
    """Whether it is parked anew instead of delivered: its own time is further ahead than the wheel looks."""


def decode_delayed(data: bytes) -> DelayedRecord | None:
    """Return what a parked record says; None if it is none, or does not say where the message goes, or when."""
    record = RecordView(data, 0)
    marks: dict[bytes, bytes] = {}
    kept: list[bytes] = []
    for unit in record.properties.split(b"\x02"):
        if unit.startswith(_MARKS):
            name, _, value = unit.partition(b"\x01")
            if value:
                marks[name] = value
        elif unit:
            kept.append(unit)
    topic, queue_id = marks.get(b"REAL_TOPIC"), number_of(marks.get(b"REAL_QID"))
    if not topic or queue_id is None or queue_id < 0:
        return None
    out_ms, held_in = 0, record.topic
    if held_in == TIMER_TOPIC:
        out_ms = number_of(marks.get(b"TIMER_OUT_MS")) or 0
        if out_ms <= 0:
            return None
    elif held_in != SCHEDULE_TOPIC:
        return None
    kept.append(b"")
    return DelayedRecord(
        record, topic.decode("utf-8", "replace"), queue_id, out_ms, marks, b"\x02".join(kept)
    )


def timer_out_ms(deliver_ms: int) -> int:
    """Return the slot for a deliver time: the second before it, not the one that begins with it (RocketMQ:
    HookUtils)."""
    return (deliver_ms - 1) // TIMER_PRECISION_MS * TIMER_PRECISION_MS


def timer_due_ms(out_ms: int, deliver: bytes | None) -> int:
    """Return when a message is due whose slot is `out_ms`: to the millisecond if the record says so.

    Reput writes TIMER_DELIVER_MS into every record. Of those that RocketMQ parked some have a delay only; they are due
    when RocketMQ would deliver them, at the end of their slot's second.
    """
    deliver_ms = number_of(deliver)
    if deliver_ms is not None and timer_out_ms(deliver_ms) == out_ms:
        return deliver_ms
    return out_ms + TIMER_PRECISION_MS


def delivered_copy(delayed: DelayedRecord, queue_id: int, store_host: bytes, *, with_crc: bool) -> bytes:
    """Return the message that consumers get of a parked record, as a record whose offsets are to be filled in.

    Raises:
        InvalidMessage: no record can hold its topic.
    """
    return redirect_record(
        delayed.record,
        topic=delayed.topic,
        queue_id=queue_id,
        properties=delayed.kept,
        prepared_transaction_offset=origin_field(delayed.physical_offset),
        store_host=store_host,
        with_crc=with_crc,
    )


def rolled_copy(delayed: DelayedRecord, store_host: bytes, *, with_crc: bool) -> bytes:
    """Return the record to be parked anew, on the way to a time that the wheel does not reach (RocketMQ: convert)."""
    found = decode_properties(delayed.record.properties)
    found[names.TIMER_ROLL_TIMES] = str(delayed.rolled + 1)
    found.pop(names.CRC32, None)
    return redirect_record(
        delayed.record,
        topic=TIMER_TOPIC,
        queue_id=0,
        properties=encode_properties(found),
        prepared_transaction_offset=origin_field(delayed.physical_offset),
        store_host=store_host,
        with_crc=with_crc,
    )


def cancel_record(delayed: DelayedRecord, slot_ms: int, now_ms: int) -> Record:
    """Return the record that cancels a parked one.

    For a message of the wheel it is RocketMQ's delete message, which goes into the slot where the message is and is
    heeded by either broker; for one of a delay level a record of our own topic.
    """
    found = {
        names.REAL_TOPIC: delayed.topic,
        names.REAL_QUEUE_ID: str(delayed.queue_id),
    }
    properties = decode_properties(delayed.kept)
    for name in (names.UNIQ_KEY, names.KEYS):  # whoever finds the message by them finds this too
        if name in properties:
            found[name] = properties[name]
    topic = DELAY_CANCEL_TOPIC
    if not delayed.level:
        topic = TIMER_TOPIC
        found[names.TIMER_OUT_MS] = str(slot_ms)
        found[names.TIMER_DELIVER_MS] = str(slot_ms + TIMER_PRECISION_MS)
        found[names.TIMER_DEL_UNIQKEY] = delayed.key
        found[CANCELLED_BORN] = str(delayed.record.born_timestamp_ms)
    return Record(
        topic,
        b"0",
        born_timestamp_ms=now_ms,
        born_host=delayed.record.born_host,
        prepared_transaction_offset=origin_field(delayed.physical_offset),
        properties=encode_properties(found),
    )


def number_of(text: bytes | str | None) -> int | None:
    """Return a decimal number of at most 64 bits, None if it is none (RocketMQ: Long.parseLong)."""
    if isinstance(text, str):
        text = text.encode()
    if text is None or _NUMBER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None
