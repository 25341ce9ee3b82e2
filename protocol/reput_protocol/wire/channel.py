"""One side of a connection, without I/O and clock: frames in and out, and the calls that wait for a response.

A call is pending from `new_call` until it is answered, abandoned (by a caller whose deadline has passed), or the
connection ends. Answers to abandoned calls are dropped, so giving up on a request leaves the connection usable. The
other side sends requests of its own; a flag tells a request from an answer, so their opaques do not collide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from itertools import chain, repeat
from typing import Final, TypeAlias

from msgspec import Struct

from reput_protocol.buffers import Buffer
from reput_protocol.codes import PROTOCOL_VERSION, ROCKETMQ_VERSION, LanguageCode
from reput_protocol.errors import ReputError
from reput_protocol.wire.frames import FRAME_BYTES_MAX, FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import RESPONSE_FLAG, Header, HeaderType, Value

_OPAQUE_MAX: Final = 0x7FFF_FFFF
_EMPTY: Final = memoryview(b"")
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
    """What a finished call notifies: what a caller waits with, or an object with its own `notify`.

    Attributes:
        ready: whether a call has finished since this was last set to False.
        wake: called by `notify`; None while no caller sleeps.
    """

    # Class attributes, because every send would call a constructor.
    ready: bool = False
    wake: Callable[[], None] | None = None

    def notify(self) -> None:
        """Note that a call has finished, and wake the waiter if it sleeps."""
        self.ready = True
        if self.wake is not None:
            self.wake()


class Call(Struct, eq=False):
    """One request and, once `done`, its answer (`header`, `body`) or the `error` that has ended its connection.

    `sent`: the whole frame was written; only then may the peer have acted on it.
    """

    opaque: int
    waiter: Waiter
    done: bool = False
    sent: bool = False
    header: Header | None = None
    body: memoryview = _EMPTY
    error: ReputError | None = None

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

    @property
    def answer(self) -> Header:
        """The answer's header.

        Raises:
            ReputError: the connection ended first.
        """
        if self.error is not None:
            raise self.error
        assert self.header is not None, "the call is not done"
        return self.header


RequestSink: TypeAlias = Callable[[Header, int, memoryview], None]
"""Takes a request from the peer: header, header type, body."""

Signer: TypeAlias = Callable[[Header, Buffer], None]
"""Adds a user and its signature to the header of a request with that body."""


class Channel:
    """The calls of one side of a connection: numbers requests, encodes them, and matches answers by opaque.

    Args:
        on_request: takes the peer's requests; None: they are dropped.
        opaque_min: the first number of a request, never 0, which some peers replace. The two sides may choose different
            ones, so that a capture shows which side numbered a request.
    """

    def __init__(
        self,
        on_request: RequestSink | None = None,
        *,
        peer: Peer = _REPUT,
        opaque_min: int = 1,
        frame_limit: int = FRAME_BYTES_MAX,
    ) -> None:
        self.peer = peer
        self.sign: Signer | None = None
        self.last_words: str | None = None
        """Why a server is going to close the connection, if it has said so in an answer to no request."""
        self._on_request = on_request
        self._reader = FrameReader(frame_limit=frame_limit)
        self._pending: dict[int, Call] = {}
        opaques = range(opaque_min, _OPAQUE_MAX + 1)
        self.next_opaque: Callable[[], int] = chain.from_iterable(repeat(opaques)).__next__
        """Returns the number of the next request: of one without an answer, or of a call that is not pending yet."""

    @property
    def pending(self) -> int:
        """How many calls wait for an answer."""
        return len(self._pending)

    def new_call(self, waiter: Waiter) -> Call:
        """Return a pending call with an opaque of its own."""
        opaque = self.next_opaque()
        call = self._pending[opaque] = Call(opaque, waiter)
        return call

    def add(self, call: Call) -> Call:
        """Make a call with an opaque of its own pending, and return it."""
        self._pending[call.opaque] = call
        return call

    def abandon(self, call: Call) -> None:
        """Stop waiting for a call's answer."""
        self._pending.pop(call.opaque, None)

    def frame(self, opaque: int, code: int, ext: Mapping[str, Value], body: Buffer = b"") -> bytes:
        """Return a request's frame as the peer reads it, signed if there is a signer.

        Raises:
            FrameTooLarge: the frame would be too large.
        """
        version = ROCKETMQ_VERSION if self.peer is Peer.ROCKETMQ else PROTOCOL_VERSION
        header = Header(code, opaque, 0, None, dict(ext), _PYTHON, version)
        if self.sign is not None:
            self.sign(header, body)
        return encode_frame(header, HeaderType.MSGPACK if self.peer is _REPUT else HeaderType.JSON, body)

    def receive_data(self, data: Buffer) -> bool:
        """Take bytes from the peer, finish the calls that they answer and pass on its requests.

        Return whether a frame is incomplete; the next read may then be large.

        Raises:
            ProtocolError: the peer violated the protocol; the connection is unusable.
        """
        pending, reader = self._pending, self._reader
        for header_type, encoded, body in reader.receive_data(data):
            header = decode_header(header_type, encoded)
            if header.flag & RESPONSE_FLAG:
                call = pending.pop(header.opaque, None)
                if call is None or self.peer is _UNKNOWN:
                    self._note(header)
                if call is not None:
                    call.finish(header, body)
            elif self._on_request is not None:
                self._on_request(header, header_type, body)
        if reader.failure is not None:
            raise reader.failure
        return reader.mid_frame

    def _note(self, answer: Header) -> None:
        if self.peer is _UNKNOWN:
            self.peer = _REPUT if answer.language == _PYTHON else Peer.ROCKETMQ
        if answer.opaque == 0:
            self.last_words = answer.remark

    def take(self, opaque: int) -> Call | None:
        """Return the pending call that an answer belongs to, for a side that reads the frames itself; None: drop it."""
        return self._pending.pop(opaque, None)

    def drop_all(self) -> None:
        """Note that the peer has handled no pending request."""
        for call in self._pending.values():
            call.sent = False

    def end(self, error: ReputError) -> None:
        """End every pending call with `error`, because the connection has ended."""
        calls = list(self._pending.values())
        self._pending.clear()
        for call in calls:
            call.fail(error)
