"""Listing and cancelling delayed messages, which are Reput's, and RocketMQ's recall (RecallMessageHandle)."""

from __future__ import annotations

import base64
from enum import StrEnum
from typing import ClassVar, NamedTuple, Self

from msgspec import field

from reput_protocol.codes import RequestCode
from reput_protocol.commands.body import Body, Members
from reput_protocol.commands.header import I32, I64, CommandHeader


class ListDelayedHeader(CommandHeader):
    """Header of LIST_DELAYED_MESSAGES: the delayed messages of one topic, with one key, or all.

    `topic` is where they will be delivered, `key` their unique id or one of their keys. `cursor` continues after the
    previous answer. There may be fewer than `max_num`.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.LIST_DELAYED_MESSAGES

    topic: str | None = None
    key: str | None = None
    max_num: I32 = 64
    cursor: str | None = None


class DelayedMessage(Members):
    """One delayed message.

    `topic` and `queue_id` are where it will be delivered, `offset_message_id` identifies the waiting record. Times are
    ms since 1970. `delay_level` is 0 for a message with a time of its own.
    """

    topic: str = ""
    queue_id: I64 = 0
    offset_message_id: str = field(default="", name="offsetMsgId")
    deliver_timestamp: I64 = 0
    store_timestamp: I64 = 0
    delay_level: I64 = 0
    size: I64 = 0
    unique_id: str | None = field(default=None, name="uniqKey")
    tag: str | None = None
    keys: list[str] = []


class DelayedMessageList(Body):
    """Answer body of LIST_DELAYED_MESSAGES; with a `cursor` there may be more."""

    messages: list[DelayedMessage] = []
    cursor: str | None = None


class CancelDelayedHeader(CommandHeader):
    """Header of CANCEL_DELAYED_MESSAGE: cancel the delayed messages for `topic` with this unique id or key.

    The answer's body has the outcome for each; without any, the answer is NOT_FOUND.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.CANCEL_DELAYED_MESSAGE

    topic: str
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

    topic: str
    broker_name: str
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

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.RECALL_MESSAGE

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageResult(CommandHeader):
    """Answer to 370: the message's unique id."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.RECALL_MESSAGE

    msg_id: str
    msg_region: str | None = field(default="DefaultRegion", name="MSG_REGION")
