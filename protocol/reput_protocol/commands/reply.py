"""Headers of replies: 324 and 325 send one (as 10 and 310), 326 delivers it to the requester."""

from __future__ import annotations

from typing import Final, Self

from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import I32, I64, CommandHeader, Content, Kind, RequestType, Sender
from reput_protocol.commands.send import SendMessageHeader, SendMessageV2Header
from reput_protocol.names import ProducerGroupName, TopicName
from reput_protocol.rights import Right


class PushReplyHeader(CommandHeader):
    """Header of 326, sent by the broker: the reply to a request; the body is the reply's.

    (RocketMQ: ReplyMessageRequestHeader.) `born_host` is the replier's `ip:port`, `store_host` the broker's. The
    requester finds its request by the property `CORRELATION_ID`, and always answers 0.
    """

    producer_group: ProducerGroupName
    topic: TopicName
    default_topic: TopicName
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    born_host: str
    store_host: str
    store_timestamp: I64
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool | None = None

    @classmethod
    def of(
        cls, reply: SendMessageHeader, properties: str, *, born_host: str, store_host: str, store_timestamp_ms: int
    ) -> Self:
        """Return the header that delivers a reply sent with `reply` (324 or 325)."""
        return cls(
            reply.producer_group,
            reply.topic,
            reply.default_topic,
            reply.default_topic_queue_nums,
            reply.queue_id,
            reply.sys_flag,
            reply.born_timestamp,
            reply.flag,
            born_host,
            store_host,
            store_timestamp_ms,
            properties,
            reply.reconsume_times,
            reply.unit_mode,
        )


# -- the requests ------------------------------------------------------------------------------------------------------

_TEMPLATE: Final = "the broker's settings of new topics count"
_PUSHES: Final = "write on the reply topic of the cluster"

REQUESTS: Final = (
    RequestType(
        RequestCode.SEND_REPLY_MESSAGE, SendMessageHeader, sender=Sender.CONSUMER, topics=Right.WRITE,
        fields={"defaultTopic": _TEMPLATE}, handler_checks=_PUSHES, content=Content.MESSAGES,
        kind=Kind.CHANGES, pool="reply",
    ),
    RequestType(
        RequestCode.SEND_REPLY_MESSAGE_V2, SendMessageV2Header, sender=Sender.CONSUMER, topics=Right.WRITE,
        fields={"c": _TEMPLATE}, handler_checks=_PUSHES, content=Content.MESSAGES, kind=Kind.CHANGES, pool="reply",
    ),
    RequestType(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, PushReplyHeader, sender=Sender.TO_CLIENTS),
)  # fmt: skip
