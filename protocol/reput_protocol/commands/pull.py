"""Pulls (RocketMQ: PullMessageRequestHeader), and Reput's requests for bulk readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import I32, I64, Body, CommandHeader, Kind, LargeBody, RequestType, Sender
from reput_protocol.names import BrokerName, GroupName, TopicName
from reput_protocol.rights import Right

# -- pulls -------------------------------------------------------------------------------------------------------------


class PullMessageHeader(CommandHeader):
    """Header of 11 and 361: messages of one queue from `queue_offset` on.

    Bits of `PullSysFlag` in `sys_flag` enable `commit_offset`, `suspend_timeout_millis` (how long the broker may hold
    the request) and `subscription` (the filter). A non-empty answer has at least one message, whatever the limits.
    """

    consumer_group: GroupName
    topic: TopicName
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32
    sys_flag: I32 = 0
    commit_offset: I64 = 0
    suspend_timeout_millis: I64 = 0
    subscription: str | None = None
    sub_version: I64 = 0
    expression_type: str | None = None
    max_msg_bytes: I32 | None = None


class PullMessageResult(CommandHeader):
    """Answer to a pull, for the codes 0, 19, 20 and 21; the body of a 0 is records back to back.

    `next_begin_offset` is where to pull next in any case; `max_offset` is the last message's + 1.
    """

    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    suggest_which_broker_id: I64 = 0


# -- bulk reads --------------------------------------------------------------------------------------------------------

FETCH_BYTES: Final = 1 << 20
"""Default size of a FETCH_RECORDS answer."""
FETCH_BYTES_MAX: Final = 4 << 20
"""Maximum size of a FETCH_RECORDS answer, unless its first record is larger."""


class FetchRecordsHeader(CommandHeader):
    """Header of FETCH_RECORDS: as many of the messages `[start_offset, end_offset)` of a queue as fit.

    `subscription` is a tag expression; the broker compares only hashes. A topic of another `generation` is refused as
    not existing.
    """

    topic: TopicName
    queue_id: I32
    start_offset: I64
    end_offset: I64
    max_bytes: I32 = FETCH_BYTES
    subscription: str | None = None
    generation: str | None = None


class FetchRecordsResult(CommandHeader):
    """Answer to FETCH_RECORDS, for the codes 0, 19 and 21; the body of a 0 is records back to back.

    All wanted messages before `next_offset` are in it. `max_offset` is the end of the durable messages.
    """

    next_offset: I64
    min_offset: I64
    max_offset: I64


class QueryQueueBoundsHeader(CommandHeader):
    """Header of QUERY_QUEUE_BOUNDS; the topics are in its body."""


class QueueBoundsRequest(Body):
    """Body of QUERY_QUEUE_BOUNDS."""

    topics: list[TopicName] = []


class QueueBounds(NamedTuple):
    """The first and the next offset of one queue's durable messages."""

    queue_id: I64
    min_offset: I64
    max_offset: I64


class QueueBoundsTable(LargeBody):
    """Answer body of QUERY_QUEUE_BOUNDS: the readable queues of all existing topics."""

    broker_name: BrokerName = ""
    topics: Mapping[TopicName, list[QueueBounds]] = {}
    generations: Mapping[TopicName, str] = {}
    """By topic; changes when it is deleted and created again, empty if the topic is older than generations.

    An old broker sends none at all.
    """


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(
        RequestCode.PULL_MESSAGE, PullMessageHeader, sender=Sender.CONSUMER, topics=Right.READ, groups=Right.READ,
        kind=Kind.READS, pool="pull", waits=True,
    ),
    RequestType(
        RequestCode.LITE_PULL_MESSAGE, PullMessageHeader, sender=Sender.CONSUMER, topics=Right.READ, groups=Right.READ,
        kind=Kind.READS, pool="lite_pull", waits=True,
    ),
    RequestType(
        RequestCode.FETCH_RECORDS, FetchRecordsHeader, sender=Sender.CONSUMER, topics=Right.READ, kind=Kind.READS
    ),
    RequestType(
        RequestCode.QUERY_QUEUE_BOUNDS, QueryQueueBoundsHeader, QueueBoundsRequest, sender=Sender.CONSUMER,
        topics=Right.DESCRIBE, kind=Kind.READS,
    ),
)  # fmt: skip
