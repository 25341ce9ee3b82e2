"""Records of popped messages that were not acknowledged in time (RocketMQ: PopReviveService.reviveRetry)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from reput_broker.pop.checkpoints import CheckPointKey
from reput_broker.retry.fitted_properties import fitted_properties
from reput_broker.retry.retry_records import DeadLetterReason, dead_letter, next_attempt, set_origin
from reput_protocol import properties as names
from reput_protocol.names import RETRY_PREFIX, pop_retry_topic, popped_topic
from reput_protocol.properties import CRC_PROPERTY_BYTES
from reput_protocol.record.record import Record


class Revived(NamedTuple):
    """What to store for a message that becomes visible again."""

    record: Record
    is_dead_letter: bool
    origin_topic: str
    """The topic from which the group consumes."""


def origin_of(record: Record, key: CheckPointKey) -> str:
    """Return what identifies the pop of a message; the copy has it as a property, so that it is made once."""
    return f"{record.physical_offset} {key.pop_time}"


def revived_message(record: Record, key: CheckPointKey, max_reconsume_times: int) -> Revived:
    """Return what to store for a popped message whose time is over.

    It goes to the group's retry topic of its topic with one more attempt. Unlike RocketMQ's broker, which leaves that
    to consumers, this one makes it a dead letter once it was redelivered as often as allowed.

    Args:
        record: as it was popped.
        key: of its check point.
        max_reconsume_times: how often it may be redelivered.
    """
    origin_topic = popped_topic(key.topic, key.group)
    is_copy = origin_topic != key.topic
    properties = record.property_map()
    properties.pop(names.CRC32, None)
    if not is_copy:
        properties.pop(names.ORIGIN_MESSAGE_ID, None)
    elif properties.keys().isdisjoint((names.FIRST_POP_TIME, names.POP_ORIGIN)):
        properties[names.ORIGIN_UNPROVEN] = "true"  # a client has put it into the retry topic itself
    if record.reconsume_times == 0 or names.FIRST_POP_TIME not in properties:
        properties[names.FIRST_POP_TIME] = str(key.pop_time)
    properties[names.POP_ORIGIN] = origin_of(record, key)
    again = replace(record, reconsume_times=next_attempt(record), prepared_transaction_offset=0)
    if record.reconsume_times >= max_reconsume_times:
        if names.ORIGIN_UNPROVEN not in properties:
            first = properties.get(names.ORIGIN_MESSAGE_ID, record.offset_message_id)
            set_origin(properties, origin_topic, first)
        dead = dead_letter(again, key.group, properties, DeadLetterReason.MAX_RECONSUME_TIMES)
        return Revived(dead, True, origin_topic)
    text = fitted_properties(properties, key.topic, spare_bytes=CRC_PROPERTY_BYTES)
    is_retried = key.topic.startswith(RETRY_PREFIX)
    topic = key.topic if is_retried else pop_retry_topic(key.topic, key.group)
    return Revived(replace(again, topic=topic, queue_id=0, properties=text, version=0), False, origin_topic)
