"""Listing and cancelling delayed messages; the requests are Reput's."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

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
