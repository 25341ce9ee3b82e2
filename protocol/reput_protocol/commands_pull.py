"""Headers of reads: PullMessage and one message by its place (RocketMQ: PullMessageRequestHeader)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from reput_protocol.codes import RequestCode
from reput_protocol.command_header import I32, I64, CommandHeader, read_fields
from reput_protocol.header_model import HeaderType, Value, text_ext

_MSGPACK: Final = HeaderType.MSGPACK.value
_I32_MIN: Final = -0x8000_0000
_I32_MAX: Final = 0x7FFF_FFFF
_I64_MIN: Final = -0x8000_0000_0000_0000
_I64_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF


@dataclass(slots=True)
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

    @classmethod
    def from_ext(cls, ext: Mapping[str, Value]) -> Self:
        """Read the fields; see `CommandHeader.from_ext`. The straight way takes what our client sends."""
        get = ext.get
        group = get("consumerGroup")
        topic = get("topic")
        queue_id = get("queueId")
        queue_offset = get("queueOffset")
        max_msg_nums = get("maxMsgNums")
        sys_flag = get("sysFlag", 0)
        commit_offset = get("commitOffset", 0)
        suspend_timeout = get("suspendTimeoutMillis", 0)
        subscription = get("subscription")
        sub_version = get("subVersion", 0)
        expression_type = get("expressionType")
        max_msg_bytes = get("maxMsgBytes")
        if (
            type(group) is type(topic) is str
            and type(queue_id) is int
            and type(queue_offset) is int
            and type(max_msg_nums) is int
            and type(sys_flag) is int
            and type(commit_offset) is int
            and type(suspend_timeout) is int
            and type(sub_version) is int
            and (subscription is None or type(subscription) is str)
            and (expression_type is None or type(expression_type) is str)
            and (max_msg_bytes is None or (type(max_msg_bytes) is int and 0 <= max_msg_bytes <= _I32_MAX))
            and _I32_MIN <= queue_id <= _I32_MAX
            and _I64_MIN <= queue_offset <= _I64_MAX
            and _I32_MIN <= max_msg_nums <= _I32_MAX
            and 0 <= sys_flag <= _I32_MAX
            and _I64_MIN <= commit_offset <= _I64_MAX
            and 0 <= suspend_timeout <= _I64_MAX
            and _I64_MIN <= sub_version <= _I64_MAX
        ):
            return cls(
                group,
                topic,
                queue_id,
                queue_offset,
                max_msg_nums,
                sys_flag,
                commit_offset,
                suspend_timeout,
                subscription,
                sub_version,
                expression_type,
                max_msg_bytes,
            )
        header: Self = read_fields(cls, ext)
        return header


@dataclass(slots=True)
class PullMessageResult(CommandHeader):
    """Answer to a pull, under the codes 0, 19, 20 and 21 alike; the body of a 0 is records back to back.

    `next_begin_offset` is where to pull next, even when nothing came; `max_offset` is the last message's + 1.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.PULL_MESSAGE

    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    suggest_which_broker_id: I64 = 0

    @classmethod
    def from_ext(cls, ext: Mapping[str, Value]) -> Self:
        """Read the fields; see `CommandHeader.from_ext`. The straight way takes what our broker sends."""
        get = ext.get
        next_begin_offset = get("nextBeginOffset")
        min_offset = get("minOffset")
        max_offset = get("maxOffset")
        broker_id = get("suggestWhichBrokerId", 0)
        if (
            type(next_begin_offset) is int
            and type(min_offset) is int
            and type(max_offset) is int
            and type(broker_id) is int
            and 0 <= next_begin_offset <= _I64_MAX
            and 0 <= min_offset <= _I64_MAX
            and 0 <= max_offset <= _I64_MAX
            and 0 <= broker_id <= _I64_MAX
        ):
            return cls(next_begin_offset, min_offset, max_offset, broker_id)
        result: Self = read_fields(cls, ext)
        return result

    def to_ext(self, header_type: int) -> dict[str, Value]:
        """Return the fields; see `CommandHeader.to_ext`."""
        ext: dict[str, Value] = {
            "suggestWhichBrokerId": self.suggest_which_broker_id,
            "nextBeginOffset": self.next_begin_offset,
            "minOffset": self.min_offset,
            "maxOffset": self.max_offset,
        }
        return ext if header_type == _MSGPACK else dict(text_ext(ext))


@dataclass(slots=True)
class ViewMessageHeader(CommandHeader):
    """Header of 33: the one record at a physical offset."""

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.VIEW_MESSAGE_BY_ID

    offset: I64
    topic: str | None = None
