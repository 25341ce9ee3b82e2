"""JSON bodies about consumer groups: their settings, their members' ids (RocketMQ: SubscriptionGroupConfig)."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET, UnsetType, field

from reput_protocol.bodies_heartbeat import SubscriptionData
from reput_protocol.body import I64, Body, LargeBody

RETRY_MAX_TIMES: Final = 16
_CONSUME_TIMEOUT_MINUTES: Final = 15


class SubscriptionGroupConfig(Body):
    """One consumer group's settings: body of 200, answer body of 352, an entry of 201 and of `subscriptionGroup.json`.

    Defaults are RocketMQ's for a new group. `retry_max_times` is how often a message comes back before it goes to the
    dead letters, `retry_queue_nums` how many queues the group's retry topic has; 0 drops what is sent back.
    `group_retry_policy` and `subscription_data_set` are kept as they come.
    """

    group_name: str = ""
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


class SubscriptionGroupTable(LargeBody):
    """Answer body of 201: every group's settings (RocketMQ: SubscriptionGroupWrapper).

    `forbidden` holds, by group and topic, bits of what the group may not do with the topic (`Perm.READ`: read it).
    `data_version` holds counter, stateVersion and timestamp.
    """

    groups: dict[str, SubscriptionGroupConfig] = field(default_factory=dict, name="subscriptionGroupTable")
    data_version: dict[str, I64] = {}
    forbidden: dict[str, dict[str, I64]] = field(default_factory=dict, name="forbiddenTable")


class SubscriptionGroupList(Body):
    """Body of 225: several groups to create or change."""

    groups: list[SubscriptionGroupConfig] = field(default_factory=list, name="groupConfigList")


class ConsumerList(Body):
    """Answer body of 38: the client ids of a group's members."""

    consumer_ids: list[str] = field(default_factory=list, name="consumerIdList")


class GroupList(Body):
    """Answer body of 300: names of groups."""

    groups: list[str] = field(default_factory=list, name="groupList")


class GroupForbidden(Body):
    """Answer body of 353: whether a group may read a topic."""

    group: str = ""
    topic: str = ""
    readable: bool = True


class QuerySubscriptionBody(Body):
    """Answer body of 345: what an online group wants of a topic; None if it does not subscribe to it.

    (RocketMQ: QuerySubscriptionResponseBody.)
    """

    group: str = ""
    topic: str = ""
    subscription: SubscriptionData | None = field(default=None, name="subscriptionData")
