"""JSON bodies in which a member tells what it is doing, or what it did with one message.

(RocketMQ: ConsumerRunningInfo, ProcessQueueInfo, ConsumeStatus, ConsumeMessageDirectlyResult.)
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from msgspec import field

from reput_protocol.bodies_heartbeat import SubscriptionData
from reput_protocol.body import I64, Body, LargeBody, Members, Number
from reput_protocol.group_terms import ConsumeResult
from reput_protocol.message import MessageQueue

PROP_NAMESERVER_ADDR: Final = "PROP_NAMESERVER_ADDR"
PROP_THREADPOOL_CORE_SIZE: Final = "PROP_THREADPOOL_CORE_SIZE"
PROP_CONSUME_ORDERLY: Final = "PROP_CONSUMEORDERLY"
PROP_CONSUME_TYPE: Final = "PROP_CONSUME_TYPE"
PROP_CLIENT_VERSION: Final = "PROP_CLIENT_VERSION"
PROP_CONSUMER_START_TIMESTAMP: Final = "PROP_CONSUMER_START_TIMESTAMP"
"""These are the properties of a `ConsumerRunningInfo` that RocketMQ's tools show."""


class ProcessQueueInfo(Members):
    """What a member holds of one queue: messages that are pulled and not committed, its lock, when it last did what.

    Offsets count where messages are cached. Times are milliseconds since 1970, 0 for never.
    """

    commit_offset: I64 = 0
    cached_msg_min_offset: I64 = 0
    cached_msg_max_offset: I64 = 0
    cached_msg_count: I64 = 0
    cached_msg_size_mib: I64 = field(default=0, name="cachedMsgSizeInMiB")
    locked: bool = False
    try_unlock_times: I64 = 0
    last_lock_timestamp: I64 = 0
    dropped: bool = field(default=False, name="droped")
    last_pull_timestamp: I64 = 0
    last_consume_timestamp: I64 = 0


class ConsumeStatus(Members):
    """A member's rates for one topic: times in ms, messages a second, failures of the last hour."""

    pull_rt: Number = field(default=0.0, name="pullRT")
    pull_tps: Number = field(default=0.0, name="pullTPS")
    consume_rt: Number = field(default=0.0, name="consumeRT")
    consume_ok_tps: Number = field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: Number = field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: I64 = 0


class ConsumerRunningInfo(LargeBody):
    """Answer body of 307. What RocketMQ's clients tell of POP consumption (`mqPopTable`) is not read."""

    IS_TRUSTED: ClassVar[bool] = True

    properties: dict[str, str] = {}
    subscriptions: list[SubscriptionData] = field(default_factory=list, name="subscriptionSet")
    queues: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict, name="mqTable")
    statuses: dict[str, ConsumeStatus] = field(default_factory=dict, name="statusTable")
    user_consumer_info: dict[str, str] = {}
    jstack: str | None = None

    def to_members(self) -> dict[str, Any]:
        """Return the members, with the empty table that RocketMQ's tools look for."""
        return {**super().to_members(), "mqPopTable": {}}


class ConsumeDirectlyResult(Body):
    """Answer body of 309: what the member made of the message (RocketMQ: ConsumeMessageDirectlyResult)."""

    consume_result: ConsumeResult = ConsumeResult.CR_RETURN_NULL
    spent_time_ms: I64 = field(default=0, name="spentTimeMills")
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
