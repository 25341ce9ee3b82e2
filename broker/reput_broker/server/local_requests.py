"""Requests of the broker's own pages, handled like those of a connection: the same table, checks and refusals."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio
from typing_extensions import override

from reput_broker.access.model import OPERATOR
from reput_broker.observe.counters import RequestTraffic
from reput_broker.remoting.request import Client, ClientAnswer, ClientGone, Principal, Request, Response
from reput_broker.server.handling import RequestHandling
from reput_protocol.codes import PROTOCOL_VERSION, LanguageCode
from reput_protocol.errors import BrokerError, ErrorCode
from reput_protocol.record.message_id import Host
from reput_protocol.wire.header import Header, HeaderType, Value
from reput_protocol.wire.signature import SignatureChecker

_HOST: Final = Host("127.0.0.1", 0)
_SHARE: Final = 4 << 20
"""Bytes of one answer of variable size."""


class LocalRequests:
    """Makes requests to the broker in this process, and counts those without an answer.

    Attributes:
        address: of the broker, `ip:port`, as clients on this machine dial it.
    """

    def __init__(self, handling: RequestHandling) -> None:
        self.address = ""
        self._handling = handling
        self._open = 0
        self._is_ending = False

    @property
    def is_busy(self) -> bool:
        """Whether a request has no answer yet."""
        return self._open > 0

    def end(self) -> None:
        """Refuse further requests, because the broker drains."""
        self._is_ending = True

    async def ask(
        self,
        code: int,
        ext: Mapping[str, Value],
        body: bytes = b"",
        *,
        principal: Principal = OPERATOR,
        peer: str = "console",
    ) -> Response:
        """Make a request and return its answer, whatever its code.

        Args:
            code: the request's code.
            ext: the header's fields, typed as for msgpack.
            body: the request's body.
            principal: whose rights count, under access control.
            peer: for logs, who it is for.

        Raises:
            BrokerError: DRAINING: the broker ends or changes its role.
        """
        if self._is_ending:
            raise BrokerError(ErrorCode.DRAINING, "the broker stops, or changes its role; ask again later")
        self._open += 1
        try:
            async with trio.open_nursery() as nursery:
                return await self._answer(_LocalClient(nursery, self.address, principal, peer), code, ext, body)
        finally:
            self._open -= 1

    async def _answer(self, client: _LocalClient, code: int, ext: Mapping[str, Value], body: bytes) -> Response:
        header = Header(code, 0, 0, None, dict(ext), LanguageCode.PYTHON.value, PROTOCOL_VERSION)
        request = Request(client, client.header_type, header, memoryview(body), time.monotonic(), RequestTraffic())
        request.principal = client.principal
        answer = await self._handling.handle_alone(request)
        if answer is None:
            answer = await client.answered()
        request.traffic.done(answer.code, time.monotonic() - request.received_at)  # writes the line of the audit
        return answer


class _LocalClient(Client):
    """What stands for the connection of one request."""

    header_type = HeaderType.MSGPACK.value
    is_local = True
    is_closed = is_crowded = False
    unauthenticated = 0
    share = _SHARE
    born_host = _HOST.packed()

    def __init__(self, nursery: trio.Nursery, address: str, principal: Principal, peer: str) -> None:
        self.dialled_address = address
        self.principal: Principal | None = principal
        self.peer = peer
        self.opened_at = trio.current_time()
        self.signatures: SignatureChecker | None = None
        self._nursery = nursery
        self._done = trio.Event()
        self._response: Response | None = None

    async def answered(self) -> Response:
        """Wait for the answer."""
        await self._done.wait()
        assert self._response is not None, "it is set first"
        return self._response

    @override
    async def drained(self) -> None:
        pass

    @override
    def answer(self, request: Request, response: Response) -> None:
        if not request.is_answered:
            request.is_answered = True
            self._response = response
            self._done.set()

    @override
    def held_elsewhere(self, request: Request) -> None:
        """It counts no memory."""

    @override
    def flush(self) -> None:
        pass

    @override
    def spawn(self, work: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        self._nursery.start_soon(work, *arguments)

    @override
    def note_role(self, role: str) -> None:
        pass

    @override
    def send_request(self, code: int, ext: Mapping[str, Value], body: bytes = b"") -> bool:
        """There is nothing to send to."""
        del code, ext, body
        return False

    @override
    async def call(self, code: int, ext: Mapping[str, Value], body: bytes = b"", *, timeout_s: float) -> ClientAnswer:
        del code, ext, body, timeout_s
        raise ClientGone("the broker's pages accept no requests")

    @override
    def close(self, reason: str) -> None:
        pass
