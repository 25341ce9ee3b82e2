"""What becomes of a message that its group could not handle.

(RocketMQ: AbstractSendMessageProcessor.consumerSendMsgBack, SendMessageProcessor.handleRetryAndDLQ.)

It comes back through the group's retry topic after a while, a longer one each time; and once it has come back often
enough, or the consumer says so, it goes to the group's dead letters. It keeps its properties, and gets some:

    RETRY_TOPIC         the topic that it was sent to at first
    ORIGIN_MESSAGE_ID   the offset message id that it had there
    SEND_BACK_ID        which record was sent back last, and the request's id if it had one (SendBackKey)
    RETRY_REASON        why the consumer sent it back, if that says so (our client's; RocketMQ's do not)
    DLQ_REASON          why it is a dead letter: max_reconsume_times, consumer or ordered
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final, NamedTuple

from reput_protocol import properties as names
from reput_protocol.names import FORBIDDEN_SEND_TOPICS, dlq_topic, retry_topic
from reput_protocol.properties import PROPERTIES_BYTES_MAX, encode_properties
from reput_protocol.record.record import Record

FIRST_RETRY_LEVEL: Final = 3
"""The delay level of the first retry, where the consumer leaves it to the broker: 10 s; each later one is one
higher."""
REASON_BYTES_MAX: Final = 1024
_PARKED_BYTES: Final = 192
"""Room for what is added to a message that waits: topic and queue."""


class DeadLetterReason(StrEnum):
    """Why a message is a dead letter."""

    MAX_RECONSUME_TIMES = "max_reconsume_times"
    """It has come back as often as it may."""
    CONSUMER = "consumer"
    """The consumer asked for it."""
    ORDERED = "ordered"
    """The group consumes in order, and its consumer has given the message up."""


class Returned(NamedTuple):
    """What is to be stored of a message that was sent back; `delay_level` 0 is a dead letter, which waits for
    nothing."""

    record: Record
    properties: dict[str, str]
    origin_topic: str
    delay_level: int

    @property
    def is_dead_letter(self) -> bool:
        """Whether it goes to the dead letters."""
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
    """Return the message to store for one that `group` sends back.

    Args:
        record: the record that it was given.
        retry_queue_id: the queue of the retry topic to use.
        delay_level: above 0 the level to wait, 0 leaves that to the broker, below 0 is a dead letter.
        max_reconsume_times: how often it may come back.
        send_back_id: what the property of that name says.
        reason: why, in the consumer's words.
    """
    properties = record.property_map()
    properties.pop(names.CRC32, None)
    if record.topic != retry_topic(group) or names.RETRY_TOPIC not in properties:
        properties[names.RETRY_TOPIC] = record.topic  # any producer may have written something there
    origin_topic = properties[names.RETRY_TOPIC]
    properties[names.WAIT] = "false"
    if not properties.get(names.ORIGIN_MESSAGE_ID, "").strip():
        properties[names.ORIGIN_MESSAGE_ID] = record.offset_message_id
    properties.pop(names.SEND_BACK_ID, None)
    if send_back_id:
        properties[names.SEND_BACK_ID] = send_back_id
    if reason:
        properties[names.RETRY_REASON] = cut_reason(reason)
    dead = _why_dead(record.reconsume_times, delay_level, max_reconsume_times)
    if dead is None:
        level = delay_level or FIRST_RETRY_LEVEL + record.reconsume_times
        topic, queue_id = retry_topic(group), retry_queue_id
    else:
        level, topic, queue_id = 0, dlq_topic(group), 0
        properties[names.DLQ_REASON] = dead
    properties[names.DELAY] = str(level)
    returned = replace(
        record,
        topic=topic,
        queue_id=queue_id,
        reconsume_times=record.reconsume_times + 1,
        prepared_transaction_offset=0,
        properties=_fitting(properties, spare_bytes=_PARKED_BYTES if level else 0),
        version=0,
    )
    return Returned(returned, properties, origin_topic, level)


def _why_dead(reconsume_times: int, delay_level: int, max_reconsume_times: int) -> DeadLetterReason | None:
    if delay_level < 0:
        return DeadLetterReason.CONSUMER
    return DeadLetterReason.MAX_RECONSUME_TIMES if reconsume_times >= max_reconsume_times else None


def why_resent_dead(
    reconsume_times: int, max_reconsume_times: int, *, consumes_in_order: bool
) -> DeadLetterReason | None:
    """Return why a message that a consumer sends to its retry topic itself is a dead letter; None if it is none.

    One try more than through `returned_message`: RocketMQ counts so. A group that consumes in order has tried already.
    """
    if reconsume_times > max_reconsume_times:
        return DeadLetterReason.MAX_RECONSUME_TIMES
    return DeadLetterReason.ORDERED if consumes_in_order else None


def dead_letter(record: Record, group: str, properties: dict[str, str], reason: DeadLetterReason) -> Record:
    """Return what is stored of a message that was sent to the retry topic and is a dead letter; fills in
    `properties`."""
    properties[names.DELAY] = "0"
    properties[names.DLQ_REASON] = reason
    return replace(record, topic=dlq_topic(group), queue_id=0, properties=_fitting(properties), version=0)


def can_come_back(topic: str) -> bool:
    """Tell whether consumers are given messages of a topic: half messages and parked ones they are not."""
    return topic not in FORBIDDEN_SEND_TOPICS


def cut_reason(reason: str) -> str:
    """Return a reason as one property can hold it: one line, without control characters, of bounded length."""
    line = "".join(c if c.isprintable() else " " for c in reason)
    return line.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore").strip()


def _fitting(properties: dict[str, str], *, spare_bytes: int = 0) -> bytes:
    """Return the text of `properties`; the reasons, which only people read, go first where there is no room."""
    text = encode_properties(properties)
    for name in (names.RETRY_REASON, names.DLQ_REASON, names.SEND_BACK_ID):
        if len(text) + spare_bytes > PROPERTIES_BYTES_MAX and name in properties:
            del properties[name]
            text = encode_properties(properties)
    return text


def origin_of(properties: Mapping[str, str], topic: str) -> str:
    """Return the topic that a message was sent to at first, by its properties; `topic` if they do not say."""
    return properties.get(names.RETRY_TOPIC, topic)
