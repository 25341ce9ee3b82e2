"""JSON bodies about groups as people look at them, which are ours: members, progress and lag in one answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from reput_protocol.bodies_heartbeat import SubscriptionData
from reput_protocol.body_members import (
    as_object,
    choice_member,
    flag_member,
    integer_member,
    list_member,
    text_list_member,
    text_member,
)
from reput_protocol.buffers import Buffer
from reput_protocol.codes import LanguageCode
from reput_protocol.group_terms import ConsumeFromWhere, ConsumeType, MessageModel
from reput_protocol.large_body import LargeBody
from reput_protocol.loose_json import read_json


@dataclass(slots=True)
class GroupSummary:
    """One group in short.

    `lag` is messages that are not committed, over all queues of which the group has an offset, and `lag_age_millis` the
    age of the oldest of them as of the broker's last look. `exists` is False for a group that has offsets or members
    but no settings.
    """

    group: str
    exists: bool = True
    consume_enable: bool = True
    members: int = 0
    topics: list[str] = field(default_factory=list)
    lag: int = 0
    lag_age_millis: int = 0
    has_conflict: bool = False

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "consumeEnable": self.consume_enable,
            "exists": self.exists,
            "group": self.group,
            "hasConflict": self.has_conflict,
            "lag": self.lag,
            "lagAgeMillis": self.lag_age_millis,
            "members": self.members,
            "topics": self.topics,
        }

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; raises BodyMalformed."""
        return cls(
            text_member(members, "group"),
            flag_member(members, "exists", True),
            flag_member(members, "consumeEnable", True),
            integer_member(members, "members"),
            text_list_member(members, "topics"),
            integer_member(members, "lag"),
            integer_member(members, "lagAgeMillis"),
            flag_member(members, "hasConflict"),
        )


@dataclass(slots=True)
class GroupSummaries(LargeBody):
    """Answer body of LIST_GROUPS."""

    groups: list[GroupSummary]

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {"groups": self.groups}

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        return cls(
            [
                GroupSummary.from_members(as_object(item, "an item of 'groups'"))
                for item in list_member(read_json(data), "groups")
            ]
        )


@dataclass(slots=True)
class GroupMember:
    """One member: `silent_millis` is for how long it has sent no heartbeat, `locks` how many queues it has locked."""

    client_id: str
    client_addr: str
    language: str = LanguageCode.OTHER.name
    version: int = 0
    silent_millis: int = 0
    queues: int = 0
    locks: int = 0

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "clientAddr": self.client_addr,
            "clientId": self.client_id,
            "language": self.language,
            "locks": self.locks,
            "queues": self.queues,
            "silentMillis": self.silent_millis,
            "version": self.version,
        }

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; raises BodyMalformed."""
        return cls(
            text_member(members, "clientId"),
            text_member(members, "clientAddr"),
            text_member(members, "language", LanguageCode.OTHER.name),
            integer_member(members, "version"),
            integer_member(members, "silentMillis"),
            integer_member(members, "queues"),
            integer_member(members, "locks"),
        )


@dataclass(slots=True)
class GroupQueue:
    """A group's progress in one queue; -1 stands for what is not known.

    `start_offset` and `end_offset` bound the queue, `committed_offset` is the next message to consume. `lag_age_millis`
    is the age of the oldest message that is not committed. `client_id` is the member that holds the queue's lock, or
    pulled from it last, "" for none. `in_flight` and `last_commit_timestamp` (ms since 1970) are of this broker's life.
    """

    topic: str
    queue_id: int
    start_offset: int
    end_offset: int
    committed_offset: int = -1
    lag_age_millis: int = 0
    in_flight: int = 0
    client_id: str = ""
    last_commit_timestamp: int = -1

    @property
    def lag(self) -> int:
        """How many messages are not committed; of a group without an offset, all that the queue has."""
        return max(0, self.end_offset - max(self.committed_offset, self.start_offset))

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "clientId": self.client_id,
            "committedOffset": self.committed_offset,
            "endOffset": self.end_offset,
            "inFlight": self.in_flight,
            "lagAgeMillis": self.lag_age_millis,
            "lastCommitTimestamp": self.last_commit_timestamp,
            "queueId": self.queue_id,
            "startOffset": self.start_offset,
            "topic": self.topic,
        }

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; raises BodyMalformed."""
        return cls(
            text_member(members, "topic"),
            integer_member(members, "queueId"),
            integer_member(members, "startOffset"),
            integer_member(members, "endOffset"),
            integer_member(members, "committedOffset", -1),
            integer_member(members, "lagAgeMillis"),
            integer_member(members, "inFlight"),
            text_member(members, "clientId"),
            integer_member(members, "lastCommitTimestamp", -1),
        )


@dataclass(slots=True)
class GroupDescription(LargeBody):
    """Answer body of DESCRIBE_GROUP; how the group consumes is told by its members, and by defaults if it has none."""

    summary: GroupSummary
    members: list[GroupMember] = field(default_factory=list)
    queues: list[GroupQueue] = field(default_factory=list)
    subscriptions: list[SubscriptionData] = field(default_factory=list)
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "consumeFromWhere": self.consume_from_where.value,
            "consumeType": self.consume_type.value,
            "members": self.members,
            "messageModel": self.message_model.value,
            "queues": self.queues,
            "subscriptions": self.subscriptions,
            "summary": self.summary,
        }

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data)
        return cls(
            GroupSummary.from_members(as_object(members.get("summary"), "'summary'")),
            [
                GroupMember.from_members(as_object(item, "an item of 'members'"))
                for item in list_member(members, "members")
            ],
            [
                GroupQueue.from_members(as_object(item, "an item of 'queues'"))
                for item in list_member(members, "queues")
            ],
            [
                SubscriptionData.from_members(as_object(item, "an item of 'subscriptions'"))
                for item in list_member(members, "subscriptions")
            ],
            choice_member(members, "consumeType", ConsumeType.CONSUME_PASSIVELY),
            choice_member(members, "messageModel", MessageModel.CLUSTERING),
            choice_member(members, "consumeFromWhere", ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET),
        )
