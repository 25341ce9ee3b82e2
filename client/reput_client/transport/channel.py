"""A client's requests: encoded once, copied for each frame, in the form that its server reads. No I/O, no clock.

RocketMQ's brokers and name servers take JSON headers and no native requests; a connection learns from its first answer
which of the two it speaks to. Codes and fields are the same for both, except for what `rocket_form` changes: a
PutMessage becomes a SEND_MESSAGE_V2 or, with several records, a SEND_BATCH_MESSAGE; other native requests are refused
by name before anything is sent.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct
from typing_extensions import override

from reput_protocol.buffers import Buffer
from reput_protocol.codes import (
    OWN_REQUEST_CODE_MIN,
    PROTOCOL_VERSION,
    ROCKETMQ_VERSION,
    AckLevel,
    Dedup,
    LanguageCode,
    RequestCode,
    ResponseCode,
)
from reput_protocol.commands.send import PutMessageHeader, SendMessageHeader
from reput_protocol.errors import ErrorCode, FrameTooLarge, MessageRefused, RequestNotSupported
from reput_protocol.kernel.records import record_starts
from reput_protocol.names import CLIENT_INNER_PRODUCER_GROUP
from reput_protocol.properties import encode_properties, find_property
from reput_protocol.wire.channel import Call, Channel, Peer, Waiter
from reput_protocol.wire.frames import HEADER_BYTES_MAX, encode_frame_head, encode_msgpack_header
from reput_protocol.wire.header import Header, HeaderType, Value, text_ext
from reput_protocol.wire.signature import (
    REPUT_SIGNATURE,
    REPUT_SIGNATURE_LENGTH,
    Credentials,
    RequestSigner,
    request_content,
    signed_by,
    user_fields,
)

_HEAD: Final = struct.Struct(">II")
_OPAQUE: Final = struct.Struct(">I")
# Its msgpack form occurs nowhere else in a header, so that the opaque can be replaced.
_OPAQUE_MARK: Final = 0x7E5A_A5E7
_DRAINING: Final = f"{ErrorCode.DRAINING.name}: "
_PYTHON: Final = int(LanguageCode.PYTHON)
_UNKNOWN: Final = Peer.UNKNOWN
_REPUT: Final = Peer.REPUT
STORE_TIME_UNKNOWN: Final = -1
"""The store time in a receipt of RocketMQ's broker, which does not send it."""
_WAIT: Final = "WAIT"
_SENDS: Final = frozenset({int(RequestCode.PUT_MESSAGE), int(RequestCode.SEND_MESSAGE_V2)})
_SYNC_FLUSH: Final = "SYNC_FLUSH"


class OnewayCall(Call, eq=False):
    """A frame without an answer: a oneway request, or our answer to the broker.

    Done, without a header, when the system has taken the whole frame.
    """

    def written(self) -> None:
        """Note that the system has taken all of it."""
        self.done = True
        self.waiter.notify()


class _SignedForm(NamedTuple):
    """The msgpack header of a template with a user: all but the opaque and Reput's signature, which ends it."""

    credentials: Credentials
    prefix: bytes
    middle: bytes
    content: bytes
    """What is signed, before the body."""
    size: int
    """Of the whole header."""


class RequestTemplate(Struct, eq=False):
    """A request whose header differs only in its opaque and signature: encoded once, copied for each frame."""

    code: int
    ext: Mapping[str, Value]
    flag: int = 0
    _head_bytes: int = 0
    """0: it is not encoded yet."""
    _prefix: bytes = b""
    _suffix: bytes = b""
    _signed: _SignedForm | None = None

    def _header(self, opaque: int, version: int) -> Header:
        return Header(self.code, opaque, self.flag, None, dict(self.ext), _PYTHON, version)

    def encode(self, opaque: int, body_bytes: int, peer: Peer = _REPUT) -> bytes:
        """Return the frame up to its body, as `peer` reads it.

        Raises:
            FrameTooLarge: the header is larger than a server accepts, which would close the connection.
        """
        if peer is not _REPUT:
            version = PROTOCOL_VERSION if peer is _UNKNOWN else ROCKETMQ_VERSION
            return _checked(encode_frame_head(self._header(opaque, version), HeaderType.JSON, body_bytes))
        if not self._head_bytes:
            encoded = _checked(encode_msgpack_header(self._header(_OPAQUE_MARK, PROTOCOL_VERSION)))
            # msgpack writes the mark as 0xce and four bytes, and so can any opaque be written.
            self._prefix, _, self._suffix = encoded.partition(_OPAQUE.pack(_OPAQUE_MARK))
            self._head_bytes = len(encoded)
        size = self._head_bytes
        return b"%b%b%b%b" % (
            _HEAD.pack(4 + size + body_bytes, HeaderType.MSGPACK << 24 | size),
            self._prefix,
            _OPAQUE.pack(opaque),
            self._suffix,
        )

    def encode_signed(self, signer: RequestSigner, opaque: int, body: tuple[Buffer, ...]) -> bytes:
        """Return the frame up to its body, which consists of the pieces `body`, with a signature in Reput's form."""
        form = self.signed_form(signer.credentials)
        signature = signer.signature(form.content, *body).encode()
        size = form.size
        return b"%b%b%b%b%b" % (
            _HEAD.pack(4 + size + sum(map(len, body)), HeaderType.MSGPACK << 24 | size),
            form.prefix,
            _OPAQUE.pack(opaque),
            form.middle,
            signature,
        )

    def encode_for_rocketmq(self, credentials: Credentials, opaque: int, body: tuple[Buffer, ...], peer: Peer) -> bytes:
        """Like `encode_signed`, with a signature in RocketMQ's form and a JSON header, which every server reads."""
        header = self._header(opaque, PROTOCOL_VERSION if peer is not Peer.ROCKETMQ else ROCKETMQ_VERSION)
        header.ext = signed_by(credentials, text_ext(header.ext), *body, version=header.version)
        return _checked(encode_frame_head(header, HeaderType.JSON, sum(map(len, body))))

    def signed_form(self, credentials: Credentials) -> _SignedForm:
        """Return the header for the requests of a user."""
        form = self._signed
        if form is None or form.credentials is not credentials:
            form = self._signed = self._sign(credentials)
        return form

    def _sign(self, credentials: Credentials) -> _SignedForm:
        header = self._header(_OPAQUE_MARK, PROTOCOL_VERSION)
        header.ext = {**header.ext, **user_fields(credentials)}
        content = request_content(header.code, header.flag, header.version, header.ext)
        header.ext[REPUT_SIGNATURE] = "?" * REPUT_SIGNATURE_LENGTH  # the last field, and so the end of the header
        encoded = _checked(encode_msgpack_header(header))
        before, _, after = encoded.partition(_OPAQUE.pack(_OPAQUE_MARK))
        return _SignedForm(credentials, before, after[:-REPUT_SIGNATURE_LENGTH], content, len(encoded))


def _checked(head: bytes) -> bytes:
    """Return an encoded header, with or without the frame's first eight bytes, unless it is too large."""
    if len(head) > HEADER_BYTES_MAX:
        raise FrameTooLarge("header", len(head), HEADER_BYTES_MAX)
    return head


class UnsignedHead:
    """The frame up to its body of a request that is signed when it is written, since signatures are numbered."""

    __slots__ = ("_form_bytes", "_opaque", "_signer", "_template")

    def __init__(self, signer: RequestSigner, template: RequestTemplate, opaque: int) -> None:
        self._signer = signer
        self._template = template
        self._opaque = opaque
        self._form_bytes = _HEAD.size + template.signed_form(signer.credentials).size

    def __len__(self) -> int:
        """Return the size that it has with its signature."""
        return self._form_bytes

    def signed(self, body: tuple[Buffer, ...]) -> bytes:
        """Return it with its signature."""
        return self._template.encode_signed(self._signer, self._opaque, body)


Outgoing: TypeAlias = tuple[Call, tuple[Buffer | UnsignedHead, *tuple[Buffer, ...]]]
"""A frame to be written, in one or more pieces: a request, or an answer to the broker."""


class ClientChannel(Channel):
    """A client's calls, encoded by templates."""

    signer: RequestSigner | None = None
    """Signs the requests in Reput's form."""
    rocketmq_user: Credentials | None = None
    """Signs the requests in RocketMQ's form, for a server that knows no other."""

    has_stopped = False
    """Whether the server is going to close the connection, and has handled only what it has answered."""

    @override
    def _note(self, answer: Header) -> None:
        super()._note(answer)
        self.has_stopped = self.last_words is not None and self.last_words.startswith(_DRAINING)

    def head(self, template: RequestTemplate, opaque: int, *body: Buffer) -> bytes | UnsignedHead:
        """Return a request's frame up to its body, which consists of the pieces `body`."""
        if self.signer is not None:
            return UnsignedHead(self.signer, template, opaque)
        if self.rocketmq_user is not None:
            return template.encode_for_rocketmq(self.rocketmq_user, opaque, body, self.peer)
        return template.encode(opaque, sum(map(len, body)), self.peer)

    def new_oneway(self, waiter: Waiter) -> OnewayCall:
        """Return a call that is done when its frame was written; never pending."""
        return OnewayCall(self.next_opaque(), waiter)


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


def _send_of_block(header: PutMessageHeader, block: Buffer, waits: str) -> tuple[int, Mapping[str, Value], Buffer]:
    # Of all commands and clients, few send to RocketMQ's brokers.
    from reput_protocol.record.put_block import BatchItem, encode_batch
    from reput_protocol.record.record import decode_record

    records = [decode_record(block, start) for start in record_starts(block, 0, len(block))]
    first = records[0]
    is_batch = len(records) > 1
    if any(record.sys_flag != first.sys_flag for record in records):
        # The client then sends its messages one by one.
        raise MessageRefused(
            ErrorCode.MALFORMED, "RocketMQ's batches hold no messages of different compression; send them alone"
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
