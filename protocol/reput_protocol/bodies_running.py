"""JSON bodies in which a member tells what it is doing, or what it did with one message.

(RocketMQ: ConsumerRunningInfo, ProcessQueueInfo, ConsumeStatus, ConsumeMessageDirectlyResult.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Self

from reput_protocol.bodies_heartbeat import SubscriptionData
from reput_protocol.body_members import (
    as_object,
    choice_member,
    flag_member,
    integer_member,
    list_member,
    map_member,
    number_member,
    text_map_member,
    text_member,
)
from reput_protocol.buffers import Buffer
from reput_protocol.group_terms import ConsumeResult
from reput_protocol.loose_json import read_json, write_json
from reput_protocol.message import MessageQueue
from reput_protocol.queue_members import queue_map_member, write_queue_map

PROP_NAMESERVER_ADDR: Final = "PROP_NAMESERVER_ADDR"
PROP_THREADPOOL_CORE_SIZE: Final = "PROP_THREADPOOL_CORE_SIZE"
PROP_CONSUME_ORDERLY: Final = "PROP_CONSUMEORDERLY"
PROP_CONSUME_TYPE: Final = "PROP_CONSUME_TYPE"
PROP_CLIENT_VERSION: Final = "PROP_CLIENT_VERSION"
PROP_CONSUMER_START_TIMESTAMP: Final = "PROP_CONSUMER_START_TIMESTAMP"
"""These are the properties of a `ConsumerRunningInfo` that RocketMQ's tools show."""


@dataclass(slots=True)
class ProcessQueueInfo:
    """What a member holds of one queue: messages that are pulled and not committed, its lock, when it last did what.

    Offsets count where messages are cached. Times are milliseconds since 1970, 0 for never.
    """

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_mib: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object, with RocketMQ's spelling of `droped`."""
        return {
            "cachedMsgCount": self.cached_msg_count,
            "cachedMsgMaxOffset": self.cached_msg_max_offset,
            "cachedMsgMinOffset": self.cached_msg_min_offset,
            "cachedMsgSizeInMiB": self.cached_msg_size_mib,
            "commitOffset": self.commit_offset,
            "droped": self.dropped,
            "lastConsumeTimestamp": self.last_consume_timestamp,
            "lastLockTimestamp": self.last_lock_timestamp,
            "lastPullTimestamp": self.last_pull_timestamp,
            "locked": self.locked,
            "tryUnlockTimes": self.try_unlock_times,
        }

    @classmethod
    def from_value(cls, value: object) -> Self:
        """Read a value of the queue table; raises BodyMalformed."""
        members = as_object(value, "a value of 'mqTable'")
        return cls(
            integer_member(members, "commitOffset"),
            integer_member(members, "cachedMsgMinOffset"),
            integer_member(members, "cachedMsgMaxOffset"),
            integer_member(members, "cachedMsgCount"),
            integer_member(members, "cachedMsgSizeInMiB"),
            flag_member(members, "locked"),
            integer_member(members, "tryUnlockTimes"),
            integer_member(members, "lastLockTimestamp"),
            flag_member(members, "droped"),
            integer_member(members, "lastPullTimestamp"),
            integer_member(members, "lastConsumeTimestamp"),
        )


@dataclass(slots=True)
class ConsumeStatus:
    """A member's rates for one topic: times in ms, messages a second, failures of the last hour."""

    pull_rt: float = 0.0
    pull_tps: float = 0.0
    consume_rt: float = 0.0
    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
    consume_failed_msgs: int = 0

    def to_members(self) -> dict[str, Any]:
        """Return the members of the JSON object."""
        return {
            "consumeFailedMsgs": self.consume_failed_msgs,
            "consumeFailedTPS": float(self.consume_failed_tps),
            "consumeOKTPS": float(self.consume_ok_tps),
            "consumeRT": float(self.consume_rt),
            "pullRT": float(self.pull_rt),
            "pullTPS": float(self.pull_tps),
        }

    @classmethod
    def from_members(cls, members: dict[Any, Any]) -> Self:
        """Read the members; raises BodyMalformed."""
        return cls(
            number_member(members, "pullRT"),
            number_member(members, "pullTPS"),
            number_member(members, "consumeRT"),
            number_member(members, "consumeOKTPS"),
            number_member(members, "consumeFailedTPS"),
            integer_member(members, "consumeFailedMsgs"),
        )


@dataclass(slots=True)
class ConsumerRunningInfo:
    """Answer body of 307. What RocketMQ's clients tell of POP consumption (`mqPopTable`) is not read."""

    properties: dict[str, str] = field(default_factory=dict)
    subscriptions: list[SubscriptionData] = field(default_factory=list)
    queues: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    statuses: dict[str, ConsumeStatus] = field(default_factory=dict)
    user_consumer_info: dict[str, str] = field(default_factory=dict)
    jstack: str | None = None

    def to_json(self) -> bytes:
        """Return the body with objects as keys, which is not strict JSON."""
        rest: dict[str, Any] = {
            "properties": self.properties,
            "statusTable": {topic: status.to_members() for topic, status in self.statuses.items()},
            "subscriptionSet": [subscription.to_members() for subscription in self.subscriptions],
            "userConsumerInfo": self.user_consumer_info,
        }
        if self.jstack is not None:
            rest["jstack"] = self.jstack
        queues = write_queue_map({queue: info.to_members() for queue, info in self.queues.items()})
        return f'{{"mqPopTable":{{}},"mqTable":{queues},'.encode() + write_json(rest)[1:]

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data, loose_bytes_max=len(data))
        return cls(
            text_map_member(members, "properties"),
            [
                SubscriptionData.from_members(as_object(item, "an item of 'subscriptionSet'"))
                for item in list_member(members, "subscriptionSet")
            ],
            queue_map_member(members, "mqTable", ProcessQueueInfo.from_value),
            {
                str(topic): ConsumeStatus.from_members(as_object(item, "a value of 'statusTable'"))
                for topic, item in map_member(members, "statusTable").items()
            },
            text_map_member(members, "userConsumerInfo"),
            text_member(members, "jstack") or None,
        )


@dataclass(slots=True)
class ConsumeDirectlyResult:
    """Answer body of 309: what the member made of the message (RocketMQ: ConsumeMessageDirectlyResult)."""

    consume_result: ConsumeResult
    spent_time_ms: int = 0
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None

    def to_json(self) -> bytes:
        """Return the body."""
        members: dict[str, Any] = {
            "autoCommit": self.auto_commit,
            "consumeResult": self.consume_result.value,
            "order": self.order,
            "spentTimeMills": self.spent_time_ms,
        }
        if self.remark is not None:
            members["remark"] = self.remark
        return write_json(members)

    @classmethod
    def from_json(cls, data: Buffer) -> Self:
        """Read the body; raises BodyMalformed."""
        members = read_json(data)
        return cls(
            choice_member(members, "consumeResult", ConsumeResult.CR_RETURN_NULL),
            integer_member(members, "spentTimeMills"),
            flag_member(members, "order"),
            flag_member(members, "autoCommit", True),
            text_member(members, "remark") or None,
        )
