"""The messages that schedules send: their unique ids, their records, their queues."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from secrets import token_hex
from typing import Final

from reput_broker.tenure import Core
from reput_protocol.commands.schedule import ScheduleDefinition
from reput_protocol.errors import InvalidMessage
from reput_protocol.properties import (
    CORRELATION_ID,
    MSG_TYPE,
    REPLY_TO_CLIENT,
    SCHEDULE,
    SCHEDULE_TIME,
    SHARDING_KEY,
    UNIQ_KEY,
    check_properties_size,
    encode_properties,
)
from reput_protocol.property_rules import is_reserved
from reput_protocol.record.layout import index_hash
from reput_protocol.record.message import Message, encode_properties_text
from reput_protocol.record.record import Record

BODY_BYTES_MAX: Final = 65_536
_OVERHEAD_BYTES: Final = 1024
"""More than a record has besides topic, properties and body."""
_REPLIES: Final = (REPLY_TO_CLIENT, CORRELATION_ID, MSG_TYPE)
_SOME_MS: Final = 10**14
"""A time with more digits than any that comes."""


def unique_id_of(name: str, time_ms: int) -> str:
    """Return the unique id of the message of a schedule for one of its times: the same at every broker."""
    return f"SCHEDULE-{name}-{time_ms}"


def unique_id_by_hand(name: str) -> str:
    """Return a unique id for the message of a schedule that is run by hand."""
    return f"SCHEDULE-{name}-run-{token_hex(8)}"


class Content:
    """What each message of a schedule has, checked as a whole: a record of it can always be made.

    Raises:
        InvalidMessage, InvalidName: no producer could send such a message; the text says why.
    """

    def __init__(self, definition: ScheduleDefinition) -> None:
        message = _message_of(definition)
        self._name = definition.name
        self.body = bytes(message.body)
        self._text = encode_properties_text(message, None)
        check_properties_size(len(self.properties(unique_id_by_hand(definition.name), _SOME_MS)))

    def properties(self, unique_id: str, time_ms: int | None) -> bytes:
        """Return the encoded properties of one message, as of `ScheduledMessages.record`."""
        marks = {SCHEDULE: self._name}
        if time_ms is not None:
            marks[SCHEDULE_TIME] = str(time_ms)
        return encode_properties({UNIQ_KEY: unique_id}) + self._text + encode_properties(marks)


def _message_of(definition: ScheduleDefinition) -> Message:
    """Return the message that a schedule sends, as a producer would send it.

    Raises:
        InvalidMessage, InvalidName: no producer could send it; the text says why.
    """
    try:
        body = definition.message_body
    except ValueError as error:
        raise InvalidMessage(f"the body is not Base64: {error}") from None
    if len(body) > BODY_BYTES_MAX:
        raise InvalidMessage(
            f"the body has {len(body)} bytes, and that of a schedule at most {BODY_BYTES_MAX}; send a reference to "
            "the data"
        )
    properties = dict(definition.properties)
    for name in (SCHEDULE, SCHEDULE_TIME):
        if name in properties:
            raise InvalidMessage(
                f"the broker sets the property {name} of what a schedule sends; leave it out"
            )
    for name in properties:
        if name in _REPLIES:
            raise InvalidMessage(
                f"the property {name} is that of a request or a reply, which a schedule cannot send; leave it out"
            )
        if is_reserved(name, in_retries=True):
            raise InvalidMessage(f"the property {name} is reserved for the broker; choose another name")
    if definition.ordering_key is not None:
        if definition.priority is not None:
            raise InvalidMessage("a message has an ordering key or a priority, not both")
        properties[SHARDING_KEY] = definition.ordering_key
    return Message(
        definition.topic,
        body,
        tag=definition.tag,
        keys=definition.keys,
        properties=properties,
        priority=definition.priority,
    )


class ScheduledMessages:
    """Makes the records of messages."""

    def __init__(self, core: Core) -> None:
        self._topics = core.topic_access
        self._host = core.store.options.host
        self._clock_ms: Callable[[], int] = core.clock_ms
        self._rotation = count()

    def why_not(self, topic: str) -> str | None:
        """Return why nothing can be sent to a topic, one of `observe.counters.TIME_MISSED_REASONS`; None if it can."""
        if self._topics.known(topic) is None:
            return "no_topic"
        return None if self._topics.may_write(topic, 0) else "refused"

    def record(
        self, definition: ScheduleDefinition, content: Content, unique_id: str, time_ms: int | None
    ) -> Record:
        """Return the record of a message to a topic.

        Args:
            content: of the schedule.
            time_ms: the time for which it is sent; None if it is run by hand.

        Raises:
            Refusal: NO_TOPIC.
        """
        return Record(
            definition.topic,
            content.body,
            queue_id=self._queue_of(definition),
            born_timestamp_ms=self._clock_ms(),
            born_host=self._host,
            properties=content.properties(unique_id, time_ms),
        )

    def _queue_of(self, definition: ScheduleDefinition) -> int:
        config = self._topics.existing(definition.topic)
        queues = max(1, config.write_queue_nums)
        if definition.ordering_key is not None:
            return index_hash(definition.ordering_key) % queues  # as clients do
        if definition.priority is not None:
            return min(definition.priority, queues - 1)
        return next(self._rotation) % queues


def size_max(record: Record) -> int:
    """Return an upper bound of a record's bytes."""
    return len(record.body) + len(record.properties) + _OVERHEAD_BYTES
