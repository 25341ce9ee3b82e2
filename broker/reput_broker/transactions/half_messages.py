"""Half messages, and the records derived from them (RocketMQ: TransactionalMessageBridge).

A half message is the message as it was sent, in the queue of a topic that consumers cannot read, with REAL_TOPIC and
REAL_QID naming its destination. It never changes; other records hold its outcome:

- decided: an op message (`op_queue.py`) that names its offset in the half queue;
- committed: the message in its topic, with the transaction bits for "commit";
- checked: a copy at the end of the half queue, which replaces it;
- discarded: a copy in TRANS_CHECK_MAX_TIME_TOPIC.

The committed and the discarded record carry the log offset of the half record in PREPARED_TRANSACTION_OFFSET, so the
log alone tells the outcome where the op message is missing. Copies carry the first one's offset in
TRAN_PREPARED_QUEUE_OFFSET, which identifies the transaction. RocketMQ writes and reads that only for messages with an
immunity time of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from reput_protocol import properties as names
from reput_protocol.codes import MessageSysFlag
from reput_protocol.names import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from reput_protocol.properties import decode_properties, encode_properties
from reput_protocol.record.record import Record, encode_record

HALF_QUEUE_ID: Final = 0
"""The only half queue, as in RocketMQ."""
FIRST_STORED: Final = "REPUT_HALF_STORED"
"""Property of a copy: when the first half message was stored, in ms since 1970, from which its age counts. RocketMQ
uses the producer's born time, by a clock that may be wrong."""
_TRANSACTION_BITS: Final = MessageSysFlag.TRANSACTION_MASK
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_UNTIL_DECIDED: Final = (
    names.REAL_TOPIC,
    names.REAL_QUEUE_ID,
    names.TRAN_MSG,
    names.TRANSACTION_PREPARED_QUEUE_OFFSET,
    FIRST_STORED,
    names.CRC32,
)
"""Properties that a committed message does not have, so that forwarding it begins no transaction."""
_REMEMBERED: Final = 65_536
"""Offsets before `position` that are remembered, for producers that repeat a decision."""


class HalfMessage(NamedTuple):
    """A record of the half queue and its properties."""

    record: Record
    properties: dict[str, str]
    topic: str
    """The destination: REAL_TOPIC."""
    queue_id: int
    producer_group: str
    """The group that decides: PGROUP; empty if missing."""

    @property
    def queue_offset(self) -> int:
        """This copy's offset in the half queue."""
        return self.record.queue_offset

    @property
    def first_offset(self) -> int:
        """The first copy's offset in the half queue, which identifies the transaction."""
        first = _number(self.properties.get(names.TRANSACTION_PREPARED_QUEUE_OFFSET))
        return self.queue_offset if first is None else min(first, self.queue_offset)

    @property
    def unique_key(self) -> str | None:
        """The message's unique id, which is its producer's transaction id."""
        return self.properties.get(names.UNIQ_KEY)

    @property
    def check_times(self) -> int | None:
        """How often it was checked; None if never."""
        text = self.properties.get(names.TRANSACTION_CHECK_TIMES)
        return None if text is None else _number(text) or 0

    @property
    def first_stored_ms(self) -> int:
        """When the first copy was stored; for a copy made by RocketMQ, the born time."""
        stored_ms = self.record.store_timestamp_ms
        first = _number(self.properties.get(FIRST_STORED))
        if first is not None:
            return min(first, stored_ms)
        if self.first_offset == self.queue_offset:
            return stored_ms
        return min(self.record.born_timestamp_ms, stored_ms)

    def immunity_ms(self, timeout_ms: int) -> int | None:
        """How long it is not checked, if it says so, at least `timeout_ms`; else None.

        (RocketMQ: TransactionalMessageUtil.getImmunityTime.)
        """
        text = self.properties.get(names.CHECK_IMMUNITY_TIME)
        return None if text is None else max(timeout_ms, (_number(text) or 0) * 1000)


def half_message_of(record: Record) -> HalfMessage | None:
    """Decode a record of the half topic; None if its destination is missing."""
    found = decode_properties(record.properties)
    topic, queue_id = found.get(names.REAL_TOPIC), _number(found.get(names.REAL_QUEUE_ID))
    if record.topic != TRANS_HALF_TOPIC or not topic or queue_id is None or queue_id > 0x7FFF_FFFF:
        return None
    return HalfMessage(record, found, topic, queue_id, found.get(names.PRODUCER_GROUP, ""))


def half_record(record: Record, properties: dict[str, str]) -> Record:
    """Return the half message to store (RocketMQ: parseHalfMessageInner).

    Args:
        record: names the message's topic and queue.
        properties: its properties; changed in place.
    """
    for name in (names.TRANSACTION_CHECK_TIMES, names.TRANSACTION_PREPARED_QUEUE_OFFSET, FIRST_STORED):
        properties.pop(name, None)  # only the broker may set them
    unique_key = properties.get(names.UNIQ_KEY)
    if unique_key:
        properties[names.TRANSACTION_ID] = unique_key
    properties[names.REAL_TOPIC] = record.topic
    properties[names.REAL_QUEUE_ID] = str(record.queue_id)
    return replace(
        record,
        topic=TRANS_HALF_TOPIC,
        queue_id=HALF_QUEUE_ID,
        sys_flag=record.sys_flag & ~_TRANSACTION_BITS,
        properties=encode_properties(properties),
        version=0,
    )


def committed_record(half: HalfMessage) -> tuple[Record, dict[str, str]]:
    """Return the message for consumers, and its properties (RocketMQ: endMessageTransaction).

    RocketMQ keeps the properties that only the half message needs.
    """
    properties = {name: value for name, value in half.properties.items() if name not in _UNTIL_DECIDED}
    record = replace(
        half.record,
        topic=half.topic,
        queue_id=half.queue_id,
        sys_flag=half.record.sys_flag & ~_TRANSACTION_BITS | MessageSysFlag.TRANSACTION_COMMIT,
        prepared_transaction_offset=half.record.physical_offset,
        properties=encode_properties(properties),
        version=0,
    )
    return record, properties


def renewed_record(half: HalfMessage, check_times: int | None) -> Record:
    """Return the copy that replaces a half message at the end of the half queue.

    (RocketMQ: renewHalfMessageInner, which drops the application's flag.) `check_times` includes
    this check; None leaves the count as it is.
    """
    properties = {name: value for name, value in half.properties.items() if name != names.CRC32}
    properties[names.TRANSACTION_PREPARED_QUEUE_OFFSET] = str(half.first_offset)
    properties[FIRST_STORED] = str(half.first_stored_ms)
    if check_times is not None:
        properties[names.TRANSACTION_CHECK_TIMES] = str(check_times)
    return replace(half.record, prepared_transaction_offset=0, properties=encode_properties(properties))


def discarded_record(half: HalfMessage) -> Record:
    """Return the copy for TRANS_CHECK_MAX_TIME_TOPIC (RocketMQ:
    DefaultTransactionalMessageCheckListener.toMessageExtBrokerInner)."""
    properties = {name: value for name, value in half.properties.items() if name != names.CRC32}
    return replace(
        half.record,
        topic=TRANS_CHECK_MAX_TIME_TOPIC,
        queue_id=0,
        prepared_transaction_offset=half.record.physical_offset,
        properties=encode_properties(properties),
        version=0,
    )


def check_body(half: HalfMessage) -> bytes:
    """Return the body of request 39: the half message with its destination."""
    return bytes(encode_record(replace(half.record, topic=half.topic, queue_id=half.queue_id, version=0)))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


class HalfState(IntEnum):
    """The state of one half message."""

    OPEN = 0
    COMMITTED = 1
    ROLLED_BACK = 2
    DISCARDED = 3
    """Checked too often or too old."""
    DONE = 4
    """Decided in an earlier run; the outcome is unknown."""
    COPIED = 5
    """Replaced by a later copy."""


class HalfCopy(NamedTuple):
    """The current copy of a half message."""

    queue_offset: int
    physical_offset: int


class Transaction(Protocol):
    """What identifies a transaction."""

    @property
    def first_offset(self) -> int:
        """The first copy's offset in the half queue."""

    @property
    def topic(self) -> str:
        """The destination."""


class TransactionTable:
    """The states of the half messages of one store. One owner.

    One byte for each offset of the half queue, from some offset on; open is 0, so the next open one is found with a
    byte search. No half message before `position`, the saved progress of the group CID_RMQ_SYS_TRANS, is open.

    A transaction is identified by the offset of its first half message. Requests may name any copy: a slow producer
    answers for the first one, a checked producer for the latest. The first decision counts.

    Args:
        position: no half message before this offset of the half queue is open.
        on_closed: called with the offset of each copy that is no longer open, to be written.
    """

    def __init__(self, position: int, on_closed: Callable[[int], None]) -> None:
        self.position = position
        self.on_closed = on_closed
        self.open_by_topic: Counter[str] = Counter()
        """Number of open transactions by destination."""
        self._base = position
        self._states = bytearray()
        self._latest: dict[int, HalfCopy] = {}

    # Reading

    def open_copy(self, half: HalfMessage) -> HalfCopy | None:
        """Return the current copy of the transaction that `half` belongs to; None if it is not open."""
        latest = self._latest.get(half.first_offset)
        if latest is not None:
            return latest
        if half.queue_offset == half.first_offset and self.state(half.queue_offset) is HalfState.OPEN:
            return HalfCopy(half.queue_offset, half.record.physical_offset)
        return None

    def outcome(self, half: HalfMessage) -> HalfState:
        """Return how the transaction that `half` belongs to was decided, as far as that is known."""
        state = self.state(half.first_offset)
        return HalfState.DONE if state is HalfState.COPIED else state

    def state(self, queue_offset: int) -> HalfState:
        """Return the state of the half message at an offset."""
        index = queue_offset - self._base
        if index < 0:
            return HalfState.DONE
        if index >= len(self._states):
            return HalfState.OPEN
        return HalfState(self._states[index])

    def next_open(self, queue_offset: int) -> int:
        """Return the first offset from this one on that is open or beyond the known ones."""
        index = self._states.find(0, max(0, queue_offset - self._base))
        if index < 0:
            return max(queue_offset, self._base + len(self._states))
        return self._base + index

    # Changing

    def opened(self, topic: str) -> None:
        """Count a new half message for a topic."""
        self.open_by_topic[topic] += 1

    def decided(self, transaction: Transaction, copy: HalfCopy, state: HalfState) -> None:
        """Record the outcome of an open transaction; `copy` is its current copy."""
        self._latest.pop(transaction.first_offset, None)
        self.close(copy.queue_offset, state)
        self.mark(transaction.first_offset, state)
        self._count_closed(transaction.topic)

    def copied(self, half: HalfMessage, copy: HalfCopy) -> None:
        """Record that a new copy replaces the current one."""
        self.close(half.queue_offset, HalfState.COPIED)
        self.keep_latest(half.first_offset, copy)

    def close(self, queue_offset: int, state: HalfState) -> None:
        """Record that one half message is no longer open, and have that written."""
        self.mark(queue_offset, state)
        self.on_closed(queue_offset)

    def keep_latest(self, first_offset: int, copy: HalfCopy) -> None:
        """Record the current copy of a transaction that has several."""
        self._latest[first_offset] = copy
        self.mark(first_offset, HalfState.COPIED)

    def mark(self, queue_offset: int, state: HalfState) -> None:
        """Set the state of one half message; offsets too far back are ignored."""
        index = queue_offset - self._base
        if index < 0:
            return
        missing = index + 1 - len(self._states)
        if missing > 0:
            self._states += bytes(missing)
        self._states[index] = state

    def advance(self, position: int) -> None:
        """Record that nothing before `position` is open, and forget older states."""
        assert position >= self.position
        self.position = position
        forgotten = position - _REMEMBERED - self._base
        if forgotten > 0:
            del self._states[:forgotten]
            self._base += forgotten

    def _count_closed(self, topic: str) -> None:
        self.open_by_topic[topic] -= 1
        if self.open_by_topic[topic] <= 0:
            del self.open_by_topic[topic]
