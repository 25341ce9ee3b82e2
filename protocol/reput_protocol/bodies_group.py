"""JSON bodies about consumer groups: their settings, their members' ids (RocketMQ: SubscriptionGroupConfig)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Self

from reput_protocol.bodies_heartbeat import SubscriptionData
from reput_protocol.body_members import (
    as_object,
    flag_member,
    integer_member,
    list_member,
    map_member,
    text_list_member,
    text_map_member,
    text_member,
)
from reput_protocol.buffers import Buffer
from reput_protocol.errors import BodyMalformed
from reput_protocol.large_body import LargeBody
from reput_protocol.loose_json import read_json, write_json

RETRY_MAX_TIMES: Final = 16
_CONSUME_TIMEOUT_MINUTES: Final = 15


@dataclass(slots=True)
class SubscriptionGroupConfig:
    """One consumer group's settings: body of 200, answer body of 352, an entry of 201 and of `subscriptionGroup.json`.

    Defaults are RocketMQ's for a new group. `retry_max_times` is how often a message comes back before it goes to the
    dead letters, `retry_queue_nums` how many queues the group's retry topic has; 0 drops what is sent back.
    `group_retry_policy` and `subscription_data_set` are kept as they come.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = RETRY_MAX_TIMES
    group_retry_policy: dict[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = _CONSUME_TIMEOUT_MINUTES
    subscription_data_set: list[Any] | None = None
    attributes: dict[str, str] = field(default_factory=dict)

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object, in RocketMQ's (alphabetical) order."""
        members: dict[str, Any] = {
            "attributes": dict(sorted(self.attributes.items())),
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "consumeTimeoutMinute": self.consume_timeout_minute,
            "groupName": self.group_name,
            "groupRetryPolicy": self.group_retry_policy,
            "groupSysFlag": self.group_sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queue_nums,
        }
        if self.subscription_data_set is not None:
            members["subscriptionDataSet"] = self.subscription_data_set
        members["whichBrokerWhenConsumeSlowly"] = self.which_broker_when_consume_slowly
        return members

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; what is missing takes its default. Raises BodyMalformed."""
        subscriptions = members.get("subscriptionDataSet")
        return cls(
            text_member(members, "groupName"),
            flag_member(members, "consumeEnable", True),
            flag_member(members, "consumeFromMinEnable", True),
            flag_member(members, "consumeBroadcastEnable", True),
            flag_member(members, "consumeMessageOrderly"),
            integer_member(members, "retryQueueNums", 1),
            integer_member(members, "retryMaxTimes", RETRY_MAX_TIMES),
            map_member(members, "groupRetryPolicy") or {"type": "CUSTOMIZED"},
            integer_member(members, "brokerId"),
            integer_member(members, "whichBrokerWhenConsumeSlowly", 1),
            flag_member(members, "notifyConsumerIdsChangedEnable", True),
            integer_member(members, "groupSysFlag"),
            integer_member(members, "consumeTimeoutMinute", _CONSUME_TIMEOUT_MINUTES),
            None if subscriptions is None else list_member(members, "subscriptionDataSet"),
            text_map_member(members, "attributes"),
        )

    def to_json(self) -> bytes:
        """Return the body."""
        return write_json(self.to_members())

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        return cls.from_members(read_json(data))


@dataclass(slots=True)
class SubscriptionGroupTable(LargeBody):
    """Answer body of 201: every group's settings (RocketMQ: SubscriptionGroupWrapper).

    `forbidden` holds, by group and topic, bits of what the group may not do with the topic (`Perm.READ`: read it).
    `data_version` holds counter, stateVersion and timestamp.
    """

    groups: dict[str, SubscriptionGroupConfig]
    data_version: dict[str, int]
    forbidden: dict[str, dict[str, int]] = field(default_factory=dict)

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "dataVersion": self.data_version,
            "forbiddenTable": self.forbidden,
            "subscriptionGroupTable": self.groups,
        }

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data)
        version = map_member(members, "dataVersion")
        return cls(
            {
                str(name): SubscriptionGroupConfig.from_members(
                    as_object(item, "a value of 'subscriptionGroupTable'")
                )
                for name, item in map_member(members, "subscriptionGroupTable").items()
            },
            {name: integer_member(version, name) for name in ("counter", "stateVersion", "timestamp")},
            {
                str(name): _masks(as_object(item, "a value of 'forbiddenTable'"))
                for name, item in map_member(members, "forbiddenTable").items()
            },
        )


@dataclass(slots=True)
class SubscriptionGroupList:
    """Body of 225: several groups to create or change."""

    groups: list[SubscriptionGroupConfig]

    def to_json(self) -> bytes:
        """Return the body."""
        return write_json({"groupConfigList": [group.to_members() for group in self.groups]})

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        return cls(
            [
                SubscriptionGroupConfig.from_members(as_object(item, "an item of 'groupConfigList'"))
                for item in list_member(read_json(data), "groupConfigList")
            ]
        )


@dataclass(slots=True)
class ConsumerList:
    """Answer body of 38: the client ids of a group's members."""

    consumer_ids: list[str]

    def to_json(self) -> bytes:
        """Return the body."""
        return write_json({"consumerIdList": self.consumer_ids})

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        return cls(text_list_member(read_json(data), "consumerIdList"))


@dataclass(slots=True)
class GroupList:
    """Answer body of 300: names of groups."""

    groups: list[str]

    def to_json(self) -> bytes:
        """Return the body."""
        return write_json({"groupList": self.groups})

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        return cls(text_list_member(read_json(data), "groupList"))


@dataclass(slots=True)
class GroupForbidden:
    """Answer body of 353: whether a group may read a topic."""

    group: str
    topic: str
    readable: bool = True

    def to_json(self) -> bytes:
        """Return the body."""
        return write_json({"group": self.group, "readable": self.readable, "topic": self.topic})

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data)
        return cls(
            text_member(members, "group"),
            text_member(members, "topic"),
            flag_member(members, "readable", True),
        )


@dataclass(slots=True)
class QuerySubscriptionBody:
    """Answer body of 345: what an online group wants of a topic; None if it does not subscribe to it.

    (RocketMQ: QuerySubscriptionResponseBody.)
    """

    group: str
    topic: str
    subscription: SubscriptionData | None = None

    def to_json(self) -> bytes:
        """Return the body."""
        members: dict[str, Any] = {"group": self.group, "topic": self.topic}
        if self.subscription is not None:
            members["subscriptionData"] = self.subscription.to_members()
        return write_json(members)

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data)
        found = members.get("subscriptionData")
        return cls(
            text_member(members, "group"),
            text_member(members, "topic"),
            None if found is None else SubscriptionData.from_members(as_object(found, "'subscriptionData'")),
        )


def _masks(members: dict[Any, Any]) -> dict[str, int]:
    if not all(type(name) is str for name in members):
        raise BodyMalformed("member 'forbiddenTable' has a topic that is no text")
    return {name: integer_member(members, name) for name in members}
