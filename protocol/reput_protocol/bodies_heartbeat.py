"""JSON bodies in which clients tell who they are and what they want (RocketMQ: HeartbeatData, SubscriptionData)."""

from __future__ import annotations

from typing import Self

from msgspec import field

from reput_protocol.body import I64, Body, Members
from reput_protocol.filters import ALL, TagFilter
from reput_protocol.group_terms import ConsumeFromWhere, ConsumeType, ExpressionType, MessageModel


class SubscriptionData(Members):
    """What a group wants of one topic.

    `sub_version` tells a newer subscription from an older one: milliseconds from most clients, nanoseconds from
    RocketMQ's Go client. `expression_type` is text, because a group may name a language that is unknown here.
    `tags_set` and `code_set` are what the client made of a tag expression; a broker reads the expression itself.
    """

    topic: str = ""
    sub_string: str = ALL
    sub_version: I64 = 0
    expression_type: str = ExpressionType.TAG.value
    tags_set: list[str] = []
    code_set: list[I64] = []
    class_filter_mode: bool = False

    def __post_init__(self) -> None:
        self.sub_string = self.sub_string or ALL
        self.expression_type = self.expression_type or ExpressionType.TAG.value

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


class ConsumerData(Members):
    """One consumer group that a client is a member of. Subscriptions include the group's retry topic."""

    group_name: str = ""
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions: list[SubscriptionData] = field(default_factory=list, name="subscriptionDataSet")
    unit_mode: bool = False


class ProducerData(Members):
    """One producer group that a client sends for."""

    group_name: str = ""


class HeartbeatData(Body):
    """Body of 34: a client, the consumer groups it is a member of, and the producer groups it sends for.

    `fingerprint` and `without_sub` belong to the short heartbeats of RocketMQ 5, which a client sends only to a broker
    that offered to understand them: `without_sub` says that the subscriptions are those of the heartbeat before.
    """

    client_id: str = field(default="", name="clientID")
    consumers: list[ConsumerData] = field(default_factory=list, name="consumerDataSet")
    producers: list[ProducerData] = field(default_factory=list, name="producerDataSet")
    fingerprint: I64 = field(default=0, name="heartbeatFingerprint")
    without_sub: bool = False

    @property
    def producer_groups(self) -> list[str]:
        """The names of the producer groups."""
        return [producer.group_name for producer in self.producers]

    @property
    def entries(self) -> int:
        """How many groups and subscriptions it names."""
        subscriptions = sum(len(consumer.subscriptions) for consumer in self.consumers)
        return len(self.producers) + len(self.consumers) + subscriptions


class CheckClientBody(Body):
    """Body of 46: a subscription that is to be judged before the client starts (RocketMQ: CheckClientRequestBody)."""

    client_id: str
    group: str
    subscription: SubscriptionData = field(name="subscriptionData")
    namespace: str | None = None
