"""What a processor sees of the wire: a request, its client, and the four ways to answer.

A processor is `handle(request)` and returns

- a `Response`: it is written together with the other answers of the same read;
- a `Put`: it is appended to the log together with those next to it in the same read, and answered after that;
- None: it is answered later through `Request.reply` (after a sync, when a message arrives), or not at all (oneway);
- a coroutine that leads to one of these: the connection runs it to its end before it looks at its next frame, which
  keeps puts in order.

It raises `Refusal` to say no. Nothing here makes a task per request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeAlias

import trio
from msgspec import Struct

from reput_broker.observe.counters import RequestTraffic
from reput_broker.store.block import Block
from reput_broker.store.results import PutResult
from reput_protocol.codes import PROTOCOL_VERSION, ROCKETMQ_VERSION, AckLevel, LanguageCode
from reput_protocol.commands.body import LargeBody
from reput_protocol.errors import ErrorCode, ReputError, refusal_remark
from reput_protocol.wire.header import ONEWAY_FLAG, RESPONSE_FLAG, Header, HeaderType, Value

_MSGPACK: Final = HeaderType.MSGPACK.value
_PYTHON: Final = LanguageCode.PYTHON.value
_NO_EXT: Final[dict[str, Value]] = {}
_NO_BODY: Final = memoryview(b"")


class Response(Struct, gc=False):
    """An answer. `ext` and `body` are as the command defines them; `body` may be several buffers in a row."""

    code: int = 0
    ext: dict[str, Value] = {}
    body: bytes = b""
    remark: str | None = None

    def header(self, opaque: int, header_type: int) -> Header:
        """Return the header that answers request `opaque`, in words for who speaks `header_type`."""
        version = PROTOCOL_VERSION if header_type == _MSGPACK else ROCKETMQ_VERSION
        return Header(self.code, opaque, RESPONSE_FLAG, self.remark, self.ext, _PYTHON, version)


class Refusal(ReputError):
    """The broker says no: why, in words with a remedy, and under which response code."""

    def __init__(
        self,
        error: ErrorCode,
        text: str,
        *,
        response_code: int | None = None,
        ext: Mapping[str, Value] | None = None,
    ) -> None:
        super().__init__(text)
        self.error = error
        self.text = text
        self.response_code = int(error.response_code) if response_code is None else response_code
        self.ext = dict(ext or {})

    def response(self) -> Response:
        """Return the answer that carries this refusal."""
        return Response(self.response_code, self.ext, remark=refusal_remark(self.error, self.text))


class ClientGone(ReputError):
    """A client cannot be asked: its connection has ended, or ended before it answered."""


class ClientSilent(ReputError):
    """A client did not answer in time. It may have done what it was asked to."""


class ClientBusy(ReputError):
    """A client owes so many answers already that it is asked nothing more. It was sent nothing."""


class ClientAnswer(Struct):
    """What a client answered to a request of ours."""

    code: int
    remark: str | None
    ext: Mapping[str, Value]
    body: bytes


class Client(Protocol):
    """The connection that a request came on."""

    peer: str
    """The far end, `ip:port`, as logs and administrators see it."""
    header_type: int
    """What the peer last wrote its headers in, and what it is written to in."""
    born_host: bytes
    """The peer as records hold it: 4 address bytes, 4 bytes of port."""
    dialled_address: str
    """The local end of the connection, `ip:port`: what the peer dialled."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be answered any more."""

    @property
    def share(self) -> int:
        """Bytes of answers that the client may leave waiting now; an answer of unknown size keeps within it."""

    @property
    def is_crowded(self) -> bool:
        """Whether more answers wait for the client than its share."""

    async def drained(self) -> None:
        """Wait until the client has taken all its answers, or is gone."""

    def answer(self, request: Request, response: Response) -> None:
        """Queue an answer; it leaves with the next `flush`."""

    def flush(self) -> None:
        """Write what is queued."""

    def spawn(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Run something beside the connection's requests; it ends with the connection."""

    def note_role(self, role: str) -> None:
        """Note what the peer turned out to be: producer, consumer or admin."""

    def send_request(self, code: int, ext: Mapping[str, Value], body: bytes = b"") -> bool:
        """Send a oneway request now; False if it was not sent, because the peer is gone or takes nothing."""

    async def call(
        self, code: int, ext: Mapping[str, Value], body: bytes = b"", *, timeout_s: float
    ) -> ClientAnswer:
        """Send a request and wait for its answer, whatever its code.

        Never call this from a coroutine that a handler returned: a peer that asks for itself is not read meanwhile.

        Raises:
            ClientGone, ClientSilent, ClientBusy: there is no answer.
        """

    def close(self, reason: str) -> None:
        """End the connection at once."""


class Request(Struct, eq=False):
    """One request as its processor gets it."""

    client: Client
    header_type: int
    header: Header
    body: memoryview
    received_at: float
    """When the read that brought it returned, in seconds of the monotonic clock."""
    traffic: RequestTraffic
    """Where it is counted."""
    is_answered: bool = False
    is_held: bool = False
    """Whether what it takes is counted by long polling."""
    cost: int = 0
    """About how many bytes it takes while it waits for its answer, without its body."""

    @property
    def ext(self) -> Mapping[str, Value]:
        """The header's named fields."""
        return self.header.ext

    @property
    def is_oneway(self) -> bool:
        """Whether nobody waits for an answer."""
        return bool(self.header.flag & ONEWAY_FLAG)

    @property
    def is_native(self) -> bool:
        """Whether it came under our own header type, from the bundled client."""
        return self.header_type == HeaderType.MSGPACK

    def note_held(self) -> None:
        """Drop what the answer does not need; long polling holds the request and counts what it takes."""
        self.is_held = True
        self.header.ext, self.header.remark, self.body = _NO_EXT, None, _NO_BODY

    def wants_no_answer(self) -> None:
        """Treat it as the oneway request that its sender means it to be, whatever its header says."""
        self.header.flag |= ONEWAY_FLAG

    def reply(self, response: Response) -> None:
        """Answer now, from wherever the answer became known."""
        self.client.answer(self, response)
        self.client.flush()


class Put(Struct, eq=False):
    """What a request has appended to the log, and how it is answered after that."""

    request: Request
    size: int
    """Bytes that are appended at most."""
    work: Block | Callable[[], PutResult]
    """What is appended, or something that decides that under the put lock, appends it and does not wait."""
    answer: Callable[[PutResult], Response]
    """Makes the answer if it was stored."""
    topic: str
    """Under which topic it is counted."""
    ack: AckLevel
    kind: str = "normal"
    """As what kind of message it is counted."""
    outcome: PutResult | Response | Exception | None = None
    """What became of it: at first the result of the append, then the answer; None if that waits for the disk."""


Outcome: TypeAlias = "Response | Put | None"
Result: TypeAlias = "Outcome | Awaitable[Outcome]"
Handler: TypeAlias = Callable[[Request], Result]


async def write_in_turns(body: LargeBody) -> bytes:
    """Return the JSON of a body that may be large; other tasks run after each part.

    The content of the body must not change meanwhile.
    """
    parts: list[bytes] = []
    for part in body.json_parts():
        parts.append(part)
        await trio.lowlevel.checkpoint()
    return b"".join(parts)
