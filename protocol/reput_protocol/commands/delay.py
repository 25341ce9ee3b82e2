"""Listing and cancelling delayed messages, which are Reput's, and RocketMQ's recall (RecallMessageHandle)."""

from __future__ import annotations

import base64
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple, Self

from msgspec import field

from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.base import I32, I64, Body, CommandHeader, Kind, Members, Number, RequestType, Sender
from reput_protocol.names import BrokerName, ProducerGroupName, TopicName
from reput_protocol.record.delays import moment_of
from reput_protocol.rights import Right


class ListDelayedHeader(CommandHeader):
    """Header of LIST_DELAYED_MESSAGES: the delayed messages of one topic, with one key, or all.

    `topic` is where they will be delivered, `key` their unique id or one of their keys. `cursor` continues after the
    previous answer. There may be fewer than `max_num`.
    """

    topic: TopicName | None = None
    key: str | None = None
    max_num: I32 = 64
    cursor: str | None = None


class DelayedMessage(Members):
    """One delayed message.

    `topic` and `queue_id` are where it will be delivered, `offset_message_id` identifies the waiting record. Times are
    ms since 1970. `delay_level` is 0 for a message with a time of its own.
    """

    topic: TopicName = ""
    queue_id: I64 = 0
    offset_message_id: str = field(default="", name="offsetMsgId")
    deliver_timestamp: I64 = 0
    store_timestamp: I64 = 0
    delay_level: I64 = 0
    size: I64 = 0
    unique_id: str | None = field(default=None, name="uniqKey")
    tag: str | None = None
    keys: list[str] = []

    @property
    def deliver_at(self) -> datetime:
        """When it is due, in UTC."""
        return moment_of(self.deliver_timestamp)

    @property
    def stored_at(self) -> datetime:
        """When it was stored, by the broker's clock, in UTC."""
        return moment_of(self.store_timestamp)


class DelayedMessageList(Body):
    """Answer body of LIST_DELAYED_MESSAGES; with a `cursor` there may be more.

    `waiting` counts all messages that wait for the topic, or for all topics if none is named; `due_seconds` is how late
    the most overdue message of any topic is.
    """

    messages: list[DelayedMessage] = []
    cursor: str | None = None
    waiting: I64 = 0
    due_seconds: Number = 0.0


class CancelDelayedHeader(CommandHeader):
    """Header of CANCEL_DELAYED_MESSAGE: cancel the delayed messages for `topic` with this unique id or key.

    The answer's body has the outcome for each; without any, the answer is NOT_FOUND.
    """

    topic: TopicName
    key: str


class CancelOutcome(StrEnum):
    """The outcome of cancelling one message."""

    CANCELLED = "CANCELLED"
    """It is never delivered."""
    ALREADY_CANCELLED = "ALREADY_CANCELLED"
    """By an earlier request; it is never delivered."""
    DELIVERED = "DELIVERED"
    """Too late: consumers may have it."""
    DROPPED = "DROPPED"
    """Too late, but it will never be delivered, for example because its topic is gone.

    After a restart the broker answers DELIVERED instead.
    """


class CancelledMessage(Members):
    """The outcome for the message whose waiting record is `offset_message_id`."""

    offset_message_id: str = field(default="", name="offsetMsgId")
    outcome: CancelOutcome = CancelOutcome.DELIVERED
    unique_id: str | None = field(default=None, name="uniqKey")


class CancelResult(Body):
    """Answer body of CANCEL_DELAYED_MESSAGE."""

    messages: list[CancelledMessage] = []


# -- recall ------------------------------------------------------------------------------------------------------------


class RecallHandle(NamedTuple):
    """By what a producer recalls a message with a deliver time (RocketMQ: RecallMessageHandle.HandleV1)."""

    topic: TopicName
    broker_name: BrokerName
    timestamp_ms: int
    """The second of the timer in which it waits, plus 1 ms."""
    unique_id: str

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(" ".join(("v1", *map(str, self))).encode()).decode()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a handle.

        Raises:
            ValueError: it is not one.
        """
        try:
            parts = base64.urlsafe_b64decode(text.encode("ascii")).decode().split(" ")
            version, topic, broker_name, timestamp, unique_id = parts[:5]
            if version == "v1" and len(timestamp) < 20:
                return cls(topic, broker_name, int(timestamp), unique_id)
        except ValueError:
            pass
        raise ValueError(f"{text[:80]!r} is not a recall handle: use the one that the send returned")


class RecallMessageHeader(CommandHeader):
    """Header of 370: cancel the message that a send stored for `topic`."""

    topic: TopicName
    recall_handle: str
    producer_group: ProducerGroupName | None = None


class RecallMessageResult(CommandHeader):
    """Answer to 370: the message's unique id."""

    msg_id: str
    msg_region: str | None = field(default="DefaultRegion", name="MSG_REGION")


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(
        RequestCode.LIST_DELAYED_MESSAGES, ListDelayedHeader, topics=Right.READ, unnamed=Right.ADMIN,
        kind=Kind.MASTER_ONLY,
    ),
    RequestType(
        RequestCode.CANCEL_DELAYED_MESSAGE, CancelDelayedHeader, topics=Right.WRITE, kind=Kind.CHANGES
    ),
    RequestType(
        RequestCode.RECALL_MESSAGE, RecallMessageHeader, sender=Sender.PRODUCER, topics=Right.WRITE,
        kind=Kind.CHANGES, refusal=ResponseCode.SLAVE_NOT_AVAILABLE,
    ),
)  # fmt: skip
