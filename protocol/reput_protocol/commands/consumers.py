"""The progress of groups, the state of members, and giving back messages.

(RocketMQ: ConsumeStats, ConsumerRunningInfo, ProcessQueueInfo, ConsumeMessageDirectlyResult.)
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from msgspec import field

from reput_protocol.codes import ConsumeResult, RequestCode
from reput_protocol.commands.base import (
    I32,
    I64,
    Body,
    CommandHeader,
    Kind,
    LargeBody,
    Members,
    Number,
    RequestType,
    Sender,
)
from reput_protocol.commands.group import SubscriptionData
from reput_protocol.names import BrokerName, ClientId, GroupName, TopicName, TopicNames
from reput_protocol.record.message import MessageQueue
from reput_protocol.rights import Right

# -- progress ----------------------------------------------------------------------------------------------------------


class ConsumeStatsHeader(CommandHeader):
    """Header of 208: a group's progress; `topic_list` is separated by `;`."""

    consumer_group: GroupName
    topic: TopicName | None = None
    topic_list: TopicNames | None = None

    def topics(self) -> list[str]:
        """Return the given topics; none means all in which the group has offsets."""
        named = [self.topic or "", *(self.topic_list or "").split(";")]
        return list(dict.fromkeys(topic for topic in named if topic))


class OffsetWrapper(Members):
    """A group's progress in one queue.

    `broker_offset` is the end of the queue, `consumer_offset` the committed offset, `pull_offset` the pulled one;
    `last_timestamp` is the store time in ms of the last committed message, 0 for none.
    """

    broker_offset: I64 = 0
    consumer_offset: I64 = 0
    pull_offset: I64 = 0
    last_timestamp: I64 = 0

    @property
    def lag(self) -> int:
        """Uncommitted messages."""
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        """Pulled and uncommitted messages."""
        return self.pull_offset - self.consumer_offset


class ConsumeStats(LargeBody):
    """Answer body of 208: progress by queue, and messages per second."""

    IS_TRUSTED: ClassVar[bool] = True

    offset_table: dict[MessageQueue, OffsetWrapper] = {}
    consume_tps: Number = 0.0

    @property
    def lag(self) -> int:
        """Uncommitted messages of all queues."""
        return sum(wrapper.lag for wrapper in self.offset_table.values())

    @property
    def in_flight(self) -> int:
        """Pulled and uncommitted messages of all queues."""
        return sum(wrapper.in_flight for wrapper in self.offset_table.values())


class ConsumeTimeSpanHeader(CommandHeader):
    """Header of 303: times of the first and last message of a topic's queues, and a group's progress."""

    topic: TopicName
    group: GroupName


class QueueTimeSpan(Members):
    """Store times of a queue in ms: of its first and last message, and of a group's last committed one.

    `delay_time` is the age of the first uncommitted message.
    """

    queue: MessageQueue = field(name="messageQueue")
    min_timestamp: I64 = field(default=0, name="minTimeStamp")
    max_timestamp: I64 = field(default=0, name="maxTimeStamp")
    consume_timestamp: I64 = field(default=0, name="consumeTimeStamp")
    delay_time: I64 = 0


class ConsumeTimeSpan(LargeBody):
    """Answer body of 303 (RocketMQ: QueryConsumeTimeSpanBody)."""

    spans: list[QueueTimeSpan] = field(default_factory=list, name="consumeTimeSpanSet")


# -- members -----------------------------------------------------------------------------------------------------------


class ConsumerRunningInfoHeader(CommandHeader):
    """Header of 307, which the broker passes on to the member: what is it doing?"""

    consumer_group: GroupName
    client_id: ClientId
    jstack_enable: bool = False


PROP_NAMESERVER_ADDR: Final = "PROP_NAMESERVER_ADDR"
PROP_THREADPOOL_CORE_SIZE: Final = "PROP_THREADPOOL_CORE_SIZE"
PROP_CONSUME_ORDERLY: Final = "PROP_CONSUMEORDERLY"
PROP_CONSUME_TYPE: Final = "PROP_CONSUME_TYPE"
PROP_CLIENT_VERSION: Final = "PROP_CLIENT_VERSION"
PROP_CONSUMER_START_TIMESTAMP: Final = "PROP_CONSUMER_START_TIMESTAMP"
"""Properties of a `ConsumerRunningInfo` that RocketMQ's tools show."""


class ProcessQueueInfo(Members):
    """A member's state of one queue: pulled and uncommitted messages, lock, times of its last actions.

    The cached offsets count if messages are cached. Times are ms since 1970, 0 for never.
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
    """A member's rates for one topic: times in ms, messages per second, failures of the last hour."""

    pull_rt: Number = field(default=0.0, name="pullRT")
    pull_tps: Number = field(default=0.0, name="pullTPS")
    consume_rt: Number = field(default=0.0, name="consumeRT")
    consume_ok_tps: Number = field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: Number = field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: I64 = 0


class ConsumerRunningInfo(LargeBody):
    """Answer body of 307. RocketMQ's POP state (`mqPopTable`) is not read."""

    IS_TRUSTED: ClassVar[bool] = True

    properties: dict[str, str] = {}
    subscriptions: list[SubscriptionData] = field(default_factory=list, name="subscriptionSet")
    queues: dict[MessageQueue, ProcessQueueInfo] = field(default_factory=dict, name="mqTable")
    statuses: dict[TopicName, ConsumeStatus] = field(default_factory=dict, name="statusTable")
    user_consumer_info: dict[str, str] = {}
    jstack: str | None = None

    def to_members(self) -> dict[str, Any]:
        """Return the members, with the empty POP table that RocketMQ's tools expect."""
        return {**super().to_members(), "mqPopTable": {}}


class ConsumeDirectlyHeader(CommandHeader):
    """Header of 309, sent to the broker with `msg_id`, passed on to the member with the record as body."""

    consumer_group: GroupName
    client_id: ClientId | None = None
    msg_id: str | None = None
    broker_name: BrokerName | None = None
    topic: TopicName | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None


class ConsumeDirectlyResult(Body):
    """Answer body of 309 (RocketMQ: ConsumeMessageDirectlyResult)."""

    consume_result: ConsumeResult = ConsumeResult.CR_RETURN_NULL
    spent_time_ms: I64 = field(default=0, name="spentTimeMills")
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None


# -- giving back messages ----------------------------------------------------------------------------------------------


class SendBackHeader(CommandHeader):
    """Header of 36: give back the message at physical offset `offset`, which could not be handled.

    (RocketMQ: ConsumerSendMsgBackRequestHeader.) `delay_level` 0 leaves the delay to the broker; a negative one makes
    the message a dead letter at once. `max_reconsume_times` overrides the group's setting. Reput's: `reason`, the
    consumer's text; `send_back_id`, up to 64 letters and digits, identifies one request in all repetitions;
    `is_repeated`, it was sent before.
    """

    offset: I64
    group: GroupName
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: TopicName | None = None
    unit_mode: bool | None = None
    max_reconsume_times: I32 | None = None
    reason: str | None = None
    send_back_id: str | None = None
    is_repeated: bool | None = None


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(
        RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader, topics=Right.DESCRIBE, groups=Right.DESCRIBE
    ),
    RequestType(
        RequestCode.QUERY_CONSUME_TIME_SPAN, ConsumeTimeSpanHeader, topics=Right.DESCRIBE, groups=Right.DESCRIBE
    ),
    RequestType(RequestCode.GET_CONSUMER_RUNNING_INFO, ConsumerRunningInfoHeader, groups=Right.ADMIN),
    RequestType(RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeDirectlyHeader, cluster=Right.ADMIN),
    RequestType(
        RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader, sender=Sender.CONSUMER, groups=Right.READ,
        fields={"originTopic": "that of the message counts"},
        handler_checks="read on the topic of the message", kind=Kind.CHANGES, pool="send",
    ),
)  # fmt: skip
