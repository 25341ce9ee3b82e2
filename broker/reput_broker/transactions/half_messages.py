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
from dataclasses import replace
from typing import Final, NamedTuple

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
