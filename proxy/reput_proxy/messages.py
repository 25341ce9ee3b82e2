"""Messages as gRPC clients have them, from and to those of brokers."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from reput_client.errors import DamagedMessage, UnsupportedCompression
from reput_client.pop.popped import Popped
from reput_client.received import ReceivedMessage
from reput_protocol import properties as names
from reput_protocol.errors import InvalidMessage
from reput_protocol.names import check_send_topic
from reput_protocol.properties import check_key, check_tag, check_text, split_keys
from reput_protocol.property_rules import rule_of
from reput_protocol.record.message import Message
from reput_proxy import log
from reput_proxy import messaging_pb2 as pb
from reput_proxy.clients import receipt_handle
from reput_proxy.rejections import Code, Rejected, check_name

M = TypeVar("M", bound=ReceivedMessage[Any])

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
_PROPERTIES_MAX: Final = 128
_PROPERTIES_BYTES_MAX: Final = 16 * 1024
_MESSAGE_GROUP_BYTES_MAX: Final = 64
_DELAY_MAX_S: Final = 10**11
_GZIP_STREAMS_MAX: Final = 64
"""Of a body; each costs a copy of what follows it."""
ATTEMPTS_MAX: Final = (1 << 31) - 1
"""As a field can say; records and settings of groups may have more."""
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
BORN_HOST: Final = "__BORNHOST"
_SYSTEM: Final = frozenset(
    {
        *(value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)),
        *("BUYER_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "EXTEND_UNIQ_INFO", "DUP_INFO"),
        *("POP_CK_OFFSET", "PROPERTY_FORWARD_QUEUE_ID", "REDIRECT", "BORN_TIMESTAMP", "TOPIC_SYS_FLAG"),
        *("GROUP_SYS_FLAG", "TIMER_DELAY_LEVEL", TRACE_CONTEXT, BORN_HOST),
    }
) - {names.MSG_TYPE_REPLY}
"""Properties that are not the application's (RocketMQ: MessageConst.STRING_HASH_SET)."""


_DELAYS: Final = (names.DELAY, names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_OUT_MS)
"""Properties of delayed messages, as RocketMQ's brokers deliver them; Reput's deliver them without."""


def is_system(name: str) -> bool:
    """Return whether a property is one of the system's."""
    return name in _SYSTEM or rule_of(name) is not None


# -- from clients ------------------------------------------------------------------------------------------------------


def kind_of(message: pb.Message) -> pb.MessageType:
    """Return what a sent message is: by its type, and by its fields if the client leaves that open."""
    system = message.system_properties
    if system.message_type == pb.LITE or system.lite_topic:
        return pb.LITE
    if system.message_type == pb.TRANSACTION:
        return pb.TRANSACTION
    if system.HasField("delivery_timestamp"):
        return pb.DELAY
    if system.message_group:
        return pb.FIFO
    return pb.PRIORITY if system.HasField("priority") else pb.NORMAL


def to_send(message: pb.Message, trace: Mapping[str, str]) -> Message:
    """Return a message of a client as the producer sends it, without its message group.

    Args:
        trace: properties with the trace context of the call, for a message that has none.

    Raises:
        Rejected: it cannot be sent; the code says what is wrong.
    """
    topic, system = message.topic.name, message.system_properties
    check_name(check_send_topic, topic, Code.ILLEGAL_TOPIC)
    if kind_of(message) == pb.LITE:
        raise Rejected(Code.UNSUPPORTED, "lite topics are not supported; send to a topic of the type NORMAL or FIFO")
    tag = system.tag if system.HasField("tag") and system.tag else None
    if tag is not None:
        if "|" in tag:
            raise Rejected(Code.ILLEGAL_MESSAGE_TAG, f"tag {tag[:80]!r} contains |, which joins tags")
        check_name(check_tag, tag, Code.ILLEGAL_MESSAGE_TAG)
    keys = [key for text in system.keys for key in split_keys(text)]
    for key in keys:
        check_name(check_key, key, Code.ILLEGAL_MESSAGE_KEY)
    check_name(check_key, system.message_id, Code.ILLEGAL_MESSAGE_ID)
    if system.message_group:
        _check_message_group(system.message_group)
    delay: dict[str, Any] = {}
    if system.HasField("delivery_timestamp"):
        delay["deliver_at"] = _moment(system.delivery_timestamp)
    if kind_of(message) == pb.PRIORITY:
        delay["priority"] = system.priority
    properties = _properties(message, tag)
    if "traceparent" not in properties:
        properties.update(trace)
    try:
        return Message(
            topic, _body(message), tag=tag, keys=keys, properties=properties, unique_id=system.message_id, **delay
        )
    except InvalidMessage as error:
        raise Rejected(Code.BAD_REQUEST, str(error)) from None


def _check_message_group(group: str) -> None:
    check_name(lambda text: check_text("message group", text), group, Code.ILLEGAL_MESSAGE_GROUP)
    if len(group.encode()) >= _MESSAGE_GROUP_BYTES_MAX or not group.strip():
        raise Rejected(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"a message group has fewer than {_MESSAGE_GROUP_BYTES_MAX} bytes, and not only blanks",
        )


def _properties(message: pb.Message, tag: str | None) -> dict[str, str]:
    """Return the properties that are stored besides tag, keys and id."""
    system = message.system_properties
    # Readers of records take one without a value for none.
    properties = {name: value for name, value in message.user_properties.items() if value}
    if len(properties) > _PROPERTIES_MAX:
        raise Rejected(Code.MESSAGE_PROPERTIES_TOO_LARGE, f"a message has at most {_PROPERTIES_MAX} properties")
    size = len((tag or "").encode()) + sum(len(key.encode()) for key in system.keys)
    for name, value in properties.items():
        if is_system(name):
            raise Rejected(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name!r} is the system's")
        for text in (name, value):
            check_name(lambda text: check_text("a property", text), text, Code.ILLEGAL_MESSAGE_PROPERTY_KEY)
        size += len(name.encode()) + len(value.encode())
    if size > _PROPERTIES_BYTES_MAX:
        raise Rejected(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties, tag and keys have {size} bytes, and at most {_PROPERTIES_BYTES_MAX} are taken",
        )
    if system.born_host and system.born_host.isprintable():
        properties[BORN_HOST] = system.born_host[:255]
    if system.HasField("trace_context") and system.trace_context.isprintable() and system.trace_context:
        properties[TRACE_CONTEXT] = system.trace_context
    return properties


def _body(message: pb.Message) -> bytes:
    body = message.body
    if not body:
        raise Rejected(Code.MESSAGE_BODY_EMPTY, "the body is empty")
    if len(body) > BODY_BYTES_MAX:
        raise Rejected(
            Code.MESSAGE_BODY_TOO_LARGE, f"the body has {len(body)} bytes, and at most {BODY_BYTES_MAX} are taken"
        )
    if message.system_properties.body_encoding == pb.GZIP:
        return _inflated(body)
    return body


def _inflated(body: bytes) -> bytes:
    """Return a body without its compression: consumers of other protocols cannot read gzip.

    It may consist of several gzip streams, which are joined, as every reader of gzip does.
    """
    plain = b""
    for _ in range(_GZIP_STREAMS_MAX):
        if not body:
            break
        inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        try:
            plain += inflater.decompress(body, BODY_BYTES_MAX + 1 - len(plain))
        except zlib.error as error:
            raise Rejected(Code.MESSAGE_CORRUPTED, f"the body is not gzip: {error}") from None
        if len(plain) > BODY_BYTES_MAX:
            raise Rejected(Code.MESSAGE_BODY_TOO_LARGE, f"the body inflates to more than {BODY_BYTES_MAX} bytes")
        if not inflater.eof:
            raise Rejected(Code.MESSAGE_CORRUPTED, "the body ends before its gzip stream")
        body = inflater.unused_data
    if body:
        raise Rejected(Code.MESSAGE_CORRUPTED, f"the body has more than {_GZIP_STREAMS_MAX} gzip streams")
    if not plain:
        raise Rejected(Code.MESSAGE_BODY_EMPTY, "the body is empty")
    return plain


def _moment(timestamp: Timestamp) -> datetime:
    try:
        if not 0 <= timestamp.seconds < _DELAY_MAX_S:
            raise ValueError("out of range")
        moment: datetime = timestamp.ToDatetime(UTC)
    except (ValueError, OverflowError) as error:
        raise Rejected(Code.ILLEGAL_DELIVERY_TIME, f"the delivery time is not valid: {error}") from None
    return moment


# -- to clients --------------------------------------------------------------------------------------------------------


def to_client(message: ReceivedMessage[Any], topic: pb.Resource) -> pb.Message:
    """Return a stored message for a client; a popped one with its receipt handle.

    Raises:
        DamagedMessage: it fails its checksum.
    """
    properties = message.properties
    try:
        body, encoding = message.body, pb.IDENTITY
    except UnsupportedCompression:
        body, encoding = message.raw_body, pb.ENCODING_UNSPECIFIED
    system = pb.SystemProperties(
        message_id=message.message_id,
        body_digest=pb.Digest(type=pb.MD5, checksum=hashlib.md5(body, usedforsecurity=False).hexdigest().upper()),
        body_encoding=encoding,
        message_type=_type_of(message, properties),
        born_timestamp=timestamp_of(message.born_timestamp_ms),
        born_host=properties.get(BORN_HOST) or str(message.born_host),
        store_timestamp=timestamp_of(message.store_timestamp_ms),
        store_host=str(message.store_host),
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        delivery_attempt=min(max(message.reconsume_times, 0) + 1, ATTEMPTS_MAX),
        keys=message.keys,
    )
    if message.tag is not None:
        system.tag = message.tag
    if names.SHARDING_KEY in properties:
        system.message_group = properties[names.SHARDING_KEY]
    if TRACE_CONTEXT in properties:
        system.trace_context = properties[TRACE_CONTEXT]
    priority = message.priority
    if priority is not None:
        system.priority = priority
    due = properties.get(names.TIMER_DELIVER_MS) or properties.get(names.TIMER_OUT_MS, "")
    if due.isascii() and due.isdecimal() and len(due) < 15:
        system.delivery_timestamp.CopyFrom(timestamp_of(int(due)))
    if names.DLQ_ORIGIN_TOPIC in properties and names.DLQ_ORIGIN_MESSAGE_ID in properties:
        system.dead_letter_queue.topic = properties[names.DLQ_ORIGIN_TOPIC]
        system.dead_letter_queue.message_id = properties[names.DLQ_ORIGIN_MESSAGE_ID]
    if isinstance(message, Popped):
        handle = message._handle
        system.receipt_handle = receipt_handle(handle, message.physical_offset)
        system.invisible_duration.CopyFrom(duration_of(handle.invisible_time))
    users = {name: value for name, value in properties.items() if not is_system(name)}
    return pb.Message(topic=topic, user_properties=users, system_properties=system, body=body)


def to_clients(messages: Iterable[M], topic: pb.Resource) -> list[tuple[M, pb.Message]]:
    """Return those messages that can be read, each with what a client gets of it; log the others."""
    found = []
    for message in messages:
        try:
            found.append((message, to_client(message, topic)))
        except DamagedMessage as error:
            log.warning("message_damaged", error=str(error))
        except Exception as error:  # of what any producer may have stored: the others are good
            log.error("message_not_converted", error, topic=message.topic, message_id=message.message_id)
    return found


def _type_of(message: ReceivedMessage[Any], properties: dict[str, str]) -> pb.MessageType:
    if properties.get(names.TRAN_MSG) == "true":
        return pb.TRANSACTION
    if not properties.keys().isdisjoint(_DELAYS):
        return pb.DELAY
    if names.SHARDING_KEY in properties:
        return pb.FIFO
    return pb.NORMAL if message.priority is None else pb.PRIORITY


def timestamp_of(time_ms: int) -> Timestamp:
    """Return a time in ms since 1970."""
    return Timestamp(seconds=time_ms // 1000, nanos=time_ms % 1000 * 1_000_000)


def duration_of(time_ms: int) -> Duration:
    """Return a duration in ms."""
    return Duration(seconds=time_ms // 1000, nanos=time_ms % 1000 * 1_000_000)


def ms_of(time: Duration | Timestamp) -> int:
    """Return a duration, or a time since 1970, in ms."""
    return int(time.seconds) * 1000 + int(time.nanos) // 1_000_000
