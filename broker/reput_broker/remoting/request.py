"""A request as its handler sees it: the request, its client, and four ways to answer.

A handler, a method of a processor, is called with the request and returns

- a `Response`: written together with the other answers of the same read;
- a `Put`: appended to the log together with adjacent puts of the same read, and answered afterwards;
- None: answered later through `Request.reply` (after a sync, when a message arrives), or not at all (oneway);
- a coroutine that ends with one of these: the connection awaits it before its next frame, which keeps puts in order.

It raises `Refusal` to refuse. No task is created per request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar

import trio
from msgspec import Struct

from reput_broker.observe.counters import RequestTraffic
from reput_broker.store.base.results import Block, PutResult
from reput_protocol.codes import PROTOCOL_VERSION, ROCKETMQ_VERSION, AckLevel, LanguageCode, RequestCode
from reput_protocol.commands.base import Body, LargeBody
from reput_protocol.errors import ErrorCode, ReputError, refusal_remark
from reput_protocol.wire.channel import Call
from reput_protocol.wire.header import ONEWAY_FLAG, RESPONSE_FLAG, Header, HeaderType, Value
from reput_protocol.wire.signature import SignatureChecker

_MSGPACK: Final = HeaderType.MSGPACK.value
_PYTHON: Final = LanguageCode.PYTHON.value
_NO_EXT: Final[dict[str, Value]] = {}
_NO_BODY: Final = memoryview(b"")

B = TypeVar("B", bound=Body)


class Response(Struct, gc=False):
    """An answer. The command defines `ext` and `body`."""

    code: int = 0
    ext: dict[str, Value] = {}
    body: bytes = b""
    remark: str | None = None

    def header(self, opaque: int, header_type: int) -> Header:
        """Return the header of the response to request `opaque`, for a client that uses `header_type`."""
        version = PROTOCOL_VERSION if header_type == _MSGPACK else ROCKETMQ_VERSION
        return Header(self.code, opaque, RESPONSE_FLAG, self.remark, self.ext, _PYTHON, version)


class Refusal(ReputError):
    """The broker refuses a request: the reason with a remedy, and the response code."""

    def __init__(
        self, error: ErrorCode, text: str, *, response_code: int | None = None, ext: Mapping[str, Value] | None = None
    ) -> None:
        super().__init__(text)
        self.error = error
        self.text = text
        self.response_code = int(error.response_code) if response_code is None else response_code
        self.ext = dict(ext or {})

    def response(self) -> Response:
        """Return the answer with this refusal."""
        return Response(self.response_code, self.ext, remark=refusal_remark(self.error, self.text))


class ClientGone(ReputError):
    """The connection of a client has ended, before or after it received a request."""


class ClientSilent(ReputError):
    """A client did not answer in time. It may have executed the request."""


class ClientBusy(ReputError):
    """Too many requests to a client are open. This one was not sent."""


class ClientAnswer(Struct):
    """An answer to a request of the broker."""

    code: int
    remark: str | None
    ext: Mapping[str, Value]
    body: bytes

    @classmethod
    def of(cls, call: Call) -> ClientAnswer:
        """Return the answer of a call that is done; raises the error that has ended it."""
        header = call.answer
        return cls(header.code, header.remark, header.ext, bytes(call.body))


class Principal(Protocol):
    """The user of a request, under access control; see `access.model`."""

    @property
    def name(self) -> str:
        """The user's name."""

    @property
    def is_admin(self) -> bool:
        """Whether it may do everything."""

    def permits(self, right: str, kind: str, name: str) -> bool:
        """Whether it has a right on a topic, a group or the cluster."""

    def may_write_something(self) -> bool:
        """Whether it may send to any topic."""


class Client(Protocol):
    """The connection of a request."""

    peer: str
    """The remote end, `ip:port`, for logs and administrators."""
    header_type: int
    """The header type of its last frame, in which it is answered."""
    born_host: bytes
    """The peer as records have it: 4 address bytes, 4 bytes of port."""
    dialled_address: str
    """The local end of the connection, `ip:port`: what the peer dialled."""
    opened_at: float
    """When it connected, by trio's clock."""
    is_local: bool
    """Whether it is on this machine."""
    principal: Principal | None
    """The user of its last request; None without access control, and before its first one."""
    signatures: SignatureChecker | None
    """Checks signatures in Reput's form; None before the client has asked for a challenge."""
    unauthenticated: int
    """How many of its last requests in a row had no valid signature."""

    @property
    def is_closed(self) -> bool:
        """Whether no answer can be sent any more."""

    @property
    def share(self) -> int:
        """Bytes of answers that the client may leave unread now; an answer of variable size stays within it."""

    @property
    def is_crowded(self) -> bool:
        """Whether more answers are unread than its share."""

    async def drained(self) -> None:
        """Wait until the client has read all its answers, or is gone."""

    def answer(self, request: Request, response: Response) -> None:
        """Queue an answer for the next `flush`."""

    def held_elsewhere(self, request: Request) -> None:
        """Count no memory for a request that waits: what holds it does."""

    def flush(self) -> None:
        """Write what is queued."""

    def spawn(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Run a task next to the connection's requests; it ends with the connection."""

    def note_role(self, role: str) -> None:
        """Note the role of the peer, where the request's row does not tell it: producer or consumer."""

    def send_request(self, code: int, ext: Mapping[str, Value], body: bytes = b"") -> bool:
        """Send a oneway request now; False if the peer is gone, or has not read earlier answers."""

    async def call(self, code: int, ext: Mapping[str, Value], body: bytes = b"", *, timeout_s: float) -> ClientAnswer:
        """Send a request and wait for its answer, whatever its code.

        Not for a coroutine that a handler returned: a peer that makes a request about itself is not read meanwhile.

        Raises:
            ClientGone, ClientSilent, ClientBusy: there is no answer.
        """

    def close(self, reason: str) -> None:
        """End the connection immediately."""


class Request(Struct, eq=False):
    """One request."""

    client: Client
    header_type: int
    header: Header
    body: memoryview
    received_at: float
    """When the read with this request returned, in seconds of the monotonic clock."""
    traffic: RequestTraffic
    is_answered: bool = False
    is_held: bool = False
    """Whether long polling counts its memory."""
    cost: int = 0
    """Approximate memory while it waits for its answer, without its body."""
    principal: Principal | None = None
    """The user who sent it; None without access control."""
    _content: Body | None = None

    @property
    def ext(self) -> Mapping[str, Value]:
        """The header's named fields."""
        return self.header.ext

    @property
    def is_oneway(self) -> bool:
        """Whether its client does not wait for an answer."""
        return bool(self.header.flag & ONEWAY_FLAG)

    @property
    def is_native(self) -> bool:
        """Whether it is from the bundled client: its header is msgpack, or JSON until the client knows this server."""
        header = self.header
        return self.header_type == _MSGPACK or (header.version == PROTOCOL_VERSION and header.language == _PYTHON)

    def content(self, kind: type[B]) -> B:
        """Return the JSON body, decoded once for the check of rights and for the handler. Raises BodyMalformed."""
        if type(self._content) is not kind:
            self._content = kind.from_json(self.body, is_trusted=False)
        assert isinstance(self._content, kind), "just made"
        return self._content

    def may(self, right: str, topic: str) -> bool:
        """Whether its user has a right on a topic."""
        return self.principal is None or self.principal.permits(right, "topic", topic)

    def check(self, right: str, topic: str) -> None:
        """Check that its user has a right on a topic. Raises Refusal: NO_PERMISSION."""
        if not self.may(right, topic):
            assert self.principal is not None, "it lacks a right"
            raise Refusal(
                ErrorCode.NO_PERMISSION,
                f"user {self.principal.name!r} lacks the right {right!r} on topic {topic!r}; an administrator can "
                f"grant it: reput acl allow {self.principal.name} {right} topic:{topic}",
            )

    def check_topic_of_message(self, right: str, topic: str) -> None:
        """Check that its user has a right on the topic of a message that the request names by its place.

        Raises:
            Refusal: NO_PERMISSION; it does not name the topic.
        """
        if not self.may(right, topic):
            assert self.principal is not None, "it lacks a right"
            raise Refusal(
                ErrorCode.NO_PERMISSION,
                f"user {self.principal.name!r} lacks the right {right!r} on the topic of this message; an "
                "administrator can grant it",
            )

    def note_held(self) -> None:
        """Drop what the answer does not need; long polling holds the request and counts its memory."""
        self.is_held = True
        self.client.held_elsewhere(self)
        self.header.ext, self.header.remark, self.body, self._content = _NO_EXT, None, _NO_BODY, None

    def wants_no_answer(self) -> None:
        """Treat it as oneway, whatever its header says."""
        self.header.flag |= ONEWAY_FLAG

    def reply(self, response: Response) -> None:
        """Answer now, outside the handler."""
        self.client.answer(self, response)
        self.client.flush()


class Confirmed(Enum):
    """A level that no request names: the log is confirmed up to the message, so that no failover takes it back."""

    CONFIRMED = "confirmed"


PutAck: TypeAlias = AckLevel | Confirmed


class Put(Struct, eq=False):
    """What a request asks to append to the log, how it is answered, and its outcome once it is appended."""

    request: Request
    size: int
    """Upper bound of the bytes appended."""
    work: Block | Callable[[], PutResult]
    """The block; or a function that runs under the put lock, decides, appends and does not wait."""
    answer: Callable[[PutResult], Response]
    topic: str
    """The topic under which it is counted."""
    ack: PutAck
    """The level after which it is answered."""
    kind: str = "normal"
    outcome: PutResult | Response | Exception | None = None
    """First the result of the append, then the answer; None while that waits for the disk."""


Handled: TypeAlias = "Response | Put | None"
"""What is known once a handler is done: the answer, a put that it asks for, or None: the answer is sent later."""
Result: TypeAlias = "Handled | Awaitable[Handled]"
"""What a handler returns: that, or a coroutine which ends with it."""
Handler: TypeAlias = Callable[[Request], Result]


async def handled(result: Result) -> Handled:
    """Return what a handler's result ends with."""
    return await result if isinstance(result, Awaitable) else result


_SERVES: Final = "serves"
_Method = TypeVar("_Method", bound=Callable[[Any, Request], Result])


def serves(*codes: RequestCode) -> Callable[[_Method], _Method]:
    """Make a method of a `Processor` the handler of requests."""

    def mark(method: _Method) -> _Method:
        setattr(method, _SERVES, codes)
        return method

    return mark


class Processor:
    """Serves the requests whose handlers are marked with `serves`."""

    _served: ClassVar[Mapping[int, str]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        marked = ((name, getattr(method, _SERVES, ())) for name, method in vars(cls).items())
        cls._served = {**cls._served, **{code: name for name, codes in marked for code in codes}}

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {code: getattr(self, name) for code, name in self._served.items()}


async def write_in_turns(body: LargeBody) -> bytes:
    """Return the JSON of a body that may be large; other tasks run after each part.

    The content of the body must not change meanwhile.
    """
    parts: list[bytes] = []
    for part in body.json_parts():
        parts.append(part)
        await trio.lowlevel.checkpoint()
    return b"".join(parts)
