"""What a parked record says, and the records that the broker makes of it.

A parked record is the message as it was sent, in a topic of the system, with REAL_TOPIC and REAL_QID for where it is
to go. Everything that is made of one carries its place in the log as PREPARED_TRANSACTION_OFFSET, where only
committed transactions have one otherwise: the copy that is delivered, the record that is parked anew, and the one
that cancels it. So the log itself tells what has become of a parked record, whatever else is lost. RocketMQ leaves
the field at 0.

Unlike RocketMQ's, a delivered copy has the properties that its sender gave it and no more: who passes a message on with
its properties does not delay it once more.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final, NamedTuple

from reput_protocol import properties as names
from reput_protocol.delay_levels import DELAY_LEVELS_MS, deliver_time
from reput_protocol.hashing import java_hash
from reput_protocol.names import DELAY_CANCEL_TOPIC, TIMER_TOPIC
from reput_protocol.properties import decode_properties, encode_properties
from reput_protocol.record import Record

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
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DROPPED: Final = tuple(name.encode() + b"\x01" for name in BROKER_PROPERTIES)


class Parked(NamedTuple):
    """What the properties of a parked record say."""

    topic: str
    """Where the message goes: REAL_TOPIC."""
    queue_id: int
    due_ms: int
    """When it is to be delivered."""
    out_ms: int
    """The slot of the wheel (TIMER_OUT_MS), 0 in a queue of the levels."""
    unique_key: str | None
    delete_key: str | None
    """The message is none, but cancels the one with this key (TIMER_DEL_UNIQKEY)."""
    rolled: int
    """How often it has been parked anew."""

    @property
    def key(self) -> str:
        """The key under which RocketMQ's delete messages name it (RocketMQ: buildDeleteKey)."""
        return f"{self.topic}+{self.unique_key}"

    @property
    def topic_hash(self) -> int:
        """The hash of its topic in timer units."""
        return java_hash(self.topic)


def parked_of(record: Record, properties: dict[str, str] | None = None) -> Parked | None:
    """Return what a parked record says; None if it does not say where the message goes, or when."""
    found = decode_properties(record.properties) if properties is None else properties
    topic, queue_id = found.get(names.REAL_TOPIC), number_of(found.get(names.REAL_QUEUE_ID))
    if not topic or queue_id is None or queue_id < 0:
        return None
    out_ms = 0
    if record.topic == TIMER_TOPIC:
        out = number_of(found.get(names.TIMER_OUT_MS))
        if out is None:
            return None
        out_ms = out
        due_ms = timer_due_ms(out, found.get(names.TIMER_DELIVER_MS))
    else:
        delay = found.get(names.DELAY)
        due = deliver_time(
            None if delay is None else delay.encode(), record.store_timestamp_ms, DELAY_LEVELS_MS
        )
        due_ms = record.store_timestamp_ms if due is None else due
    return Parked(
        topic,
        queue_id,
        due_ms,
        out_ms,
        found.get(names.UNIQ_KEY),
        found.get(names.TIMER_DEL_UNIQKEY),
        number_of(found.get(names.TIMER_ROLL_TIMES)) or 0,
    )


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


def delivered_copy(record: Record, parked: Parked, queue_id: int) -> Record:
    """Return the message that consumers get of a parked record."""
    text = record.properties
    units = text.split(b"\x02")
    kept = [unit for unit in units if unit and not unit.startswith(_DROPPED)]
    return replace(
        record,
        topic=parked.topic,
        queue_id=queue_id,
        prepared_transaction_offset=record.physical_offset,
        properties=b"\x02".join([*kept, b""]) if kept else b"",
        version=0,
    )


def rolled_copy(record: Record, parked: Parked) -> Record:
    """Return the record to be parked anew, on the way to a time that the wheel does not reach (RocketMQ: convert)."""
    found = decode_properties(record.properties)
    found.pop(names.CRC32, None)
    found[names.TIMER_ROLL_TIMES] = str(parked.rolled + 1)
    return replace(
        record,
        prepared_transaction_offset=record.physical_offset,
        properties=encode_properties(found),
        version=0,
    )


def cancelling_record(record: Record, parked: Parked, now_ms: int) -> Record:
    """Return the record that cancels a parked one.

    For a message of the wheel it is RocketMQ's delete message, which goes into the same slot and is heeded by either
    broker; for one of a delay level a record of our own topic.
    """
    found = {
        names.REAL_TOPIC: parked.topic,
        names.REAL_QUEUE_ID: str(parked.queue_id),
    }
    if parked.unique_key is not None:
        found[names.UNIQ_KEY] = parked.unique_key
    topic = DELAY_CANCEL_TOPIC
    if record.topic == TIMER_TOPIC:
        topic = TIMER_TOPIC
        found[names.TIMER_OUT_MS] = str(parked.out_ms)
        found[names.TIMER_DELIVER_MS] = str(parked.due_ms)
        found[names.TIMER_DEL_UNIQKEY] = parked.key
    return Record(
        topic,
        b"0",
        born_timestamp_ms=now_ms,
        born_host=record.born_host,
        prepared_transaction_offset=record.physical_offset,
        properties=encode_properties(found),
    )


def number_of(text: str | None) -> int | None:
    """Return a decimal number of at most 64 bits, None if it is none (RocketMQ: Long.parseLong)."""
    if text is None or _NUMBER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None
