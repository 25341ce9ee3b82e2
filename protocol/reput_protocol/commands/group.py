"""Consumer groups: subscriptions, heartbeats, members, queue locks, settings.

(RocketMQ: HeartbeatData, SubscriptionData, LockBatchRequestBody, SubscriptionGroupConfig.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Self

from msgspec import UNSET, UnsetType, convert, field

from reput_protocol.codes import ConsumeFromWhere, ConsumeType, ExpressionType, MessageModel, RequestCode, ResponseCode
from reput_protocol.commands.base import I32, I64, Body, CommandHeader, Kind, LargeBody, Members, RequestType, Sender
from reput_protocol.filter.tags import ALL, TagFilter
from reput_protocol.names import ClientId, GroupName, ProducerGroupName, TopicName
from reput_protocol.record.message import MessageQueue
from reput_protocol.rights import Right

# -- subscriptions and heartbeats --------------------------------------------------------------------------------------


class SubscriptionData(Members):
    """A group's subscription to one topic.

    A newer one has a higher `sub_version`: milliseconds from most clients, nanoseconds from RocketMQ's Go client.
    `expression_type` is text, because the language may be unknown. `tags_set` and `code_set` are the client's parse of
    a tag expression; a broker parses it itself. RocketMQ's Go client writes codes as texts, which become numbers.
    """

    topic: TopicName = ""
    sub_string: str = ALL
    sub_version: I64 = 0
    expression_type: str = ExpressionType.TAG.value
    tags_set: list[str] = []
    code_set: list[I64 | str] = []
    class_filter_mode: bool = False

    def __post_init__(self) -> None:
        if str in map(type, self.code_set):
            self.code_set = convert(self.code_set, list[I64], strict=False)
        self.sub_string = self.sub_string or ALL
        self.expression_type = self.expression_type or ExpressionType.TAG.value

    @classmethod
    def of(
        cls, topic: str, expression: str | None, sub_version: int, expression_type: str = ExpressionType.TAG.value
    ) -> Self:
        """Return the subscription for `expression` (RocketMQ: FilterAPI.build).

        Raises:
            FilterSyntaxError: a tag expression of separators only. Other languages are not parsed.
        """
        if expression_type != ExpressionType.TAG:
            return cls(topic, expression or "", sub_version, expression_type)
        tags = TagFilter.parse(expression)
        return cls(topic, tags.expression, sub_version, expression_type, sorted(tags.tags), sorted(tags.codes))


class ConsumerData(Members):
    """A client's membership of one consumer group. Subscriptions include the retry topic."""

    group_name: GroupName = ""
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscriptions: list[SubscriptionData] = field(default_factory=list, name="subscriptionDataSet")
    unit_mode: bool = False


class ProducerData(Members):
    """One producer group of a client."""

    group_name: ProducerGroupName = ""


_ENUMERATIONS: Final[Mapping[str, type[StrEnum]]] = {
    "consumeType": ConsumeType,
    "messageModel": MessageModel,
    "consumeFromWhere": ConsumeFromWhere,
}
_INTEGER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)


class HeartbeatData(Body):
    """Body of 34: a client, and its consumer and producer groups.

    `fingerprint` and `without_sub` are for RocketMQ 5's short heartbeats, sent only to brokers that support them:
    `without_sub`: the subscriptions are those of the previous heartbeat.
    """

    client_id: ClientId = field(default="", name="clientID")
    consumers: list[ConsumerData] = field(default_factory=list, name="consumerDataSet")
    producers: list[ProducerData] = field(default_factory=list, name="producerDataSet")
    fingerprint: I64 = field(default=0, name="heartbeatFingerprint")
    without_sub: bool = False

    @classmethod
    def forgive(cls, members: dict[Any, Any]) -> None:
        """RocketMQ's C++ client writes enumerations as ordinals and `subVersion` as text."""
        for consumer in _objects(members.get("consumerDataSet")):
            for name, kind in _ENUMERATIONS.items():
                ordinal = consumer.get(name)
                if type(ordinal) is int and 0 <= ordinal < len(kind):
                    consumer[name] = tuple(kind)[ordinal]
            for subscription in _objects(consumer.get("subscriptionDataSet")):
                version = subscription.get("subVersion")
                if type(version) is str and _INTEGER.fullmatch(version):
                    subscription["subVersion"] = int(version)

    @property
    def producer_groups(self) -> list[str]:
        """The names of the producer groups."""
        return [producer.group_name for producer in self.producers]

    @property
    def entries(self) -> int:
        """The number of groups and subscriptions."""
        subscriptions = sum(len(consumer.subscriptions) for consumer in self.consumers)
        return len(self.producers) + len(self.consumers) + subscriptions


def _objects(value: object) -> list[dict[Any, Any]]:
    return [item for item in value if type(item) is dict] if type(value) is list else []


class UnregisterClientHeader(CommandHeader):
    """Header of 35: a client leaves a producer group, a consumer group, or one of each."""

    client_id: ClientId = field(name="clientID")
    producer_group: ProducerGroupName | None = None
    consumer_group: GroupName | None = None


class CheckClientBody(Body):
    """Body of 46: a subscription to validate before the client starts (RocketMQ: CheckClientRequestBody)."""

    client_id: ClientId
    group: GroupName
    subscription: SubscriptionData = field(name="subscriptionData")
    namespace: str | None = None


# -- members -----------------------------------------------------------------------------------------------------------


class ConsumerListHeader(CommandHeader):
    """Header of 38: the ids of a group's members."""

    consumer_group: GroupName


class ConsumerList(Body):
    """Answer body of 38: the client ids of a group's members."""

    consumer_ids: list[ClientId] = field(default_factory=list, name="consumerIdList")


class ConsumerIdsChangedHeader(CommandHeader):
    """Header of 40, sent by the broker: a group's members or topics have changed, so rebalance."""

    consumer_group: GroupName


# -- queue locks -------------------------------------------------------------------------------------------------------


class LockBatchBody(Body):
    """Body of 41 and 42: the queues that a member wants to lock or unlock.

    `only_this_broker` is for RocketMQ's locks by a majority of brokers; its Go client omits it.
    """

    client_id: ClientId = ""
    consumer_group: GroupName = ""
    queues: list[MessageQueue] = field(default_factory=list, name="mqSet")
    only_this_broker: bool = False


class LockBatchResult(LargeBody):
    """Answer body of 41: the queues now locked by the member; others are not."""

    locked: list[MessageQueue] = field(default_factory=list, name="lockOKMQSet")


# -- settings ----------------------------------------------------------------------------------------------------------

RETRY_MAX_TIMES: Final = 16
_CONSUME_TIMEOUT_MINUTES: Final = 15


PRIORITY_FACTOR_ATTRIBUTE: Final = "priority.factor"
"""RocketMQ: SubscriptionGroupAttributes."""
EXPIRED_ATTRIBUTE: Final = "reput.expired"
"""Reput's: what happens to expired messages of a group: `drop`, the default, or `dead-letter`."""
DEAD_LETTER: Final = "dead-letter"


class SubscriptionGroupConfig(Body):
    """A group's settings: body of 200, answer body of 352, entry of 201 and of `subscriptionGroup.json`.

    Defaults are RocketMQ's. `retry_max_times` is how often a message is redelivered before it is a dead letter;
    `retry_queue_nums` 0 drops messages given back. `group_retry_policy` and `subscription_data_set` are kept unchanged.
    """

    group_name: GroupName = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: I64 = 1
    retry_max_times: I64 = RETRY_MAX_TIMES
    group_retry_policy: dict[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: I64 = 0
    which_broker_when_consume_slowly: I64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: I64 = 0
    consume_timeout_minute: I64 = _CONSUME_TIMEOUT_MINUTES
    subscription_data_set: list[Any] | UnsetType = UNSET
    attributes: dict[str, str] = {}

    @property
    def priority_factor(self) -> int:
        """How many of 100 pops of a topic of the type PRIORITY begin with the highest priority; others anywhere."""
        text = self.attributes.get(PRIORITY_FACTOR_ATTRIBUTE, "")
        return int(text) if text.isascii() and text.isdecimal() else 100

    @property
    def keeps_expired(self) -> bool:
        """Whether its expired messages become dead letters."""
        return self.attributes.get(EXPIRED_ATTRIBUTE) == DEAD_LETTER


class SubscriptionGroupTableHeader(CommandHeader):
    """Header of 201: all groups' settings. RocketMQ 5.3 asks for pages; an answer may have everything."""

    group_seq: I32 | None = None
    max_group_num: I32 | None = None
    data_version: str | None = None


class SubscriptionGroupTableResult(CommandHeader):
    """Answer to 201: the number of groups."""

    total_group_num: I32 | None = None


class SubscriptionGroupTable(LargeBody):
    """Answer body of 201: every group's settings (RocketMQ: SubscriptionGroupWrapper).

    `forbidden` has, by group and topic, `Perm` bits that the group lacks. `data_version` has counter, stateVersion and
    timestamp.
    """

    groups: dict[GroupName, SubscriptionGroupConfig] = field(default_factory=dict, name="subscriptionGroupTable")
    data_version: dict[str, I64] = {}
    forbidden: dict[GroupName, dict[TopicName, I64]] = field(default_factory=dict, name="forbiddenTable")


class SubscriptionGroupHeader(CommandHeader):
    """Header of 352: one group's settings."""

    group: GroupName


class SubscriptionGroupList(Body):
    """Body of 225: several groups to create or change."""

    groups: list[SubscriptionGroupConfig] = field(default_factory=list, name="groupConfigList")


class DeleteSubscriptionGroupHeader(CommandHeader):
    """Header of 207: delete a group, with `clean_offset` its offsets too."""

    group_name: GroupName
    clean_offset: bool = False


class GroupForbiddenHeader(CommandHeader):
    """Header of 353: allow or forbid a group to read a topic; without `readable`, query it."""

    group: GroupName
    topic: TopicName
    readable: bool | None = None


class GroupForbidden(Body):
    """Answer body of 353: whether a group may read a topic."""

    group: GroupName = ""
    topic: TopicName = ""
    readable: bool = True


# -- the groups of a topic, the topics of a group ----------------------------------------------------------------------


class TopicConsumersHeader(CommandHeader):
    """Header of 300: the groups that consume a topic."""

    topic: TopicName


class GroupList(Body):
    """Answer body of 300: names of groups."""

    groups: list[GroupName] = field(default_factory=list, name="groupList")


class ConsumerTopicsHeader(CommandHeader):
    """Header of 343: the topics in which a group has offsets."""

    group: GroupName


class ConsumerSubscriptionHeader(CommandHeader):
    """Header of 345: an online group's subscription to a topic."""

    group: GroupName
    topic: TopicName | None = None


class QuerySubscriptionBody(Body):
    """Answer body of 345: an online group's subscription to a topic, or None.

    (RocketMQ: QuerySubscriptionResponseBody.)
    """

    group: GroupName = ""
    topic: TopicName = ""
    subscription: SubscriptionData | None = field(default=None, name="subscriptionData")


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(
        RequestCode.HEART_BEAT, body=HeartbeatData, sender=Sender.CLIENT, topics=Right.READ, groups=Right.READ,
        pool="heartbeat",
    ),
    RequestType(
        RequestCode.UNREGISTER_CLIENT, UnregisterClientHeader, sender=Sender.CLIENT, groups=Right.READ,
        pool="client_manager",
    ),
    RequestType(
        RequestCode.CHECK_CLIENT_CONFIG, body=CheckClientBody, sender=Sender.CONSUMER, topics=Right.READ,
        groups=Right.READ, pool="client_manager",
    ),
    RequestType(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerListHeader, sender=Sender.CONSUMER, groups=Right.READ,
        pool="consumer_manager",
    ),
    RequestType(
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ConsumerIdsChangedHeader, sender=Sender.TO_CLIENTS, is_oneway=True
    ),
    RequestType(
        RequestCode.LOCK_BATCH_MQ, body=LockBatchBody, sender=Sender.CONSUMER, topics=Right.READ,
        groups=Right.READ, kind=Kind.CHANGES,
    ),
    RequestType(
        RequestCode.UNLOCK_BATCH_MQ, body=LockBatchBody, sender=Sender.CONSUMER, topics=Right.READ,
        groups=Right.READ, kind=Kind.CHANGES,
    ),
    RequestType(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=SubscriptionGroupConfig, groups=Right.ADMIN,
        kind=Kind.CHANGES, changes_tables=True, refusal=ResponseCode.SYSTEM_ERROR,
    ),
    RequestType(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=SubscriptionGroupList, groups=Right.ADMIN,
        kind=Kind.CHANGES, changes_tables=True, refusal=ResponseCode.SYSTEM_ERROR,
    ),
    RequestType(
        RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupHeader, groups=Right.ADMIN,
        kind=Kind.CHANGES, changes_tables=True, refusal=ResponseCode.SYSTEM_ERROR,
    ),
    RequestType(
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, GroupForbiddenHeader, topics=Right.DESCRIBE,
        groups=Right.ADMIN, kind=Kind.CHANGES, changes_tables=True, refusal=ResponseCode.SYSTEM_ERROR,
    ),
    RequestType(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupTableHeader, cluster=Right.DESCRIBE,
        proves_master=True,
    ),
    RequestType(
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupHeader, sender=Sender.CLIENT,
        groups=Right.DESCRIBE,
    ),
    RequestType(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicConsumersHeader, topics=Right.DESCRIBE),
    RequestType(RequestCode.QUERY_TOPICS_BY_CONSUMER, ConsumerTopicsHeader, groups=Right.DESCRIBE),
    RequestType(
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, ConsumerSubscriptionHeader, topics=Right.DESCRIBE,
        groups=Right.DESCRIBE,
    ),
)  # fmt: skip
