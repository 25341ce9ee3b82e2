"""From a request code to its processor, and from the result of the processor to an answer.

One table serves all three header types; processors do not depend on the header type.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import structlog
import trio

from reput_broker.access.control import Access
from reput_broker.config.sections import LimitsConfig
from reput_broker.remoting.request import Handled, Handler, Put, Refusal, Request, Response, Result, handled
from reput_broker.store.base.errors import DiskFull, StoreError
from reput_broker.store.base.file_io import is_no_space
from reput_broker.store.base.results import PutResult
from reput_broker.tables.offset_journal import JournalWriteFailed
from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import Content
from reput_protocol.commands.table import REQUESTS, why_not_served
from reput_protocol.errors import BodyMalformed, ErrorCode, FilterSyntaxError, HeaderFieldError, InvalidName

log = structlog.get_logger(__name__)

PUTS: Final = frozenset(code for code, row in REQUESTS.items() if row.content is Content.PUT)
"""Requests that store messages and do not depend on the puts just before them."""
_NO_DISPATCH_BEFORE: Final = PUTS | {code for code, row in REQUESTS.items() if row.waits}
"""Requests that need not see what was put before, and those whose handlers ensure that: it depends on whether they
wait."""
_MESSAGES = PUTS | {code for code, row in REQUESTS.items() if row.content is Content.MESSAGES}
"""Requests with messages; limits of their own bound their size."""
_LARGE_BODY: Final = 4096
"""Bodies above this size are parsed one at a time, and other tasks run in between."""
_BYTES_A_COMMA: Final = 11
"""A body may have one comma for so many bytes of `limits.body_size`: parsing a value takes far more memory than its
bytes."""
_OF_A_PEER = (ConnectionError, TimeoutError)
"""Errors of the operating system that do not come from the disk."""


class RequestHandling:
    """The table of handlers.

    Args:
        access: checks every request before anything else looks at it; None: all requests are served.
        append: appends puts, now or when its result is awaited, and sets the outcome of each (`Appender.append`).
        after_puts: called with the connection once the puts of a read are stored and their answers written; it
            dispatches the log. None if a sync or a commit does that (`PutPath.dispatch_put_by`).
        before_read: called before a request that may read what was put; it dispatches the log
            (`ReputMessageService.dispatch_acknowledged`). The handlers of pulls do so themselves.

    Raises:
        ValueError: a request has no row in the table of requests.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        append: Callable[[Sequence[Put]], Awaitable[None] | None] = lambda _: None,
        after_puts: Callable[[object], None] | None = None,
        before_read: Callable[[], None] = lambda: None,
        limits: LimitsConfig | None = None,
        access: Access = None,
    ) -> None:
        self._access = access
        self._served: dict[int, Handler] = {}
        self._refusing: dict[str, dict[int, Handler]] = {}
        self._handlers: dict[int, Handler] = {}
        self.serve({RequestCode.SIGNATURE_CHALLENGE: self._challenge, **handlers})
        self.append = append
        self.after_puts = after_puts
        self._before_read = before_read
        self._limits = limits or LimitsConfig()
        self._large_body_lock = trio.Lock()

    def serve(self, handlers: Mapping[int, Handler]) -> None:
        """Serve more requests. Raises ValueError for one that is not in the table of requests."""
        for code in handlers.keys() - REQUESTS.keys():
            raise ValueError(f"request {code} has no row in reput_protocol.commands.table; add it to its family")
        self._served.update(handlers)
        self._choose_handlers()

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """The processors' methods by request code, those included whose requests are refused for now."""
        return MappingProxyType(self._served)

    def refuse(self, reason: str, codes: Collection[int], refusal: Refusal | None) -> None:
        """Refuse the requests `codes` from now on, besides those that are refused for other reasons.

        Args:
            reason: a key. A request is served as long as it is refused for no reason.
            codes: in place of those that were refused for this reason.
            refusal: None: no request is refused for this reason any more.
        """

        def refuse(_request: Request) -> Result:
            assert refusal is not None
            raise refusal

        self._refusing[reason] = {} if refusal is None else dict.fromkeys(codes, refuse)
        self._choose_handlers()

    def _choose_handlers(self) -> None:
        self._handlers = {**self._served}
        for refused in self._refusing.values():
            self._handlers.update(refused)

    def begin(self, request: Request) -> Result:
        """Start a request. Errors of a processor become answers.

        Returns:
            The answer, a put, a coroutine that ends with one of these, or None if the answer is sent later.
        """
        code, access = request.header.code, self._access
        try:
            if access is not None:
                access.authenticate(request)
            handler = self._handlers.get(code)
            if handler is None:
                return Response(int(ErrorCode.UNSUPPORTED_REQUEST.response_code), remark=why_not_served(code))
            if len(request.body) > _LARGE_BODY and code not in _MESSAGES:
                self._check_size(request)
                return self._handle_large(request, handler)
            if access is not None:
                access.authorize(request)
            if code not in _NO_DISPATCH_BEFORE:
                self._before_read()
            return handler(request)
        except Exception as error:
            return self.refused(request, error)

    def _challenge(self, request: Request) -> Response:
        return Response(0, {} if self._access is None else dict(self._access.challenge(request)))

    def _body_limit(self, code: int) -> int:
        is_table = code in REQUESTS and REQUESTS[code].content is Content.TABLE
        return self._limits.frame_size if is_table else self._limits.body_size

    async def _handle_large(self, request: Request, handler: Handler) -> Handled:
        """Handle a request with a large body, which the handler parses before it awaits anything."""
        commas = bytes(request.body).count(b",")
        most = self._body_limit(request.header.code) // _BYTES_A_COMMA
        if commas > most:
            raise Refusal(
                ErrorCode.TOO_LARGE,
                f"the body of request {request.header.code} has {commas} commas, and at most {most} "
                f"are accepted (one for each {_BYTES_A_COMMA} bytes of limits.body_size); send several smaller "
                "requests",
            )
        async with self._large_body_lock:
            await trio.lowlevel.checkpoint()
        if self._access is not None:
            self._access.authorize(request)
        if request.header.code not in _NO_DISPATCH_BEFORE:
            self._before_read()
        return await handled(handler(request))

    async def resolve(self, request: Request, work: Awaitable[Handled]) -> Handled:
        """Await the coroutine of a processor, and return what it ends with. Its errors become answers."""
        try:
            return await work
        except Exception as error:
            return self.refused(request, error)

    async def handle_alone(self, request: Request) -> Response | None:
        """Handle a request to the end, without others next to it; return None if the answer is sent later."""
        begun = self.begin(request)
        result = await self.resolve(request, begun) if isinstance(begun, Awaitable) else begun
        if isinstance(result, Put):
            waiting = self.append((result,))
            if waiting is not None:
                await waiting
            outcome = result.outcome
            assert not isinstance(outcome, PutResult), "`append` has replaced it"
            result = self.refused(request, outcome) if isinstance(outcome, Exception) else outcome
        if self.after_puts is not None:
            self.after_puts(request.client)
        return result

    def _check_size(self, request: Request) -> None:
        if len(request.body) > self._body_limit(request.header.code):
            raise Refusal(
                ErrorCode.TOO_LARGE,
                f"the body of request {request.header.code} has {len(request.body)} bytes, and at most "
                f"{self._limits.body_size} are accepted (limits.body_size); send several smaller requests",
            )

    def refused(self, request: Request, error: Exception) -> Response:
        """Return the answer for an error of a handler or of a put."""
        if isinstance(error, Refusal):
            return error.response()
        known = _as_refusal(error)
        if known is None and isinstance(error, OSError) and not isinstance(error, _OF_A_PEER):
            known = Refusal(
                ErrorCode.DISK_FULL if is_no_space(error) else ErrorCode.READ_ONLY,
                f"the broker's disk failed: {error}; nothing is certain to be saved: check the disk, then repeat the "
                "request",
            )
            log.error("request_not_saved", code=request.header.code, detail=str(error), hint="check the disk")
        if known is not None:
            return known.response()
        incident = secrets.token_hex(6)
        log.error(
            "request_failed",
            incident=incident,
            code=request.header.code,
            hint="a defect of the broker; please report it with this log entry",
            exc_info=error,
        )
        return Refusal(
            ErrorCode.INTERNAL, f"the broker failed on this request; incident {incident} in its log"
        ).response()


def _as_refusal(error: Exception) -> Refusal | None:
    """Return the refusal for an error of the request or the disk; None for a defect of the broker."""
    if isinstance(error, HeaderFieldError | BodyMalformed):
        return Refusal(ErrorCode.INVALID_ARGUMENT, str(error))
    if isinstance(error, InvalidName):
        return Refusal(ErrorCode.INVALID_ARGUMENT, str(error))
    if isinstance(error, FilterSyntaxError):
        return Refusal(ErrorCode.FILTER_SYNTAX, str(error))
    if isinstance(error, MemoryError):
        return Refusal(ErrorCode.BUSY, "the broker has no memory for this request now; repeat it later")
    if isinstance(error, JournalWriteFailed):
        return Refusal(ErrorCode.DISK_FULL if error.disk_full else ErrorCode.READ_ONLY, str(error))
    if isinstance(error, DiskFull):
        return Refusal(ErrorCode.DISK_FULL, str(error))
    if isinstance(error, StoreError):
        return Refusal(ErrorCode.READ_ONLY, str(error))
    return None
