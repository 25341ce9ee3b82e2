"""Delayed records, and the records that the broker derives from them.

A delayed record is the message as it was sent, in a system topic, with REAL_TOPIC and REAL_QID naming its destination.
Every record derived from it carries its log offset (`origin_field`): the delivered copy, the rescheduled record and the
record that cancels it. So the log alone tells whether a delayed record is finished. RocketMQ leaves the field at 0.

Unlike RocketMQ's, a delivered copy has only its sender's properties, so that forwarding it with them does not delay it
again.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, NamedTuple

from reput_broker.config.sections import DelayConfig
from reput_broker.delay.timer_wheel import PRECISION_MS
from reput_broker.remoting.request import Refusal
from reput_broker.store.base.dispatch import DispatchBatch
from reput_broker.store.message_store import MessageStore
from reput_protocol import properties as names
from reput_protocol.codes import ResponseCode
from reput_protocol.errors import ErrorCode
from reput_protocol.names import DELAY_CANCEL_TOPIC, REVIVE_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_OP_HALF_TOPIC
from reput_protocol.properties import PROPERTIES_BYTES_MAX, decode_properties, encode_properties, find_property
from reput_protocol.record.delays import DELAY_LEVELS_MS, deliver_time
from reput_protocol.record.layout import tags_code
from reput_protocol.record.record import Record, RecordView, redirect_record

_ROLL_BYTES = 64
"""Room for what rescheduling adds, and for a checksum."""
_TIMES = (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)
_AT_ZERO: Final = -1


@dataclass(eq=False, repr=False)
class DelayRedirects:
    """Redirects delayed messages, which are stored in a system topic until their time (RocketMQ: HookUtils).

    The level (DELAY) takes precedence over the times (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, in this
    order). A message whose time has passed is stored as it is; one that cannot be delayed is refused. `options` are
    read at every message.
    """

    _options: DelayConfig
    _clock_ms: Callable[[], int]

    def redirect(self, record: Record, properties: dict[str, str]) -> Record | None:
        """Return the record to store instead of `record` if its message is delayed, else None.

        `properties`, those of the record, are changed in place.

        Raises:
            Refusal: a delay is not a number, the time is too far ahead, deliver times are disabled,
                or the added properties do not fit.
        """
        level = self._level(properties)
        if level > 0:
            for name in (*_TIMES, names.TIMER_OUT_MS):
                properties.pop(name, None)
            properties[names.DELAY] = str(level)
            return _redirected(record, properties, SCHEDULE_TOPIC, level - 1)
        if names.TIMER_OUT_MS in properties or properties.keys().isdisjoint(_TIMES):
            # TIMER_OUT_MS: the timer delivered it before, and it is forwarded with its properties.
            return None
        return self._timed(record, properties)

    def _level(self, properties: dict[str, str]) -> int:
        text = properties.get(names.DELAY)
        if text is None:
            return 0
        level = number_of(text)
        if level is None:
            raise _illegal(f"the delay level {text[:40]!r} is not a number; the levels are 1 to {len(DELAY_LEVELS_MS)}")
        return min(level, len(DELAY_LEVELS_MS))

    def _timed(self, record: Record, properties: dict[str, str]) -> Record | None:
        options = self._options
        now_ms = self._clock_ms()
        if not options.timer_wheel:
            raise Refusal(
                ErrorCode.UNSUPPORTED_REQUEST,
                "messages with a deliver time of their own are disabled here (delay.timer_wheel is false); "
                "use a delay level",
                response_code=int(ResponseCode.SYSTEM_ERROR),
            )
        name = next(name for name in _TIMES if name in properties)
        number = number_of(properties[name])
        if number is None:
            raise _illegal(f"{name} is {properties[name][:40]!r}; a whole number is needed")
        deliver_ms = number
        if name != names.TIMER_DELIVER_MS:
            deliver_ms = now_ms + number * (1000 if name == names.TIMER_DELAY_SEC else 1)
        if deliver_ms <= now_ms:
            if names.TIMER_DEL_UNIQKEY in properties:
                raise _illegal("the message that it cancels is due already")
            return None
        if deliver_ms - now_ms > options.timer_max_delay * 1000:
            raise _illegal(
                f"{name} is {(deliver_ms - now_ms) // 1000} s ahead, but at most {int(options.timer_max_delay)} s are "
                "allowed (delay.timer_max_delay); choose a nearer time"
            )
        properties[names.TIMER_DELIVER_MS] = str(deliver_ms)
        properties[names.TIMER_OUT_MS] = str(timer_out_ms(deliver_ms))
        return _redirected(record, properties, TIMER_TOPIC, 0, spare_bytes=_ROLL_BYTES)


def _redirected(
    record: Record, properties: dict[str, str], topic: str, queue_id: int, *, spare_bytes: int = 0
) -> Record:
    properties[names.REAL_TOPIC] = record.topic
    properties[names.REAL_QUEUE_ID] = str(record.queue_id)
    text = encode_properties(properties)
    if len(text) + spare_bytes > PROPERTIES_BYTES_MAX:
        raise Refusal(
            ErrorCode.TOO_LARGE,
            f"with what a delayed message needs its properties take {len(text) + spare_bytes} bytes, but at most "
            f"{PROPERTIES_BYTES_MAX} fit; shorten them",
        )
    return replace(record, topic=topic, queue_id=queue_id, properties=text, version=0)


def _illegal(text: str) -> Refusal:
    return Refusal(ErrorCode.MALFORMED, text)


def origin_field(physical_offset: int) -> int:
    """Return the PREPARED_TRANSACTION_OFFSET of records derived from the one at this log offset.

    Committed transactions name their half message there; in all other records the field is 0, so
    the first record of the log is named by -1.
    """
    return physical_offset or _AT_ZERO


def origin_of(record: RecordView) -> int | None:
    """Return the log offset of the earlier record that this one names; None if there is none."""
    field = record.prepared_transaction_offset
    if field == 0:
        return None
    origin = 0 if field == _AT_ZERO else field
    return origin if 0 <= origin < record.physical_offset else None


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
"""The cancelled message's born time in Reput's delete messages: spares a later message with the same unique id and
second."""
_MARKS: Final = tuple(name.encode() + b"\x01" for name in BROKER_PROPERTIES)
_NUMBER: Final = re.compile(rb"[+-]?[0-9]{1,19}")


class DeleteId(NamedTuple):
    """How a delete message identifies the message that it cancels."""

    topic: str
    """The destination of both: a delete message for another topic has no effect, whatever its key says."""
    key: str
    born_ms: int | None
    """None in RocketMQ's, which cancel every message with that key in the same slot."""


class DelayedRecord(NamedTuple):
    """A delayed record and its properties."""

    record: RecordView
    topic: str
    """The destination: REAL_TOPIC."""
    queue_id: int
    out_ms: int
    """The slot of the wheel (TIMER_OUT_MS), 0 in a queue of the levels."""
    marks: dict[bytes, bytes]
    """Its properties that a delivered copy does not have."""
    kept: bytes
    """The text of the other properties."""

    @property
    def physical_offset(self) -> int:
        """Its log offset, which identifies it."""
        return int(self.record.physical_offset)

    @property
    def level(self) -> int:
        """The delay level; 0 for a message with a deliver time of its own."""
        return 0 if self.out_ms else self.record.queue_id + 1

    @property
    def due_ms(self) -> int:
        """When the message is due."""
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
        """What a delete message (TIMER_DEL_UNIQKEY) cancels; None for any other record."""
        key = find_property(self.kept, b"TIMER_DEL_UNIQKEY") if self.out_ms else None
        if key is None:
            return None
        born = find_property(self.kept, CANCELLED_BORN.encode())
        return DeleteId(self.topic, key.decode("utf-8", "replace"), number_of(born))

    @property
    def cancelled_by(self) -> tuple[DeleteId, ...]:
        """The ids by which delete messages cancel this message; before 5.3 RocketMQ's key had no
        topic."""
        topic, key = self.topic, self.key
        ours = DeleteId(topic, key, self.record.born_timestamp_ms)
        if self.unique_key is None:
            return (ours,)
        return ours, DeleteId(topic, key, None), DeleteId(topic, self.unique_key, None)

    @property
    def rolled(self) -> int:
        """How often it has been rescheduled."""
        return number_of(self.marks.get(b"TIMER_ROLL_TIMES")) or 0

    @property
    def key(self) -> str:
        """The key by which RocketMQ's delete messages name it (RocketMQ: buildDeleteKey)."""
        return f"{self.topic}+{self.unique_key}"

    @property
    def topic_hash(self) -> int:
        """The hash of its topic in timer units."""
        return tags_code(self.topic)


class Due(NamedTuple):
    """A delayed message and when it is due. Sorts by time, then by age."""

    due_ms: int
    """The message's own deliver time; for one that rolls, the time of its slot."""
    physical_offset: int
    """Log offset of the delayed record."""
    size: int
    level: int
    """As `DelayedRecord.level`."""
    place: int
    """Queue offset in the queue of its level, or the time of its slot."""
    rolls: bool = False
    """Whether it is rescheduled instead of delivered: the wheel does not reach its time."""


def decode_delayed(data: bytes) -> DelayedRecord | None:
    """Decode a delayed record; None if it is not one, or lacks its destination or time."""
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
    return DelayedRecord(record, topic.decode("utf-8", "replace"), queue_id, out_ms, marks, b"\x02".join(kept))


def timer_out_ms(deliver_ms: int) -> int:
    """Return the slot for a deliver time: the second before it (RocketMQ: HookUtils)."""
    return (deliver_ms - 1) // PRECISION_MS * PRECISION_MS


def timer_due_ms(out_ms: int, deliver: bytes | None) -> int:
    """Return when a message in slot `out_ms` is due: to the millisecond if the record says so.

    Reput writes TIMER_DELIVER_MS into every record. Some of RocketMQ's have only a delay; they are due at the end of
    their slot's second, as in RocketMQ.
    """
    deliver_ms = number_of(deliver)
    if deliver_ms is not None and timer_out_ms(deliver_ms) == out_ms:
        return deliver_ms
    return out_ms + PRECISION_MS


def delivered_copy(delayed: DelayedRecord, queue_id: int, store_host: bytes, *, with_crc: bool) -> bytes:
    """Return the message for consumers as an encoded record whose offsets are still to be filled in.

    Raises:
        InvalidMessage: a record cannot hold its topic.
    """
    properties = delayed.kept
    if delayed.topic.startswith(REVIVE_PREFIX):  # RocketMQ's revive service reads the time
        properties += b"TIMER_DELIVER_MS\x01%b\x02" % delayed.marks.get(b"TIMER_DELIVER_MS", b"0")
    return redirect_record(
        delayed.record,
        topic=delayed.topic,
        queue_id=queue_id,
        properties=properties,
        prepared_transaction_offset=origin_field(delayed.physical_offset),
        store_host=store_host,
        with_crc=with_crc,
    )


def rolled_copy(delayed: DelayedRecord, store_host: bytes, *, with_crc: bool) -> bytes:
    """Return the record that reschedules a message beyond the reach of the wheel (RocketMQ: convert).

    Raises:
        InvalidMessage: the properties have grown too long.
    """
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
    """Return the record that cancels a delayed record.

    For a message in the wheel it is RocketMQ's delete message, which both brokers heed; for a delay level a record of
    our own topic.
    """
    found = {names.REAL_TOPIC: delayed.topic, names.REAL_QUEUE_ID: str(delayed.queue_id)}
    properties = decode_properties(delayed.kept)
    for name in (names.UNIQ_KEY, names.KEYS):  # a query that finds the message also finds this record
        if name in properties:
            found[name] = properties[name]
    topic = DELAY_CANCEL_TOPIC
    if not delayed.level:
        topic = TIMER_TOPIC
        found[names.TIMER_OUT_MS] = str(slot_ms)
        found[names.TIMER_DELIVER_MS] = str(slot_ms + PRECISION_MS)
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
    """Parse a decimal number of at most 64 bits; None if it is not one (RocketMQ: Long.parseLong)."""
    if isinstance(text, str):
        text = text.encode()
    if text is None or _NUMBER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -(1 << 63) <= number < 1 << 63 else None


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
