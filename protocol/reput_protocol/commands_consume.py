"""Headers about a group's progress: sending back, resetting, copying and looking at offsets, asking members."""

from __future__ import annotations

from typing import ClassVar

from reput_protocol.codes import RequestCode
from reput_protocol.command_header import I32, I64, CommandHeader


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
