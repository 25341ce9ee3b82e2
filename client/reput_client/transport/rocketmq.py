"""Requests in the form of RocketMQ's brokers and name servers, which take JSON headers and no native requests.

A connection learns from its first answer which of the two it speaks to (see `channel.py`). Codes and fields are the
same for both, except for what is here: a PutMessage becomes a SEND_MESSAGE_V2 or, with several records, a
SEND_BATCH_MESSAGE; other native requests are refused by name before anything is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from typing_extensions import override

from reput_client.transport.channel import RequestTemplate
from reput_protocol.buffers import Buffer
from reput_protocol.codes import OWN_REQUEST_CODE_MIN, AckLevel, Dedup, RequestCode, ResponseCode
from reput_protocol.commands.send import PutMessageHeader, SendMessageHeader
from reput_protocol.errors import ErrorCode, MessageRefused, RequestNotSupported
from reput_protocol.kernel.records import record_starts
from reput_protocol.names import CLIENT_INNER_PRODUCER_GROUP
from reput_protocol.properties import encode_properties, find_property
from reput_protocol.wire.channel import Call
from reput_protocol.wire.header import Header, HeaderType, Value

STORE_TIME_UNKNOWN: Final = -1
"""The store time in a receipt of RocketMQ's broker, which does not send it."""
_WAIT: Final = "WAIT"
_SENDS: Final = frozenset({int(RequestCode.PUT_MESSAGE), int(RequestCode.SEND_MESSAGE_V2)})
_SYNC_FLUSH: Final = "SYNC_FLUSH"


class RocketBroker(NamedTuple):
    """What is known of one of RocketMQ's brokers.

    `flush_disk_type`: its setting `flushDiskType`; None if it did not tell.
    """

    name: str
    flush_disk_type: str | None = None

    @classmethod
    def of_config(cls, name: str, body: Buffer) -> RocketBroker:
        """Read the answer to GET_BROKER_CONFIG: lines of `key=value`."""
        for line in bytes(body).decode("utf-8", "replace").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "flushDiskType":
                return cls(name, value.strip())
        return cls(name)


class SentToRocket(Call, eq=False, kw_only=True):
    """A send to one of RocketMQ's brokers; its answer gets the ack level reached, which follows from its code."""

    ack: AckLevel

    @override
    def finish(self, header: Header, body: memoryview) -> None:
        is_reached = header.code == ResponseCode.SUCCESS
        header.ext["ack"] = (self.ack if is_reached else AckLevel.PAGE_CACHE).value
        header.ext["storeTimestamp"] = STORE_TIME_UNKNOWN
        super().finish(header, body)


class RocketRequest(NamedTuple):
    """A request in RocketMQ's form. `ack`: of a send, the level that its success means."""

    template: RequestTemplate
    body: Buffer
    ack: AckLevel | None


def rocket_form(template: RequestTemplate, body: Buffer, broker: RocketBroker) -> RocketRequest:
    """Return a request as RocketMQ's broker takes it.

    Raises:
        RequestNotSupported: RocketMQ has nothing for it, or cannot promise what it asks for.
    """
    code = template.code
    if code not in _SENDS:
        if code >= OWN_REQUEST_CODE_MIN:
            raise _refusal(broker, f"has no {RequestCode(code).name}, a request of Reput's brokers")
        return RocketRequest(template, body, None)
    ext = template.ext
    ack = AckLevel(str(ext["ack"])) if ext.get("ack") is not None else AckLevel.PAGE_CACHE
    _check_send(broker, ack, ext)
    waits = "false" if ack is AckLevel.PAGE_CACHE else "true"
    if code == RequestCode.PUT_MESSAGE:
        code, ext, body = _send_of_block(PutMessageHeader.from_ext(ext), body, waits)
    else:
        text = str(ext.get("i", "")).encode()
        ext = {**ext, "i": _with_wait(text, waits).decode("utf-8", "replace")}
    ext = {name: value for name, value in ext.items() if name not in ("ack", "dedup")}
    return RocketRequest(RequestTemplate(code, ext, flag=template.flag), body, ack)


def _check_send(broker: RocketBroker, ack: AckLevel, ext: Mapping[str, Value]) -> None:
    if ext.get("dedup") == Dedup.CHECK:
        raise _refusal(broker, "does not deduplicate messages; use a producer without deduplicate")
    if ack is AckLevel.REPLICATED:
        raise _refusal(
            broker,
            "does not report whether its slaves have a message; send with ack='page_cache', or 'flushed' if its "
            "flushDiskType is SYNC_FLUSH",
        )
    if ack is AckLevel.FLUSHED and broker.flush_disk_type != _SYNC_FLUSH:
        setting = broker.flush_disk_type or "unknown"
        raise _refusal(
            broker,
            f"acknowledges messages before they are on disk (its flushDiskType is {setting}); send with "
            "ack='page_cache', or set flushDiskType=SYNC_FLUSH there",
        )


def _refusal(broker: RocketBroker, reason: str) -> RequestNotSupported:
    return RequestNotSupported(
        ErrorCode.UNSUPPORTED_REQUEST, f"broker {broker.name} is RocketMQ's and {reason}; nothing was sent"
    )


def _send_of_block(
    header: PutMessageHeader, block: Buffer, waits: str
) -> tuple[int, Mapping[str, Value], Buffer]:
    # Of all commands and clients, few send to RocketMQ's brokers.
    from reput_protocol.record.put_block import BatchItem, encode_batch
    from reput_protocol.record.record import decode_record

    records = [decode_record(block, start) for start in record_starts(block, 0, len(block))]
    first = records[0]
    is_batch = len(records) > 1
    if any(record.sys_flag != first.sys_flag for record in records):
        # The client then sends its messages one by one.
        raise MessageRefused(
            ErrorCode.MALFORMED,
            "RocketMQ's batches hold no messages of different compression; send them alone",
        )
    if is_batch:
        body: Buffer = encode_batch(
            BatchItem(record.flag, bytes(record.body), bytes(record.properties)) for record in records
        )
        text = encode_properties({_WAIT: waits})
    else:
        body, text = first.body, _with_wait(first.properties, waits)
    send = SendMessageHeader(
        producer_group=CLIENT_INNER_PRODUCER_GROUP,
        topic=header.topic,
        queue_id=header.queue_id,
        sys_flag=first.sys_flag,
        born_timestamp=first.born_timestamp_ms,
        flag=0 if is_batch else first.flag,
        properties=text.decode("utf-8", "replace"),
        reconsume_times=0,
        unit_mode=False,
        batch=is_batch,
    )
    code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
    return int(code), send.to_ext_v2(HeaderType.JSON), body


def _with_wait(text: bytes, waits: str) -> bytes:
    if find_property(text, _WAIT.encode()) is not None:
        return text
    separator = b"" if not text or text.endswith(b"\x02") else b"\x02"
    return text + separator + encode_properties({_WAIT: waits})
