"""Make the records of messages that a group could not handle.

(RocketMQ: AbstractSendMessageProcessor.consumerSendMsgBack, SendMessageProcessor.handleRetryAndDLQ.)

Such a message is redelivered through the group's retry topic, after a longer delay each time. After the
maximum number of attempts, or when the consumer asks for it, it goes to the group's dead-letter topic.
It keeps its properties and gets these:

    RETRY_TOPIC         its original topic; a dead letter has none if only a client says where it is from
    ORIGIN_MESSAGE_ID   its offset message id there
    SEND_BACK_ID        the record returned last, and the request's id if any (`SendBackKey`)
    RETRY_REASON        why the consumer returned it (only our client tells)
    DLQ_REASON          why it is a dead letter: max_reconsume_times, consumer, ordered or expired
    EXPIRES_AT_MS       when it expires, in place of its time to live (`record.delays`); a dead letter has neither

Producers leave room in the properties for what the broker adds (`SENT_PROPERTIES_BYTES_MAX`). Messages in a log that an
earlier version or RocketMQ wrote may have longer properties: these lose what is needed least (`fitted_properties`),
since otherwise they could not be delivered at all.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Final, NamedTuple

import structlog

from reput_protocol import properties as names
from reput_protocol.names import dlq_topic, only_broker_writes, popped_topic, retry_topic
from reput_protocol.properties import CRC_PROPERTY_BYTES, PROPERTIES_BYTES_MAX, encode_properties
from reput_protocol.record.delays import fix_expiry
from reput_protocol.record.record import Record

log = structlog.get_logger(__name__)

_INFORMATION: Final = (
    names.RETRY_REASON,
    names.DLQ_REASON,
    names.SEND_BACK_ID,
    names.MSG_REGION,
    names.TRACE_ON,
    names.CLUSTER,
)
"""What goes first, and is not missed."""
_NEEDED: Final = frozenset(
    {
        names.POP_CK,
        names.POP_ORIGIN,
        names.FIRST_POP_TIME,
        names.RETRY_TOPIC,
        names.ORIGIN_MESSAGE_ID,
        names.ORIGIN_UNPROVEN,
        names.DELAY,
        names.REAL_TOPIC,
        names.REAL_QUEUE_ID,
        names.WAIT,
        names.REPLAY_OF,
    }
)
"""What the broker sets to redeliver a message; it takes less than `BROKER_ROOM` bytes."""


def fitted_properties(properties: dict[str, str], topic: str, *, spare_bytes: int = 0) -> bytes:
    """Return the text of `properties`, from which those are removed that do not fit.

    Args:
        properties: changed in place.
        topic: of the message, for the log.
        spare_bytes: how much more must fit.
    """
    text = encode_properties(properties)
    if len(text) + spare_bytes <= PROPERTIES_BYTES_MAX:
        return text
    for name in _INFORMATION:
        if properties.pop(name, None) is not None:
            text = encode_properties(properties)
            if len(text) + spare_bytes <= PROPERTIES_BYTES_MAX:
                return text
    while len(text) + spare_bytes > PROPERTIES_BYTES_MAX:
        _, size, name = max(  # of those that are needed, one of the broker's is never the longest
            (name not in _NEEDED, len(name) + len(value), name) for name, value in properties.items()
        )
        log.warning(
            "property_dropped",
            topic=topic,
            property=name[:80],
            bytes=size,
            message_id=properties.get(names.UNIQ_KEY, "")[:80],
            hint="the message has no room for what its redelivery needs; producers leave it now",
        )
        del properties[name]
        text = encode_properties(properties)
    return text


FIRST_RETRY_LEVEL: Final = 3
"""The delay level of the first retry (10 s) if the broker chooses; each later one is one higher."""
REASON_BYTES_MAX: Final = 1024
_RECONSUME_TIMES_MAX: Final = 0x7FFF_FFFF
DELAYED_BYTES: Final = 192
"""Room for the properties of a delayed message: topic and queue."""


class DeadLetterReason(StrEnum):
    """Why a message is a dead letter."""

    MAX_RECONSUME_TIMES = "max_reconsume_times"
    """It has been redelivered as often as allowed."""
    CONSUMER = "consumer"
    """The consumer asked for it."""
    ORDERED = "ordered"
    """The group consumes in order, and its consumer has given up on the message."""
    EXPIRED = "expired"
    """It has expired, and the group keeps such messages."""


class Returned(NamedTuple):
    """The message to store for a returned one; `delay_level` 0 means a dead letter, an empty topic an unproven one."""

    record: Record
    properties: dict[str, str]
    origin_topic: str
    delay_level: int

    @property
    def is_dead_letter(self) -> bool:
        """Whether it goes to the dead-letter topic."""
        return self.delay_level == 0


def returned_message(
    record: Record,
    group: str,
    *,
    retry_queue_id: int,
    delay_level: int,
    max_reconsume_times: int,
    send_back_id: str | None = None,
    reason: str | None = None,
) -> Returned:
    """Return the message to store for one that `group` returns.

    Args:
        record: as the consumer received it.
        retry_queue_id: the queue of the retry topic.
        delay_level: above 0 the level, 0 if the broker chooses, below 0 for a dead letter.
        max_reconsume_times: how often it may be redelivered.
        send_back_id: value of the property of that name.
        reason: in the consumer's words.
    """
    properties = record.property_map()
    properties.pop(names.CRC32, None)
    fix_expiry(properties, record.store_timestamp_ms)
    if record.topic != retry_topic(group) or names.RETRY_TOPIC not in properties:
        set_origin(properties, record.topic, record.offset_message_id)
    origin_topic = "" if names.ORIGIN_UNPROVEN in properties else properties[names.RETRY_TOPIC]
    properties[names.WAIT] = "false"
    if not properties.get(names.ORIGIN_MESSAGE_ID, "").strip():
        properties[names.ORIGIN_MESSAGE_ID] = record.offset_message_id
    properties.pop(names.SEND_BACK_ID, None)
    if send_back_id:
        properties[names.SEND_BACK_ID] = send_back_id
    if reason:
        properties[names.RETRY_REASON] = truncate_reason(reason)
    dead = _reason_when_returned(record.reconsume_times, delay_level, max_reconsume_times)
    if dead is None:
        level = delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
        topic, queue_id = retry_topic(group), retry_queue_id
    else:
        level, topic, queue_id = 0, dlq_topic(group), 0
        properties[names.DLQ_REASON] = dead
        _drop_expiry(properties)
        _drop_unproven_origin(properties)
    properties[names.DELAY] = str(level)
    returned = replace(
        record,
        topic=topic,
        queue_id=queue_id,
        reconsume_times=next_attempt(record),
        prepared_transaction_offset=0,
        properties=fitted_properties(
            properties, record.topic, spare_bytes=DELAYED_BYTES if level else CRC_PROPERTY_BYTES
        ),
        version=0,
    )
    return Returned(returned, properties, origin_topic, level)


def expired_message(record: Record, group: str) -> Returned:
    """Return the dead letter for a message that has expired before `group` got it. Replayed, it expires no more.

    Args:
        record: as in its queue, or in a retry topic.
    """
    properties = record.property_map()
    properties.pop(names.CRC32, None)
    topic = popped_topic(record.topic, group)
    if topic != record.topic:
        if names.ORIGIN_UNPROVEN not in properties:
            set_origin(properties, topic, properties.get(names.ORIGIN_MESSAGE_ID, record.offset_message_id))
    elif topic != retry_topic(group) or names.RETRY_TOPIC not in properties:
        set_origin(properties, topic, record.offset_message_id)
    origin_topic = "" if names.ORIGIN_UNPROVEN in properties else properties[names.RETRY_TOPIC]
    letter = dead_letter(replace(record, prepared_transaction_offset=0), group, properties, DeadLetterReason.EXPIRED)
    return Returned(letter, properties, origin_topic, 0)


def next_attempt(record: Record) -> int:
    """Return `reconsume_times` for when a message comes again.

    A producer may have set the largest number that a record can have: that one stays. RocketMQ goes on at the smallest.
    """
    return min(record.reconsume_times + 1, _RECONSUME_TIMES_MAX)


def _reason_when_returned(reconsume_times: int, delay_level: int, max_reconsume_times: int) -> DeadLetterReason | None:
    if delay_level < 0:
        return DeadLetterReason.CONSUMER
    return DeadLetterReason.MAX_RECONSUME_TIMES if reconsume_times >= max_reconsume_times else None


def reason_when_resent(
    reconsume_times: int, max_reconsume_times: int, *, consumes_in_order: bool
) -> DeadLetterReason | None:
    """Return why a message that a consumer itself sends to its retry topic is a dead letter; None if it
    is not one.

    One attempt more than through `returned_message`, as in RocketMQ. A group that consumes in order
    has retried already.
    """
    if reconsume_times > max_reconsume_times:
        return DeadLetterReason.MAX_RECONSUME_TIMES
    return DeadLetterReason.ORDERED if consumes_in_order else None


def dead_letter(record: Record, group: str, properties: dict[str, str], reason: DeadLetterReason) -> Record:
    """Return the dead letter for a message that was sent to the retry topic; changes `properties`."""
    properties[names.DELAY] = "0"
    properties[names.DLQ_REASON] = reason
    _drop_expiry(properties)
    _drop_unproven_origin(properties)
    text = fitted_properties(properties, record.topic, spare_bytes=CRC_PROPERTY_BYTES)
    return replace(record, topic=dlq_topic(group), queue_id=0, properties=text, version=0)


def set_origin(properties: dict[str, str], topic: str, message_id: str) -> None:
    """Note in its properties where a message is from, whatever they say; a producer may have set them."""
    for name in (names.ORIGIN_UNPROVEN, names.DLQ_ORIGIN_TOPIC):
        properties.pop(name, None)
    properties[names.RETRY_TOPIC] = topic
    properties[names.ORIGIN_MESSAGE_ID] = message_id


def _drop_expiry(properties: dict[str, str]) -> None:
    """Remove the time to live of a dead letter: replayed, the message would not be delivered."""
    for name in (names.EXPIRES_AFTER, names.EXPIRES_AT):
        properties.pop(name, None)


def _drop_unproven_origin(properties: dict[str, str]) -> None:
    """Remove the original topic of a dead letter if only a client says so: it would be replayed there."""
    if properties.pop(names.ORIGIN_UNPROVEN, None) is not None:
        for name in (names.RETRY_TOPIC, names.DLQ_ORIGIN_TOPIC, names.ORIGIN_MESSAGE_ID):
            properties.pop(name, None)


def can_be_returned(topic: str) -> bool:
    """Whether consumers receive messages of a topic; they do not receive half messages and delayed
    ones."""
    return not only_broker_writes(topic)


def truncate_reason(reason: str) -> str:
    """Return a reason in one line of printable characters, truncated to `REASON_BYTES_MAX`."""
    line = "".join(c if c.isprintable() else " " for c in reason)
    return line.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore").strip()
