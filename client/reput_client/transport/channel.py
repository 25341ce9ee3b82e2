"""A client's requests: encoded once, copied for each frame. No I/O, no clock."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct
from typing_extensions import override

from reput_protocol.buffers import Buffer
from reput_protocol.codes import PROTOCOL_VERSION, ROCKETMQ_VERSION, LanguageCode
from reput_protocol.errors import ErrorCode, FrameTooLarge
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

    def encode_for_rocketmq(
        self, credentials: Credentials, opaque: int, body: tuple[Buffer, ...], peer: Peer
    ) -> bytes:
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
        header.ext[REPUT_SIGNATURE] = (
            "?" * REPUT_SIGNATURE_LENGTH
        )  # the last field, and so the end of the header
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
