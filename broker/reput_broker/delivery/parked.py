"""What a parked record says, and the records that the broker makes of it.

A parked record is the message as it was sent, in a topic of the system, with REAL_TOPIC and REAL_QID for where it is
to go. Everything that is made of one carries its place in the log (origin.py): the copy that is delivered, the record
that is parked anew, and the one that cancels it. So the log itself tells what has become of a parked record, whatever
else is lost. RocketMQ leaves the field at 0.

Unlike RocketMQ's, a delivered copy has the properties that its sender gave it and no more: who passes a message on with
its properties does not delay it once more.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from reput_broker.delivery.origin import origin_field
from reput_protocol import properties as names
from reput_protocol.delay_levels import DELAY_LEVELS_MS, deliver_time
from reput_protocol.hashing import tags_code
from reput_protocol.host import Host
from reput_protocol.names import DELAY_CANCEL_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from reput_protocol.properties import decode_properties, encode_properties
from reput_protocol.record import Record
from reput_protocol.record_view import RecordView

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
_DROPPED: Final = tuple(name.encode() + b"\x01" for name in BROKER_PROPERTIES)
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")


class DeleteId(NamedTuple):
    """What a delete message says of the message that it cancels."""

    key: str
    born_ms: int | None
    """None in RocketMQ's, which mean every message with that key in the same slot."""


class Parked(NamedTuple):
    """A parked record, and what its properties say."""

    record: RecordView
    topic: str
    """Where the message goes: REAL_TOPIC."""
    queue_id: int
    out_ms: int
    """The slot of the wheel (TIMER_OUT_MS), 0 in a queue of the levels."""
    properties: dict[str, str]

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
            return timer_due_ms(self.out_ms, self.properties.get(names.TIMER_DELIVER_MS))
        stored_ms = self.record.store_timestamp_ms
        delay = self.properties.get(names.DELAY)
        due = deliver_time(None if delay is None else delay.encode(), stored_ms, DELAY_LEVELS_MS)
        return stored_ms if due is None else due

    @property
    def unique_key(self) -> str | None:
        """The message's unique id."""
        return self.properties.get(names.UNIQ_KEY)

    @property
    def cancels(self) -> DeleteId | None:
        """What the record cancels, if it is no message but a delete message (TIMER_DEL_UNIQKEY); else None."""
        key = self.properties.get(names.TIMER_DEL_UNIQKEY)
        return None if key is None else DeleteId(key, number_of(self.properties.get(CANCELLED_BORN)))

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
        return number_of(self.properties.get(names.TIMER_ROLL_TIMES)) or 0

    @property
    def key(self) -> str:
        """The key under which RocketMQ's delete messages name it (RocketMQ: buildDeleteKey)."""
        return f"{self.topic}+{self.unique_key}"

    @property
    def topic_hash(self) -> int:
        """The hash of its topic in timer units."""
        return tags_code(self.topic)


def parked_of(data: bytes) -> Parked | None:
    """Return what a parked record says; None if it is none, or does not say where the message goes, or when."""
    record = RecordView(data, 0)
    found = decode_properties(record.properties)
    topic, queue_id = found.get(names.REAL_TOPIC), number_of(found.get(names.REAL_QUEUE_ID))
    if not topic or queue_id is None or queue_id < 0 or record.topic not in (SCHEDULE_TOPIC, TIMER_TOPIC):
        return None
    out_ms = 0
    if record.topic == TIMER_TOPIC:
        out_ms = number_of(found.get(names.TIMER_OUT_MS)) or 0
        if out_ms <= 0:
            return None
    return Parked(record, topic, queue_id, out_ms, found)


def timer_out_ms(deliver_ms: int) -> int:
    """Return the slot for a deliver time: the second before it, not the one that begins with it (RocketMQ:
    HookUtils)."""
    return (deliver_ms - 1) // TIMER_PRECISION_MS * TIMER_PRECISION_MS


def timer_due_ms(out_ms: int, deliver: str | None) -> int:
    """Return when a message is due whose slot is `out_ms`: to the millisecond if the record says so.

    Reput writes TIMER_DELIVER_MS into every record. Of those that RocketMQ parked some have a delay only; they are due
    when RocketMQ would deliver them, at the end of their slot's second.
    """
    deliver_ms = number_of(deliver)
    if deliver_ms is not None and timer_out_ms(deliver_ms) == out_ms:
        return deliver_ms
    return out_ms + TIMER_PRECISION_MS


def delivered_copy(parked: Parked, queue_id: int, store_host: Host) -> Record:
    """Return the message that consumers get of a parked record."""
    kept = [
        unit for unit in parked.record.properties.split(b"\x02") if unit and not unit.startswith(_DROPPED)
    ]
    return _made_of(parked.record, parked.topic, queue_id, b"\x02".join([*kept, b""]), store_host)


def rolled_copy(parked: Parked, store_host: Host) -> Record:
    """Return the record to be parked anew, on the way to a time that the wheel does not reach (RocketMQ: convert)."""
    found = {**parked.properties, names.TIMER_ROLL_TIMES: str(parked.rolled + 1)}
    found.pop(names.CRC32, None)
    record = parked.record
    return _made_of(record, record.topic, record.queue_id, encode_properties(found), store_host)


def _made_of(record: RecordView, topic: str, queue_id: int, properties: bytes, store_host: Host) -> Record:
    return Record(
        topic,
        record.body,
        queue_id=queue_id,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host,
        store_host=store_host,
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=origin_field(record.physical_offset),
        properties=properties,
    )


def cancelling_record(parked: Parked, slot_ms: int, now_ms: int) -> Record:
    """Return the record that cancels a parked one.

    For a message of the wheel it is RocketMQ's delete message, which goes into the slot where the message is and is
    heeded by either broker; for one of a delay level a record of our own topic.
    """
    found = {
        names.REAL_TOPIC: parked.topic,
        names.REAL_QUEUE_ID: str(parked.queue_id),
    }
    for name in (names.UNIQ_KEY, names.KEYS):  # whoever finds the message by them finds this too
        if name in parked.properties:
            found[name] = parked.properties[name]
    topic = DELAY_CANCEL_TOPIC
    if not parked.level:
        topic = TIMER_TOPIC
        found[names.TIMER_OUT_MS] = str(slot_ms)
        found[names.TIMER_DELIVER_MS] = str(slot_ms + TIMER_PRECISION_MS)
        found[names.TIMER_DEL_UNIQKEY] = parked.key
        found[CANCELLED_BORN] = str(parked.record.born_timestamp_ms)
    return Record(
        topic,
        b"0",
        born_timestamp_ms=now_ms,
        born_host=parked.record.born_host,
        prepared_transaction_offset=origin_field(parked.physical_offset),
        properties=encode_properties(found),
    )


def number_of(text: str | None) -> int | None:
    """Return a decimal number of at most 64 bits, None if it is none (RocketMQ: Long.parseLong)."""
    if text is None or _NUMBER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None
