"""The protocol of one connection: turns requests into bytes and bytes into answered calls. No I/O, no clock.

A call is pending from `start` until it is answered, abandoned, or the connection fails. Answers to abandoned calls are
dropped, so giving up on a request leaves the connection usable. Requests from the broker come in between, with opaques
of their own, and go to `on_request`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from reput_protocol.buffers import Buffer
from reput_protocol.codes import PROTOCOL_VERSION, ROCKETMQ_VERSION, LanguageCode
from reput_protocol.errors import ErrorCode, ReputError
from reput_protocol.signature import (
    REPUT_SIGNATURE,
    REPUT_SIGNATURE_LENGTH,
    Credentials,
    RequestSigner,
    request_content,
)
from reput_protocol.wire.frames import (
    FRAME_BYTES_MAX,
    FrameReader,
    decode_header,
    encode_frame_head,
    encode_header,
)
from reput_protocol.wire.header import Header, HeaderType, Value, text_ext

_HEAD: Final = struct.Struct(">II")
_OPAQUE: Final = struct.Struct(">I")
_OPAQUE_MAX: Final = 0x7FFF_FFFF
# Its msgpack form occurs nowhere else in a header, so that the opaque can be replaced.
_OPAQUE_MARK: Final = 0x7E5A_A5E7
_EMPTY: Final = memoryview(b"")
_DRAINING: Final = f"{ErrorCode.DRAINING.name}: "
_PYTHON: Final = int(LanguageCode.PYTHON)


class Peer(Enum):
    """What answers at the other end, as its first answer shows.

    Until then requests have JSON headers, which both read, with the native version, by which Reput's servers know the
    bundled client. Then Reput's get msgpack headers, RocketMQ's JSON headers of RocketMQ's version.
    """

    UNKNOWN = 0
    REPUT = 1
    ROCKETMQ = 2


_UNKNOWN: Final = Peer.UNKNOWN
_REPUT: Final = Peer.REPUT


class Waiter:
    """A caller that waits for calls. `ready`: at least one has finished since it was cleared."""

    # Class attributes, because every send would call a constructor.
    ready: bool = False
    wake: Callable[[], None] | None = None

    def notify(self) -> None:
        """Note that a call has finished, and wake the waiter if it sleeps."""
        self.ready = True
        if self.wake is not None:
            self.wake()


class Call:
    """One request and, once `done`, its answer (`header`, `body`) or the transport's `error`.

    `sent`: the whole frame was written; only then may the broker have acted on it.
    """

    __slots__ = ("body", "done", "error", "header", "opaque", "sent", "waiter")

    @property
    def is_wanted(self) -> bool:
        """Whether a caller waits for one of the calls that it stands for."""
        return False

    def __init__(self, opaque: int, waiter: Waiter) -> None:
        self.opaque = opaque
        self.waiter = waiter
        self.done = False
        self.sent = False
        self.header: Header | None = None
        self.body: memoryview = _EMPTY
        self.error: ReputError | None = None

    def finish(self, header: Header, body: memoryview) -> None:
        """Take the answer."""
        self.header = header
        self.body = body
        self.done = True
        self.waiter.notify()

    def fail(self, error: ReputError) -> None:
        """End without an answer."""
        self.error = error
        self.done = True
        self.waiter.notify()

    def was_dropped(self) -> None:
        """Note that the broker has not handled the request, although it was sent."""
        self.sent = False

    @property
    def answer(self) -> Header:
        """The answer's header.

        Raises:
            ReputError: the connection failed first.
        """
        if self.error is not None:
            raise self.error
        assert self.header is not None, "the call is not done"
        return self.header


class ShareableCall(Call):
    """A put of one message, which may share a frame with others (see `sharing.py`)."""

    __slots__ = ("is_abandoned", "shared", "template", "travels_alone")

    def __init__(self, opaque: int, waiter: Waiter, template: RequestTemplate) -> None:
        super().__init__(opaque, waiter)
        self.template = template
        self.shared: Call | None = None
        """The call that is pending in its place, once part of the shared frame was written."""
        self.is_abandoned = False
        self.travels_alone = False
        """Whether it is sent in its own frame from now on."""


class NoticedCall(Call):
    """A call whose `on_sent` is called when its frame was written."""

    __slots__ = ("_was_sent",)

    def __init__(self, opaque: int, waiter: Waiter) -> None:
        self._was_sent = False
        super().__init__(opaque, waiter)

    @property
    def sent(self) -> bool:
        """As in `Call`."""
        return self._was_sent

    @sent.setter
    def sent(self, value: bool) -> None:
        self._was_sent = value
        if value:
            self.on_sent()

    def on_sent(self) -> None:
        """Note that the whole frame was written."""
        raise NotImplementedError


class OnewayCall(NoticedCall):
    """A frame without an answer: a oneway request, or our answer to the broker.

    Done, without a header, when the system has taken the whole frame.
    """

    __slots__ = ()

    def on_sent(self) -> None:
        """See `NoticedCall`."""
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


class RequestTemplate:
    """A request whose header differs only in its opaque and signature: encoded once, copied for each frame."""

    __slots__ = ("_head_bytes", "_prefix", "_signed", "_suffix", "code", "ext", "flag", "of_many", "queue")

    def __init__(
        self,
        code: int,
        ext: Mapping[str, Value],
        *,
        flag: int = 0,
        of_many: Callable[[int], RequestTemplate] | None = None,
        queue: Hashable = None,
    ) -> None:
        """Take the header's fields.

        Args:
            of_many: for the put of one message: returns the template for that many; such puts may share a frame.
            queue: the target of the put; puts into one queue keep their order.
        """
        self.of_many = of_many
        self.queue = queue
        self.code = int(code)
        self.ext = ext
        self.flag = flag
        self._head_bytes = 0  # not encoded yet
        self._signed: _SignedForm | None = None

    def _header(self, opaque: int, version: int) -> Header:
        return Header(self.code, opaque, self.flag, None, dict(self.ext), _PYTHON, version)

    def _encode_once(self) -> None:
        encoded = encode_header(self._header(_OPAQUE_MARK, PROTOCOL_VERSION), HeaderType.MSGPACK)
        # msgpack writes the mark as 0xce and four bytes, and so can any opaque be written.
        before, _, after = encoded.partition(_OPAQUE.pack(_OPAQUE_MARK))
        self._prefix = before
        self._suffix = after
        self._head_bytes = len(encoded)

    def encode(self, opaque: int, body_bytes: int, peer: Peer = _REPUT) -> bytes:
        """Return the frame up to its body, as `peer` reads it."""
        if peer is not _REPUT:
            version = PROTOCOL_VERSION if peer is _UNKNOWN else ROCKETMQ_VERSION
            return encode_frame_head(self._header(opaque, version), HeaderType.JSON, body_bytes)
        if not self._head_bytes:
            self._encode_once()
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
        header.ext = credentials.signed(text_ext(header.ext), *body, version=header.version)
        return encode_frame_head(header, HeaderType.JSON, sum(map(len, body)))

    def signed_form(self, credentials: Credentials) -> _SignedForm:
        """Return the header for the requests of a user."""
        form = self._signed
        if form is None or form.credentials is not credentials:
            form = self._signed = self._sign(credentials)
        return form

    def _sign(self, credentials: Credentials) -> _SignedForm:
        header = self._header(_OPAQUE_MARK, PROTOCOL_VERSION)
        header.ext = {**header.ext, **credentials.fields()}
        content = request_content(header.code, header.flag, header.version, header.ext)
        header.ext[REPUT_SIGNATURE] = (
            "?" * REPUT_SIGNATURE_LENGTH
        )  # the last field, and so the end of the header
        encoded = encode_header(header, HeaderType.MSGPACK)
        before, _, after = encoded.partition(_OPAQUE.pack(_OPAQUE_MARK))
        return _SignedForm(credentials, before, after[:-REPUT_SIGNATURE_LENGTH], content, len(encoded))


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

RequestSink: TypeAlias = Callable[[Header, int, memoryview], None]
"""Takes a request from the broker: header, header type, body."""


class Channel:
    """One connection's calls: numbers and encodes them, and matches answers by opaque."""

    def __init__(
        self,
        on_request: RequestSink | None = None,
        *,
        peer: Peer = _REPUT,
        frame_limit: int = FRAME_BYTES_MAX,
    ) -> None:
        """Start without calls; requests from the broker go to `on_request`, or are dropped."""
        self.peer = peer
        self.signer: RequestSigner | None = None
        """Signs the requests in Reput's form."""
        self.rocketmq_user: Credentials | None = None
        """Signs the requests in RocketMQ's form, for a server that knows no other."""
        self._on_request = on_request
        self._reader = FrameReader(frame_limit=frame_limit)
        self._pending: dict[int, Call] = {}
        self._next_opaque = 1
        self.last_words: str | None = None
        """Why a server is going to close the connection, if it has said so in an answer to no request."""

    @property
    def has_stopped(self) -> bool:
        """Whether the server is going to close the connection, and has handled only what it has answered."""
        return self.last_words is not None and self.last_words.startswith(_DRAINING)

    @property
    def pending(self) -> int:
        """How many calls wait for an answer."""
        return len(self._pending)

    def head(self, template: RequestTemplate, opaque: int, *body: Buffer) -> bytes | UnsignedHead:
        """Return a request's frame up to its body, which consists of the pieces `body`."""
        if self.signer is not None:
            return UnsignedHead(self.signer, template, opaque)
        if self.rocketmq_user is not None:
            return template.encode_for_rocketmq(self.rocketmq_user, opaque, body, self.peer)
        return template.encode(opaque, sum(map(len, body)), self.peer)

    def new_call(self, waiter: Waiter) -> Call:
        """Return a pending call with an opaque of its own."""
        opaque = self._next_opaque
        self._next_opaque = opaque + 1 if opaque < _OPAQUE_MAX else 1
        call = Call(opaque, waiter)
        self._pending[opaque] = call
        return call

    def add(self, call: Call) -> Call:
        """Make a call with an opaque of its own pending, and return it."""
        self._pending[call.opaque] = call
        return call

    def new_shareable(self, waiter: Waiter, template: RequestTemplate) -> ShareableCall:
        """Return a pending call for a put of one message that may share a frame."""
        opaque = self.next_opaque()
        call = self._pending[opaque] = ShareableCall(opaque, waiter, template)
        return call

    def next_opaque(self) -> int:
        """Return an opaque for a call that is not pending yet."""
        opaque = self._next_opaque
        self._next_opaque = opaque + 1 if opaque < _OPAQUE_MAX else 1
        return opaque

    def join(self, shared: Call, members: Iterable[ShareableCall]) -> None:
        """Make `shared` the pending call in place of `members`."""
        for member in members:
            self._pending.pop(member.opaque, None)
            member.shared = shared
        self._pending[shared.opaque] = shared

    def renew(self, call: ShareableCall) -> None:
        """Make a call pending again whose record is sent once more, in its own frame."""
        call.sent = False
        call.shared = None
        call.travels_alone = True
        self._pending[call.opaque] = call

    def new_oneway(self, waiter: Waiter) -> OnewayCall:
        """Return a call that is done when its frame was written; never pending."""
        return OnewayCall(self.next_opaque(), waiter)

    def abandon(self, call: Call) -> None:
        """Stop waiting for a call's answer."""
        self._pending.pop(call.opaque, None)
        if isinstance(call, ShareableCall):
            call.is_abandoned = True
            if call.shared is not None and not call.shared.is_wanted:
                self._pending.pop(call.shared.opaque, None)

    def receive_data(self, data: Buffer) -> bool:
        """Take bytes from the socket, finish the calls they answer and pass on the broker's requests.

        Return whether a frame is incomplete; the next read may then be large.

        Raises:
            ProtocolError: the broker violated the protocol; the connection is unusable.
        """
        pending = self._pending
        reader = self._reader
        for header_type, encoded, body in reader.receive_data(data):
            header = decode_header(header_type, encoded)
            if header.flag & 1:
                if self.peer is _UNKNOWN:
                    self.peer = _REPUT if header.language == _PYTHON else Peer.ROCKETMQ
                call = pending.pop(header.opaque, None)
                if call is not None:
                    call.finish(header, body)
                elif header.opaque == 0:
                    self.last_words = header.remark
            elif self._on_request is not None:
                self._on_request(header, header_type, body)
        if reader.failure is not None:
            raise reader.failure
        return reader.mid_frame

    def drop_all(self) -> None:
        """Note that the broker has handled no pending request."""
        for call in self._pending.values():
            call.was_dropped()

    def fail_all(self, error: ReputError) -> None:
        """End every pending call with `error`."""
        calls = list(self._pending.values())
        self._pending.clear()
        for call in calls:
            call.fail(error)
