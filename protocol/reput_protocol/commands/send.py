"""Headers of sends: RocketMQ's 10, 310, 320 (SendMessageRequestHeader and its V2) and Reput's PutMessage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

from msgspec import defstruct, field
from msgspec.structs import astuple, fields

from reput_protocol.codes import AckLevel, Dedup, RequestCode
from reput_protocol.commands.base import I32, I64, CommandHeader, Content, Kind, RequestType, Sender
from reput_protocol.names import DEFAULT_TOPIC, BrokerName, ProducerGroupName, TopicName
from reput_protocol.rights import Right
from reput_protocol.wire.header import Value


class SendMessageHeader(CommandHeader):
    """Header of 10 (long names), 310 and 320 (one letter each); the body is a message or a client batch.

    A negative `queue_id` lets the broker choose. `ack` and `dedup` are Reput's; RocketMQ's clients ask for the flush by
    the property `WAIT`. With `dedup` the message has a unique id and is not stored twice within the broker's window, or
    within `dedup_within` ms if that is longer.
    """

    producer_group: ProducerGroupName
    topic: TopicName
    queue_id: I32
    sys_flag: I32 = 0
    born_timestamp: I64 = 0
    flag: I32 = 0
    properties: str = ""
    default_topic: TopicName = DEFAULT_TOPIC
    default_topic_queue_nums: I32 = 4
    reconsume_times: I32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: I32 | None = None
    batch: bool | None = None
    broker_name: BrokerName | None = field(default=None, name="bname")
    ack: AckLevel | None = None
    dedup: Dedup | None = None
    dedup_within: I64 | None = None
    create_topic: bool | None = None

    @classmethod
    def from_ext_v2(cls, ext: Mapping[str, Value]) -> Self:
        """Read the one-letter form; raises like `from_ext`, naming the letter."""
        return cls(*astuple(SendMessageV2Header.from_ext(ext)))

    def to_ext_v2(self, header_type: int) -> dict[str, Value]:
        """Return the one-letter form."""
        letters: CommandHeader = SendMessageV2Header(*astuple(self))
        return letters.to_ext(header_type)


_LETTERS: Final = {
    "producer_group": "a",
    "topic": "b",
    "default_topic": "c",
    "default_topic_queue_nums": "d",
    "queue_id": "e",
    "sys_flag": "f",
    "born_timestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsume_times": "j",
    "unit_mode": "k",
    "max_reconsume_times": "l",
    "batch": "m",
    "broker_name": "n",
    "dedup_within": "dedupWithin",
    "create_topic": "createTopic",
}
SendMessageV2Header: Final[Any] = defstruct(
    "SendMessageV2Header",
    [(known.name, known.type, field(default=known.default)) for known in fields(SendMessageHeader)],
    bases=(CommandHeader,),
    rename=_LETTERS,
)


class SendMessageResult(CommandHeader):
    """Answer to 10, 310 and 320. Java's client fails without the first three fields.

    `msg_id` is the offset message id; for a batch, all ids separated by commas, and `queue_offset` is the first. By
    `recall_handle` a message with a deliver time is cancelled (`RecallHandle`). The last two fields, store time and ack
    level reached, are for Reput's own client only.
    """

    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    msg_region: str | None = field(default="DefaultRegion", name="MSG_REGION")
    trace_on: str | None = field(default="true", name="TRACE_ON")
    recall_handle: str | None = None
    store_timestamp: I64 | None = None
    ack: AckLevel | None = None


class PutMessageHeader(CommandHeader):
    """Header of PutMessage, the native send; the body is a block of `count` records of one topic and queue.

    With `dedup` every record has a unique id, and none is stored twice within the broker's window, or within
    `dedup_within` ms if that is longer. With `create_topic` False the topic is not created.
    """

    topic: TopicName
    queue_id: I32
    count: I32
    ack: AckLevel = AckLevel.FLUSHED
    dedup: Dedup | None = None
    dedup_within: I64 | None = None
    create_topic: bool | None = None


class PutMessageResult(CommandHeader):
    """Answer to PutMessage: where the block starts, and the ack level reached.

    With the sizes of its records, the client derives every message's offsets and offset message id. `store_host` is
    "ip:port".
    """

    queue_id: I32
    queue_offset: I64
    physical_offset: I64
    store_timestamp: I64
    store_host: str
    ack: AckLevel


# -- the requests ------------------------------------------------------------------------------------------------------

_TEMPLATE: Final = "the broker's settings of new topics count"

REQUESTS: Final = (
    RequestType(
        RequestCode.SEND_MESSAGE, SendMessageHeader, sender=Sender.PRODUCER, topics=Right.WRITE,
        fields={"defaultTopic": _TEMPLATE}, content=Content.PUT, kind=Kind.CHANGES, pool="send",
    ),
    RequestType(
        RequestCode.SEND_MESSAGE_V2, SendMessageV2Header, sender=Sender.PRODUCER, topics=Right.WRITE,
        fields={"c": _TEMPLATE}, content=Content.PUT, kind=Kind.CHANGES, pool="send",
    ),
    RequestType(
        RequestCode.SEND_BATCH_MESSAGE, SendMessageV2Header, sender=Sender.PRODUCER, topics=Right.WRITE,
        fields={"c": _TEMPLATE}, content=Content.PUT, kind=Kind.CHANGES, pool="send",
    ),
    RequestType(
        RequestCode.PUT_MESSAGE, PutMessageHeader, sender=Sender.PRODUCER, topics=Right.WRITE,
        content=Content.PUT, kind=Kind.CHANGES, pool="send",
    ),
)  # fmt: skip
