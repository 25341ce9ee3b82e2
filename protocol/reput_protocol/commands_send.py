"""Headers of sends: RocketMQ's 10, 310, 320 and our PutMessage (RocketMQ: SendMessageRequestHeader and its V2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Self

from reput_protocol.codes import AckLevel, Dedup, RequestCode
from reput_protocol.command_header import I32, I64, CommandHeader, Wire, read_fields, write_fields
from reput_protocol.header_model import HeaderType, Value, text_ext
from reput_protocol.names import DEFAULT_TOPIC

_MSGPACK: Final = HeaderType.MSGPACK.value
_I32_MAX: Final = 0x7FFF_FFFF
_I64_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
_ACK_LEVELS: dict[Value, AckLevel] = {level.value: level for level in AckLevel}
_DEDUPS: dict[Value, Dedup | None] = {
    None: None,
    Dedup.MARK.value: Dedup.MARK,
    Dedup.CHECK.value: Dedup.CHECK,
}


@dataclass(slots=True)
class SendMessageHeader(CommandHeader):
    """Header of 10 (long names), 310 and 320 (one letter for each); the body is a message or a client batch.

    A negative `queue_id` leaves the choice of the queue to the broker. `ack` is ours; RocketMQ's clients say with the
    property `WAIT` whether they wait for the flush. So is `dedup`, with which the message has a unique id and is not
    stored twice in the broker's window.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.SEND_MESSAGE

    producer_group: str
    topic: str
    queue_id: I32
    sys_flag: I32 = 0
    born_timestamp: I64 = 0
    flag: I32 = 0
    properties: str = ""
    default_topic: str = DEFAULT_TOPIC
    default_topic_queue_nums: I32 = 4
    reconsume_times: I32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: I32 | None = None
    batch: bool | None = None
    broker_name: Annotated[str | None, Wire("bname")] = None
    ack: AckLevel | None = None
    dedup: Dedup | None = None

    @classmethod
    def from_ext_v2(cls, ext: Mapping[str, Value]) -> Self:
        """Read the one-letter form of 310 and 320; raises as `from_ext` does, naming the letter."""
        header: Self = read_fields(cls, ext, _LETTERS)
        return header

    def to_ext_v2(self, header_type: int) -> dict[str, Value]:
        """Return the one-letter form of 310 and 320."""
        return write_fields(self, header_type, _LETTERS)


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
    "ack": "ack",
    "dedup": "dedup",
}


@dataclass(slots=True)
class SendMessageResult(CommandHeader):
    """Answer to 10, 310 and 320. Java's client fails without the first three fields.

    `msg_id` is the offset message id; of a batch, all ids joined by commas, and `queue_offset` is the first. The last
    two fields are ours, for the bundled client only: when it was stored, and which ack level was reached.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.SEND_MESSAGE

    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    msg_region: Annotated[str | None, Wire("MSG_REGION")] = "DefaultRegion"
    trace_on: Annotated[str | None, Wire("TRACE_ON")] = "true"
    store_timestamp: I64 | None = None
    ack: AckLevel | None = None


@dataclass(slots=True)
class PutMessageHeader(CommandHeader):
    """Header of PutMessage, the native send; the body is a block of `count` records of one topic and queue.

    With `dedup` every record has a unique id, and no message is stored twice in the broker's window.
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.PUT_MESSAGE

    topic: str
    queue_id: I32
    count: I32
    ack: AckLevel = AckLevel.FLUSHED
    dedup: Dedup | None = None

    @classmethod
    def from_ext(cls, ext: Mapping[str, Value]) -> Self:
        """Read the fields; see `CommandHeader.from_ext`. The straight way takes what our client sends."""
        get = ext.get
        dedup = get("dedup")
        topic = get("topic")
        queue_id = get("queueId")
        count = get("count")
        ack = _ACK_LEVELS.get(get("ack", "flushed"))
        if (
            type(topic) is str
            and type(queue_id) is int
            and type(count) is int
            and ack is not None
            and 0 <= queue_id <= _I32_MAX
            and 0 <= count <= _I32_MAX
            and dedup in _DEDUPS
        ):
            return cls(topic, queue_id, count, ack, _DEDUPS[dedup])
        header: Self = read_fields(cls, ext)
        return header

    def to_ext(self, header_type: int) -> dict[str, Value]:
        """Return the fields; see `CommandHeader.to_ext`."""
        ext: dict[str, Value] = {
            "topic": self.topic,
            "queueId": self.queue_id,
            "count": self.count,
            "ack": self.ack,
        }
        if self.dedup is not None:
            ext["dedup"] = self.dedup
        return ext if header_type == _MSGPACK else dict(text_ext(ext))


@dataclass(slots=True)
class PutMessageResult(CommandHeader):
    """Answer to PutMessage: where the block starts and which ack level was reached.

    The client derives every message's queue offset, physical offset and offset message id from these fields and the
    sizes of the records that it sent. `store_host` is "ip:port".
    """

    REQUEST_CODE: ClassVar[RequestCode] = RequestCode.PUT_MESSAGE

    queue_id: I32
    queue_offset: I64
    physical_offset: I64
    store_timestamp: I64
    store_host: str
    ack: AckLevel

    @classmethod
    def from_ext(cls, ext: Mapping[str, Value]) -> Self:
        """Read the fields; see `CommandHeader.from_ext`. The straight way takes what our broker sends."""
        get = ext.get
        queue_id = get("queueId")
        queue_offset = get("queueOffset")
        physical_offset = get("physicalOffset")
        store_timestamp = get("storeTimestamp")
        store_host = get("storeHost")
        ack = _ACK_LEVELS.get(get("ack"))
        if (
            type(queue_id) is int
            and type(queue_offset) is int
            and type(physical_offset) is int
            and type(store_timestamp) is int
            and type(store_host) is str
            and ack is not None
            and 0 <= queue_id <= _I32_MAX
            and 0 <= queue_offset <= _I64_MAX
            and 0 <= physical_offset <= _I64_MAX
            and 0 <= store_timestamp <= _I64_MAX
        ):
            return cls(queue_id, queue_offset, physical_offset, store_timestamp, store_host, ack)
        result: Self = read_fields(cls, ext)
        return result

    def to_ext(self, header_type: int) -> dict[str, Value]:
        """Return the fields; see `CommandHeader.to_ext`."""
        ext: dict[str, Value] = {
            "queueId": self.queue_id,
            "queueOffset": self.queue_offset,
            "physicalOffset": self.physical_offset,
            "storeTimestamp": self.store_timestamp,
            "storeHost": self.store_host,
            "ack": self.ack,
        }
        return ext if header_type == _MSGPACK else dict(text_ext(ext))
