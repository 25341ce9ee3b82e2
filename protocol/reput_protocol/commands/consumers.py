"""What a group has consumed and what its members are doing: figures, offsets that are copied or corrected, send-back.

(RocketMQ: ConsumeStats and its kin, ConsumerRunningInfo, ProcessQueueInfo, ConsumeMessageDirectlyResult.) Maps keyed by
message queue make some bodies more than strict JSON; see `LargeBody`.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

from msgspec import field

from reput_protocol.codes import ConsumeResult, RequestCode
from reput_protocol.commands.body import Body, LargeBody, Members, Number
from reput_protocol.commands.group import SubscriptionData
from reput_protocol.commands.header import I32, I64, CommandHeader
from reput_protocol.record.message import MessageQueue


class OffsetWrapper(Members):
    """A group's progress in one queue.

    `broker_offset` is the queue's end, `consumer_offset` what is committed, `pull_offset` what has been pulled;
    `last_timestamp` is the store time in ms of the last message that is committed, 0 for none.
    """

    broker_offset: I64 = 0
    consumer_offset: I64 = 0
    pull_offset: I64 = 0
    last_timestamp: I64 = 0

    @property
    def lag(self) -> int:
        """How many messages are not committed yet."""
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        """How many messages are pulled and not committed."""
        return self.pull_offset - self.consumer_offset


class ConsumeStats(LargeBody):
    """Answer body of 208: a group's progress in each queue, and messages a second."""

    IS_TRUSTED: ClassVar[bool] = True

    offset_table: dict[MessageQueue, OffsetWrapper] = {}
    consume_tps: Number = 0.0

    @property
    def lag(self) -> int:
        """How many messages are not committed yet, over all queues."""
        return sum(wrapper.lag for wrapper in self.offset_table.values())

    @property
    def in_flight(self) -> int:
        """How many messages are pulled and not committed, over all queues."""
        return sum(wrapper.in_flight for wrapper in self.offset_table.values())


class ConsumeStatsList(LargeBody):
    """Answer body of 317: the progress of every group, each with one `ConsumeStats` for each of its topics."""

    IS_TRUSTED: ClassVar[bool] = True

    stats: list[dict[str, list[ConsumeStats]]] = field(default_factory=list, name="consumeStatsList")
    broker_addr: str = ""
    total_diff: I64 = 0
    total_inflight_diff: I64 = 0


class StatsItem(Members):
    """One figure over a time: its sum, its rate a second, its average for each time it was counted."""

    sum: I64 = 0
    tps: Number = 0.0
    avgpt: Number = 0.0


class BrokerStatsData(Body):
    """Answer body of 315: one of the broker's figures over the last minute, hour and day."""

    minute: StatsItem = field(default_factory=StatsItem, name="statsMinute")
    hour: StatsItem = field(default_factory=StatsItem, name="statsHour")
    day: StatsItem = field(default_factory=StatsItem, name="statsDay")


class QueueTimeSpan(Members):
    """Store times of one queue in ms: of its first and last message, and of the last one that a group committed.

    `delay_time` is for how long the first message that is not committed has been there.
    """

    queue: MessageQueue = field(name="messageQueue")
    min_timestamp: I64 = field(default=0, name="minTimeStamp")
    max_timestamp: I64 = field(default=0, name="maxTimeStamp")
    consume_timestamp: I64 = field(default=0, name="consumeTimeStamp")
    delay_time: I64 = 0


class ConsumeTimeSpan(LargeBody):
    """Answer body of 303 (RocketMQ: QueryConsumeTimeSpanBody)."""

    spans: list[QueueTimeSpan] = field(default_factory=list, name="consumeTimeSpanSet")


class CorrectionOffsets(LargeBody):
    """Answer body of 308: offsets by queue id, whose keys are bare integers (RocketMQ: QueryCorrectionOffsetBody)."""

    IS_TRUSTED: ClassVar[bool] = True

    offsets: dict[I64, I64] = field(default_factory=dict, name="correctionOffsets")


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


class SendBackHeader(CommandHeader):
    """Header of 36: a member could not handle the message at the physical offset `offset`.

    (RocketMQ: ConsumerSendMsgBackRequestHeader.) `delay_level` 0 leaves the delay to the broker, a level above it says
    how long, and a negative one sends the message to the dead letters at once. `max_reconsume_times` overrides the
    group's setting. Ours: `reason`, why, in the consumer's words; `send_back_id`, the same in every repetition of one
    request (up to 64 letters and digits), by which the broker knows it again; `is_repeated`, it was asked before.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.CONSUMER_SEND_MSG_BACK

    offset: I64
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: I32 | None = None
    reason: str | None = None
    send_back_id: str | None = None
    is_repeated: bool | None = None


class ResetOffsetHeader(CommandHeader):
    """Header of 222 (asked of the broker) and 220 (the broker's word to members): go on elsewhere.

    `timestamp` is milliseconds since 1970, -1 for the end of each queue. With a `queue_id` (not -1) an `offset` counts
    instead. RocketMQ's client refuses a 220 without `isForce`, so that is always written.

    Ours in 222, with msgpack headers: an `offset` counts without a queue too, in every one, from its end if it is
    negative, and means the nearest that there is. Ours with any headers: `shift` moves each committed offset by so many
    messages; with `dry_run` the answer says what would be set, and nothing is.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET

    topic: str
    group: str
    timestamp: I64
    is_force: bool = False
    queue_id: I32 = -1
    offset: I64 | None = None
    shift: I64 | None = None
    dry_run: bool | None = None


class ConsumerStatusHeader(CommandHeader):
    """Header of 223 (asked of the broker) and 221 (asked of members): the offsets that members have reached."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS

    topic: str
    group: str
    client_addr: str | None = None


class ConsumerRunningInfoHeader(CommandHeader):
    """Header of 307, asked of the broker and passed on to the member: what is it doing?"""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.GET_CONSUMER_RUNNING_INFO

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectlyHeader(CommandHeader):
    """Header of 309, asked of the broker with `msg_id` and passed on to the member with the record as body."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.CONSUME_MESSAGE_DIRECTLY

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None


class ConsumeStatsHeader(CommandHeader):
    """Header of 208: a group's progress; `topic_list` names several topics, joined by `;`."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.GET_CONSUME_STATS

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None

    def topics(self) -> list[str]:
        """Return the topics that are named; none stands for all of which the group has offsets."""
        named = [self.topic or "", *(self.topic_list or "").split(";")]
        return list(dict.fromkeys(topic for topic in named if topic))


class BrokerConsumeStatsHeader(CommandHeader):
    """Header of 317: all groups' progress; only groups that consume in order, or only the others."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.GET_BROKER_CONSUME_STATS

    is_order: bool


class BrokerStatsHeader(CommandHeader):
    """Header of 315: one of the broker's figures over time."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.VIEW_BROKER_STATS_DATA

    stats_name: str
    stats_key: str


class ConsumeTimeSpanHeader(CommandHeader):
    """Header of 303: from when to when the messages of a topic's queues are, and how far a group has come."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.QUERY_CONSUME_TIME_SPAN

    topic: str
    group: str


class CloneGroupOffsetHeader(CommandHeader):
    """Header of 314: give one group the offsets of another, of one topic or of all.

    Of an online source, topics that it does not subscribe to are left out, unless `offline` is set. Ours: with
    `dry_run` nothing is set; the answer's body says what was or would be.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.CLONE_GROUP_OFFSET

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False
    dry_run: bool | None = None


class CorrectionOffsetHeader(CommandHeader):
    """Header of 308: the lowest offsets among a topic's groups; `filter_groups` joins names with commas."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.QUERY_CORRECTION_OFFSET

    topic: str
    compare_group: str
    filter_groups: str | None = None
