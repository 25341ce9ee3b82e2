"""JSON bodies in which clients tell who they are and what they want (RocketMQ: HeartbeatData, SubscriptionData)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from reput_protocol.body_members import (
    as_object,
    choice_member,
    flag_member,
    integer_list_member,
    integer_member,
    list_member,
    text_list_member,
    text_member,
)
from reput_protocol.buffers import Buffer
from reput_protocol.filters import ALL, TagFilter
from reput_protocol.group_terms import ConsumeFromWhere, ConsumeType, ExpressionType, MessageModel
from reput_protocol.loose_json import read_json, write_json


@dataclass(slots=True)
class SubscriptionData:
    """What a group wants of one topic.

    `sub_version` tells a newer subscription from an older one: milliseconds from most clients, nanoseconds from
    RocketMQ's Go client. `expression_type` is text, because a group may name a language that is unknown here.
    `tags_set` and `code_set` are what the client made of a tag expression; a broker reads the expression itself.
    """

    topic: str
    sub_string: str = ALL
    sub_version: int = 0
    expression_type: str = ExpressionType.TAG.value
    tags_set: list[str] = field(default_factory=list)
    code_set: list[int] = field(default_factory=list)
    class_filter_mode: bool = False

    @classmethod
    def of(
        cls,
        topic: str,
        expression: str | None,
        sub_version: int,
        expression_type: str = ExpressionType.TAG.value,
    ) -> Self:
        """Return the subscription that `expression` stands for (RocketMQ: FilterAPI.build).

        Raises:
            FilterSyntaxError: a tag expression of separators only. Another language is not looked into.
        """
        if expression_type != ExpressionType.TAG:
            return cls(topic, expression or "", sub_version, expression_type)
        tags = TagFilter.parse(expression)
        return cls(
            topic, tags.expression, sub_version, expression_type, sorted(tags.tags), sorted(tags.codes)
        )

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "classFilterMode": self.class_filter_mode,
            "codeSet": self.code_set,
            "expressionType": self.expression_type,
            "subString": self.sub_string,
            "subVersion": self.sub_version,
            "tagsSet": self.tags_set,
            "topic": self.topic,
        }

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; without an expression it is everything. Raises BodyMalformed."""
        return cls(
            text_member(members, "topic"),
            text_member(members, "subString") or ALL,
            integer_member(members, "subVersion"),
            text_member(members, "expressionType") or ExpressionType.TAG.value,
            text_list_member(members, "tagsSet"),
            integer_list_member(members, "codeSet"),
            flag_member(members, "classFilterMode"),
        )


@dataclass(slots=True)
class ConsumerData:
    """One consumer group that a client is a member of. Subscriptions include the group's retry topic."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "consumeFromWhere": self.consume_from_where.value,
            "consumeType": self.consume_type.value,
            "groupName": self.group_name,
            "messageModel": self.message_model.value,
            "subscriptionDataSet": [subscription.to_members() for subscription in self.subscriptions],
            "unitMode": self.unit_mode,
        }

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; what is missing takes the default of RocketMQ's push consumer. Raises BodyMalformed."""
        return cls(
            text_member(members, "groupName"),
            choice_member(members, "consumeType", ConsumeType.CONSUME_PASSIVELY),
            choice_member(members, "messageModel", MessageModel.CLUSTERING),
            choice_member(members, "consumeFromWhere", ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET),
            [
                SubscriptionData.from_members(as_object(item, "an item of 'subscriptionDataSet'"))
                for item in list_member(members, "subscriptionDataSet")
            ],
            flag_member(members, "unitMode"),
        )


@dataclass(slots=True)
class HeartbeatData:
    """Body of 34: a client, the consumer groups it is a member of, and the producer groups it sends for.

    `fingerprint` and `without_sub` belong to the short heartbeats of RocketMQ 5, which a client sends only to a broker
    that offered to understand them: `without_sub` says that the subscriptions are those of the heartbeat before.
    """

    client_id: str
    consumers: list[ConsumerData] = field(default_factory=list)
    producer_groups: list[str] = field(default_factory=list)
    fingerprint: int = 0
    without_sub: bool = False

    def to_json(self) -> bytes:
        """Return the body."""
        return write_json(
            {
                "clientID": self.client_id,
                "consumerDataSet": [consumer.to_members() for consumer in self.consumers],
                "heartbeatFingerprint": self.fingerprint,
                "producerDataSet": [{"groupName": group} for group in self.producer_groups],
                "withoutSub": self.without_sub,
            }
        )

    @staticmethod
    def entries_of(members: dict[Any, Any]) -> int:
        """Return how many groups and subscriptions the members of a body hold; raises BodyMalformed."""
        consumers = list_member(members, "consumerDataSet")
        return (
            len(list_member(members, "producerDataSet"))
            + len(consumers)
            + sum(
                len(list_member(as_object(item, "an item of 'consumerDataSet'"), "subscriptionDataSet"))
                for item in consumers
            )
        )

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        return cls.from_members(read_json(data))

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members of a body; raises BodyMalformed."""
        return cls(
            text_member(members, "clientID"),
            [
                ConsumerData.from_members(as_object(item, "an item of 'consumerDataSet'"))
                for item in list_member(members, "consumerDataSet")
            ],
            [
                text_member(as_object(item, "an item of 'producerDataSet'"), "groupName")
                for item in list_member(members, "producerDataSet")
            ],
            integer_member(members, "heartbeatFingerprint"),
            flag_member(members, "withoutSub"),
        )


@dataclass(slots=True)
class CheckClientBody:
    """Body of 46: a subscription that is to be judged before the client starts (RocketMQ: CheckClientRequestBody)."""

    client_id: str
    group: str
    subscription: SubscriptionData
    namespace: str | None = None

    def to_json(self) -> bytes:
        """Return the body."""
        members: dict[str, Any] = {
            "clientId": self.client_id,
            "group": self.group,
            "subscriptionData": self.subscription.to_members(),
        }
        if self.namespace is not None:
            members["namespace"] = self.namespace
        return write_json(members)

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data)
        return cls(
            text_member(members, "clientId"),
            text_member(members, "group"),
            SubscriptionData.from_members(as_object(members.get("subscriptionData"), "'subscriptionData'")),
            text_member(members, "namespace") or None,
        )
