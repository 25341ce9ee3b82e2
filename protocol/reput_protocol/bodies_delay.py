"""JSON bodies about messages that wait for their time, which are ours: lists of them, and what cancelling came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from reput_protocol.body_members import (
    as_object,
    choice_member,
    integer_member,
    list_member,
    text_list_member,
    text_member,
)
from reput_protocol.buffers import Buffer
from reput_protocol.loose_json import read_json, write_json


class CancelOutcome(StrEnum):
    """What cancelling one message came to."""

    CANCELLED = "CANCELLED"
    """In time: it is never delivered."""
    ALREADY_CANCELLED = "ALREADY_CANCELLED"
    """Somebody was first; it is never delivered."""
    DELIVERED = "DELIVERED"
    """Too late: consumers may have it."""
    DROPPED = "DROPPED"
    """Too late, but it was not delivered and never will be: its topic is gone, for instance. The broker knows that in
    the run in which it happened; later it says DELIVERED."""


@dataclass(slots=True)
class DelayedMessage:
    """One parked message.

    `topic` and `queue_id` are where it will be delivered, `offset_message_id` names the parked record. Times are
    milliseconds since 1970. `delay_level` is 0 for a message with a time of its own.
    """

    topic: str
    queue_id: int
    offset_message_id: str
    deliver_timestamp: int
    store_timestamp: int
    delay_level: int = 0
    size: int = 0
    unique_id: str | None = None
    tag: str | None = None
    keys: list[str] = field(default_factory=list)

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        members: dict[str, Any] = {
            "delayLevel": self.delay_level,
            "deliverTimestamp": self.deliver_timestamp,
            "keys": self.keys,
            "offsetMsgId": self.offset_message_id,
            "queueId": self.queue_id,
            "size": self.size,
            "storeTimestamp": self.store_timestamp,
            "topic": self.topic,
        }
        if self.unique_id is not None:
            members["uniqKey"] = self.unique_id
        if self.tag is not None:
            members["tag"] = self.tag
        return members

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; raises BodyMalformed."""
        return cls(
            text_member(members, "topic"),
            integer_member(members, "queueId"),
            text_member(members, "offsetMsgId"),
            integer_member(members, "deliverTimestamp"),
            integer_member(members, "storeTimestamp"),
            integer_member(members, "delayLevel"),
            integer_member(members, "size"),
            text_member(members, "uniqKey") or None,
            text_member(members, "tag") or None,
            text_list_member(members, "keys"),
        )


@dataclass(slots=True)
class DelayedMessageList:
    """Answer body of LIST_DELAYED_MESSAGES; with a `cursor` there may be more."""

    messages: list[DelayedMessage]
    cursor: str | None = None

    def to_json(self) -> bytes:
        """Return the body."""
        members: dict[str, Any] = {"messages": [message.to_members() for message in self.messages]}
        if self.cursor is not None:
            members["cursor"] = self.cursor
        return write_json(members)

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data)
        return cls(
            [
                DelayedMessage.from_members(as_object(item, "an item of 'messages'"))
                for item in list_member(members, "messages")
            ],
            text_member(members, "cursor") or None,
        )


@dataclass(slots=True)
class CancelledMessage:
    """What cancelling came to for the message whose parked record is `offset_message_id`."""

    offset_message_id: str
    outcome: CancelOutcome
    unique_id: str | None = None

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        members: dict[str, Any] = {"offsetMsgId": self.offset_message_id, "outcome": self.outcome.value}
        if self.unique_id is not None:
            members["uniqKey"] = self.unique_id
        return members

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; raises BodyMalformed. Without an outcome it may have been delivered."""
        return cls(
            text_member(members, "offsetMsgId"),
            choice_member(members, "outcome", CancelOutcome.DELIVERED),
            text_member(members, "uniqKey") or None,
        )


@dataclass(slots=True)
class CancelResult:
    """Answer body of CANCEL_DELAYED_MESSAGE: every message that was found."""

    messages: list[CancelledMessage]

    def to_json(self) -> bytes:
        """Return the body."""
        return write_json({"messages": [message.to_members() for message in self.messages]})

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        return cls(
            [
                CancelledMessage.from_members(as_object(item, "an item of 'messages'"))
                for item in list_member(read_json(data), "messages")
            ]
        )
