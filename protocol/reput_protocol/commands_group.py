"""Headers about consumer groups and who is in them: coming, going, members, locks, settings."""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from reput_protocol.codes import RequestCode
from reput_protocol.command_header import I32, CommandHeader


class HeartbeatResult(CommandHeader):
    """Answer to 34, whose own header has no fields. A client that gets neither field sends full heartbeats for ever."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.HEART_BEAT

    is_support_heart_beat_v2: bool | None = field(default=None, name="IS_SUPPORT_HEART_BEAT_V2")
    is_sub_change: bool | None = field(default=None, name="IS_SUB_CHANGE")


class UnregisterClientHeader(CommandHeader):
    """Header of 35: a client leaves a producer group, a consumer group, or one of each."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.UNREGISTER_CLIENT

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerListHeader(CommandHeader):
    """Header of 38: the ids of a group's members."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.GET_CONSUMER_LIST_BY_GROUP

    consumer_group: str


class ConsumerIdsChangedHeader(CommandHeader):
    """Header of 40, sent by the broker: a group's members or topics have changed, so share the queues out anew."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED

    consumer_group: str


class SubscriptionGroupTableHeader(CommandHeader):
    """Header of 201: all groups' settings. RocketMQ 5.3 asks for pages; an answer may hold everything at once."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG

    group_seq: I32 | None = None
    max_group_num: I32 | None = None
    data_version: str | None = None


class SubscriptionGroupTableResult(CommandHeader):
    """Answer to 201: how many groups there are in all."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG

    total_group_num: I32 | None = None


class SubscriptionGroupHeader(CommandHeader):
    """Header of 352: one group's settings."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG

    group: str


class DeleteSubscriptionGroupHeader(CommandHeader):
    """Header of 207: delete a group; `clean_offset` also forgets its offsets."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.DELETE_SUBSCRIPTIONGROUP

    group_name: str
    clean_offset: bool = False


class GroupForbiddenHeader(CommandHeader):
    """Header of 353: allow or forbid a group to read a topic; without `readable` only ask."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN

    group: str
    topic: str
    readable: bool | None = None


class ConsumerConnectionHeader(CommandHeader):
    """Header of 203: a group's members with their connections and subscriptions."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.GET_CONSUMER_CONNECTION_LIST

    consumer_group: str


class ProducerConnectionHeader(CommandHeader):
    """Header of 204: the connections of a producer group."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.GET_PRODUCER_CONNECTION_LIST

    producer_group: str


class TopicConsumersHeader(CommandHeader):
    """Header of 300: the groups that consume a topic."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO

    topic: str


class ConsumerTopicsHeader(CommandHeader):
    """Header of 343: the topics of which a group has offsets."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.QUERY_TOPICS_BY_CONSUMER

    group: str


class ConsumerSubscriptionHeader(CommandHeader):
    """Header of 345: what an online group wants of a topic."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER

    group: str
    topic: str | None = None
