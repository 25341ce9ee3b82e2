"""Headers of reads: PullMessage and one message by its place (RocketMQ: PullMessageRequestHeader)."""

from __future__ import annotations

from typing import ClassVar

from reput_protocol.codes import RequestCode
from reput_protocol.command_header import I32, I64, CommandHeader


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
