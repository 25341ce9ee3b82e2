"""Reads: PullMessage, one message by its place, and our own requests for readers in bulk.

A reader in bulk asks where each queue begins and ends, then for ranges of queues as they lie in the log.
(RocketMQ: PullMessageRequestHeader.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, NamedTuple

from reput_protocol.codes import RequestCode
from reput_protocol.commands.body import Body, LargeBody
from reput_protocol.commands.header import I32, I64, CommandHeader

FETCH_BYTES: Final = 1 << 20
"""What one answer to FETCH_RECORDS holds unless it is asked for less or more."""
FETCH_BYTES_MAX: Final = 4 << 20
"""What it holds at most; the first record comes whatever its size."""


class FetchRecordsHeader(CommandHeader):
    """Header of FETCH_RECORDS: the messages `[start_offset, end_offset)` of a queue, as far as one answer holds them.

    `subscription` is a tag expression; the broker compares the hashes of tags only. With `generation`, a topic of
    another generation is refused as one that does not exist.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.FETCH_RECORDS

    topic: str
    queue_id: I32
    start_offset: I64
    end_offset: I64
    max_bytes: I32 = FETCH_BYTES
    subscription: str | None = None
    generation: str | None = None


class FetchRecordsResult(CommandHeader):
    """Answer to FETCH_RECORDS, under the codes 0, 19 and 21 alike; the body of a 0 is records back to back.

    All messages before `next_offset` that are wanted are in the body. `max_offset` ends what is durable.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.FETCH_RECORDS

    next_offset: I64
    min_offset: I64
    max_offset: I64


class QueryQueueBoundsHeader(CommandHeader):
    """Header of QUERY_QUEUE_BOUNDS; the topics are in its body."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.QUERY_QUEUE_BOUNDS


class QueueBoundsRequest(Body):
    """Body of the request: the topics that are asked about."""

    topics: list[str] = []


class QueueBounds(NamedTuple):
    """Where one queue begins and ends; only what is durable counts."""

    queue_id: I64
    min_offset: I64
    max_offset: I64


class QueueBoundsTable(LargeBody):
    """Body of the answer: the readable queues of every topic that exists. A topic that may not be read has none."""

    broker_name: str = ""
    topics: Mapping[str, list[QueueBounds]] = {}
    generations: Mapping[str, str] = {}
    """The generation of each topic, another one after it was deleted and created again: empty if the topic has none,
    which is older than generations. An old broker names none at all."""


class PullMessageHeader(CommandHeader):
    """Header of 11 and 361: messages of one queue from `queue_offset` on.

    `sys_flag` holds bits of `PullSysFlag`: only with them are `commit_offset`, `suspend_timeout_millis` (how long
    the broker may hold the request) and `subscription` (the filter) looked at. Whatever the limits say, a non-empty
    answer holds at least one message.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.PULL_MESSAGE

    consumer_group: str
    topic: str
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
    """Answer to a pull, under the codes 0, 19, 20 and 21 alike; the body of a 0 is records back to back.

    `next_begin_offset` is where to pull next, even when nothing came; `max_offset` is the last message's + 1.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.PULL_MESSAGE

    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    suggest_which_broker_id: I64 = 0


class ViewMessageHeader(CommandHeader):
    """Header of 33: the one record at a physical offset."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.VIEW_MESSAGE_BY_ID

    offset: I64
    topic: str | None = None
