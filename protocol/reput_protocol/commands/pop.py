"""POP consumption: messages without queues assigned to members, each acknowledged by its handle.

(RocketMQ: PopMessageRequestHeader, AckMessageRequestHeader, ExtraInfoUtil, QueryAssignmentRequestBody.)

A popped message is invisible for a while. Its handle (RocketMQ: extraInfo, property `POP_CK`) names the check point
that the broker keeps meanwhile. Clients make the handles from three texts in the answer:

    start_offset_info   MARK QUEUE START                          joined by `;`
    msg_offset_info     MARK QUEUE OFFSET,OFFSET,...              joined by `;`
    order_count_info    MARK QUEUE COUNT, MARK qoQUEUE%OFFSET COUNT

MARK is 0 for the topic, 1 for the group's retry topic of it, 2 for such a topic with `+` in its name.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

from msgspec import field

from reput_protocol.codes import MessageModel, RequestCode, ResponseCode
from reput_protocol.commands.base import I32, I64, Body, CommandHeader, Kind, Members, RequestType, Sender
from reput_protocol.errors import BodyMalformed
from reput_protocol.names import (
    RETRY_PREFIX,
    BrokerName,
    ClientId,
    GroupName,
    PoppedTopicName,
    TopicName,
    pop_retry_topic,
    pop_retry_topic_v2,
)
from reput_protocol.record.message import MessageQueue
from reput_protocol.rights import Right

POP_MESSAGES_MAX: Final = 32
"""Messages in one answer, and in one check point."""
ORDERED_REVIVE_QUEUE: Final = 999
"""The revive queue in handles of ordered messages, which have no check point (RocketMQ: POP_ORDER_REVIVE_QUEUE)."""

_NORMAL, _RETRY, _RETRY_V2 = "0", "1", "2"


# -- handles -----------------------------------------------------------------------------------------------------------


def retry_mark(topic: str) -> str:
    """Return how handles name a topic: the consumer's own, or a retry topic of it."""
    if not topic.startswith(RETRY_PREFIX):
        return _NORMAL
    return _RETRY_V2 if "+" in topic else _RETRY


def marked_topic(topic: str, group: str, mark: str) -> str:
    """Return the topic that a mark names (RocketMQ: getRealTopic). Raises ValueError for an unknown mark."""
    if mark == _NORMAL:
        return topic
    if mark == _RETRY:
        return pop_retry_topic(topic, group)
    if mark == _RETRY_V2:
        return pop_retry_topic_v2(topic, group)
    raise ValueError(f"{mark[:20]!r} is not the mark of a topic: 0, 1 or 2")


class PopHandle(NamedTuple):
    """The handle of a popped message (RocketMQ: extraInfo). Times are in ms; offsets are the queue's."""

    start_offset: int
    """Where the pop began in the queue."""
    pop_time: int
    invisible_time: int
    revive_queue_id: int
    mark: str
    broker_name: BrokerName
    queue_id: int
    queue_offset: int

    def __str__(self) -> str:
        return " ".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a handle; one without the last field, of older clients, has -1 there.

        RocketMQ's proxy adds the message's log offset, which is ignored like all that follows.

        Raises:
            ValueError: it is not a handle.
        """
        parts = text.split(" ")
        if len(parts) < 7:
            raise ValueError(f"{text[:80]!r} is not the handle of a popped message: it has 8 parts")
        start, pop_time, invisible_time, revive_queue_id = map(_number, parts[:4])
        queue_offset = _number(parts[7]) if len(parts) > 7 else -1
        return cls(
            start, pop_time, invisible_time, revive_queue_id, parts[4], parts[5], _number(parts[6]), queue_offset
        )

    @property
    def is_ordered(self) -> bool:
        """Whether the message was popped in order."""
        return self.revive_queue_id == ORDERED_REVIVE_QUEUE


def _number(text: str) -> int:
    if len(text) > 20 or not text.removeprefix("-").isdecimal():
        raise ValueError(f"{text[:20]!r} in the handle of a popped message is not a number")
    number = int(text)
    if not -(1 << 63) <= number < 1 << 63:
        raise ValueError(f"{text!r} in the handle of a popped message does not fit 64 bits")
    return number


def start_offset_info(topic: str, queue_id: int, start: int) -> str:
    """Return the part of `start_offset_info` for one queue."""
    return f"{retry_mark(topic)} {queue_id} {start}"


def msg_offset_info(topic: str, queue_id: int, offsets: Iterable[int]) -> str:
    """Return the part of `msg_offset_info` for one queue."""
    return f"{retry_mark(topic)} {queue_id} {','.join(map(str, offsets))}"


def order_count_info(topic: str, queue_id: int, offsets: Sequence[int], counts: dict[int, int]) -> str:
    """Return the part of `order_count_info` for one queue.

    Args:
        offsets: of the popped messages.
        counts: how often they were popped before, by offset; without those that were not.
    """
    mark = retry_mark(topic)
    parts = [f"{mark} qo{queue_id}%{offset} {count}" for offset, count in counts.items()]
    least = min(counts.values()) if counts and len(counts) == len(offsets) else 0
    return ";".join((*parts, f"{mark} {queue_id} {least}"))  # the last is what older clients read


# -- pops --------------------------------------------------------------------------------------------------------------


class PopMessageHeader(CommandHeader):
    """Header of 200050. Times are in ms.

    `queue_id` -1 pops any queue. `poll_time` is how long the broker may hold the request. `init_mode` tells where a
    group without an offset begins: 0 at the first message, 1 at the last. `exp` and `exp_type` are the filter.
    """

    consumer_group: GroupName
    topic: TopicName
    queue_id: I32
    max_msg_nums: I32
    invisible_time: I64
    poll_time: I64
    born_time: I64 = 0
    init_mode: I32 = 0
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopMessageResult(CommandHeader):
    """Answer to a pop, for the codes 0, 209 and 210; the body of a 0 is records back to back."""

    pop_time: I64 = 0
    invisible_time: I64 = 0
    revive_qid: I32 = 0
    rest_num: I64 = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class PeekMessageHeader(CommandHeader):
    """Header of 200052: look at what a pop would return. The answer is a `PopMessageResult` with code 0 or 19."""

    topic: TopicName
    queue_id: I32
    max_msg_nums: I32
    consumer_group: GroupName


class NotificationHeader(CommandHeader):
    """Header of 200054: wait until there is something to pop."""

    consumer_group: GroupName
    topic: TopicName
    queue_id: I32
    poll_time: I64
    born_time: I64 = 0
    order: bool = False
    attempt_id: str | None = None


class NotificationResult(CommandHeader):
    """Answer to 200054."""

    has_msg: bool = False
    polling_full: bool = False


class PollingInfoHeader(CommandHeader):
    """Header of 200055: how many pops wait?"""

    consumer_group: GroupName
    topic: TopicName
    queue_id: I32


class PollingInfoResult(CommandHeader):
    """Answer to 200055."""

    polling_num: I32 = 0


# -- acknowledgements --------------------------------------------------------------------------------------------------


class AckMessageHeader(CommandHeader):
    """Header of 200051. `topic` is that of the record's queue: of a retried message its retry topic."""

    consumer_group: GroupName
    topic: PoppedTopicName
    queue_id: I32
    extra_info: str
    offset: I64


class ChangeInvisibleTimeHeader(CommandHeader):
    """Header of 200053: as that of 200051, with the new time in ms from now.

    With `suspend` the next delivery is no further attempt; RocketMQ's brokers count it as one.
    """

    consumer_group: GroupName
    topic: PoppedTopicName
    queue_id: I32
    extra_info: str
    offset: I64
    invisible_time: I64
    suspend: bool = False


class ChangeInvisibleTimeResult(CommandHeader):
    """Answer to 200053: what the message's new handle has."""

    pop_time: I64 = 0
    invisible_time: I64 = 0
    revive_qid: I32 = 0


class BatchAck(Members):
    """Acknowledged messages of one check point. `topic` is the consumer's; bit i of `bits` is `start_offset` + i."""

    consumer_group: GroupName = field(name="c")
    topic: PoppedTopicName = field(name="t")
    mark: str = field(default=_NORMAL, name="r")
    start_offset: I64 = field(default=0, name="so")
    queue_id: I32 = field(default=0, name="q")
    revive_queue_id: I32 = field(default=0, name="rq")
    pop_time: I64 = field(default=0, name="pt")
    invisible_time: I64 = field(default=0, name="it")
    bits: str = field(default="", name="b")
    """In Base64, the first byte with bits 0 to 7."""

    def offsets(self) -> list[int]:
        """Return the acknowledged queue offsets.

        Raises:
            BodyMalformed: `bits` is not Base64, or has more messages than a check point.
        """
        try:
            number = int.from_bytes(base64.b64decode(self.bits, validate=True), "little")
        except ValueError as error:
            raise BodyMalformed(f"the bits {self.bits[:40]!r} of acknowledged messages: {error}") from None
        if number.bit_count() > POP_MESSAGES_MAX:
            raise BodyMalformed(
                f"{number.bit_count()} messages of one check point are acknowledged, but it has at most "
                f"{POP_MESSAGES_MAX}"
            )
        found = []
        while number:
            lowest = number & -number
            found.append(self.start_offset + lowest.bit_length() - 1)
            number ^= lowest
        return found


class BatchAckBody(Body):
    """Body of 200151."""

    broker_name: BrokerName = ""
    acks: list[BatchAck] = []


# -- assignment --------------------------------------------------------------------------------------------------------


class QueryAssignmentBody(Body):
    """Body of 400: which queues does this member consume, and how?"""

    topic: TopicName
    consumer_group: GroupName
    client_id: ClientId
    strategy_name: str = "AVG"
    message_model: MessageModel = MessageModel.CLUSTERING


class MessageQueueAssignment(Members):
    """One queue of an assignment; queue id -1 with mode `POP`: all of that broker."""

    message_queue: MessageQueue
    mode: str = "PULL"


class QueryAssignmentResult(Body):
    """Answer body of 400. None: the broker cannot determine that now, and the member keeps what it has."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None


class MessageRequestMode(Body):
    """Body of 401: how a group consumes a topic, `PULL` or `POP`.

    A member that pops shares the queues of the `pop_share_queue_num` members that follow it; 0 or less: all queues.
    """

    topic: TopicName
    consumer_group: GroupName
    mode: str = "PULL"
    pop_share_queue_num: I32 = 0


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(
        RequestCode.POP_MESSAGE, PopMessageHeader, sender=Sender.CONSUMER, topics=Right.READ, groups=Right.READ,
        kind=Kind.CHANGES, pops=True,
    ),
    RequestType(
        RequestCode.PEEK_MESSAGE, PeekMessageHeader, sender=Sender.CONSUMER, topics=Right.READ, groups=Right.READ,
        kind=Kind.MASTER_ONLY, pops=True,
    ),
    RequestType(
        RequestCode.NOTIFICATION, NotificationHeader, sender=Sender.CONSUMER, topics=Right.READ, groups=Right.READ,
        kind=Kind.MASTER_ONLY,
    ),
    RequestType(
        RequestCode.POLLING_INFO, PollingInfoHeader, topics=Right.READ, groups=Right.READ, kind=Kind.MASTER_ONLY
    ),
    RequestType(
        RequestCode.ACK_MESSAGE, AckMessageHeader, sender=Sender.CONSUMER, topics=Right.READ, groups=Right.READ,
        kind=Kind.CHANGES,
    ),
    RequestType(
        RequestCode.BATCH_ACK_MESSAGE, body=BatchAckBody, sender=Sender.CONSUMER, topics=Right.READ,
        groups=Right.READ, kind=Kind.CHANGES,
    ),
    RequestType(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ChangeInvisibleTimeHeader, sender=Sender.CONSUMER,
        topics=Right.READ, groups=Right.READ, kind=Kind.CHANGES,
    ),
    RequestType(RequestCode.POP_ROLLBACK, cluster=Right.ADMIN),
    RequestType(
        RequestCode.QUERY_ASSIGNMENT, body=QueryAssignmentBody, sender=Sender.CONSUMER, topics=Right.READ,
        groups=Right.READ, kind=Kind.MASTER_ONLY,
    ),
    RequestType(
        RequestCode.SET_MESSAGE_REQUEST_MODE, body=MessageRequestMode, cluster=Right.ADMIN, kind=Kind.CHANGES,
        changes_tables=True, refusal=ResponseCode.SYSTEM_ERROR,
    ),
)  # fmt: skip
