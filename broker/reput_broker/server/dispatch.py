"""From request code to processor, and from whatever a processor does to an answer.

One table serves all three header types; a processor does not know which one its request came under.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping

import structlog

from reput_broker.request import Handler, Refusal, Request, Response, RunHandler
from reput_protocol.codes import PullSysFlag, RequestCode
from reput_protocol.errors import (
    BodyMalformed,
    ErrorCode,
    FilterSyntaxError,
    HeaderFieldError,
    InvalidName,
    ReputError,
)

log = structlog.get_logger(__name__)

_PUTS = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.PUT_MESSAGE,
    }
)
_PULLS = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


class Dispatcher:
    """The table of processors.

    Args:
        handlers: the processors by request code.
        put_run: takes runs of native puts, which may instead go to their processor one by one.
        after_puts: called with the connection once the runs of a read are stored and their answers written.
        before_look: called before a request is handled that may look at what has been put, with whether it is a pull
            that waits if it finds nothing.
    """

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        put_run: RunHandler = lambda _: False,
        after_puts: Callable[[object], None] = lambda _: None,
        before_look: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._handlers = dict(handlers)
        self.begin_run = put_run
        """Stores a run of puts; False if it has to be begun one by one instead."""
        self.after_puts = after_puts
        self._before_look = before_look

    def begin(self, request: Request) -> Response | Awaitable[Response | None] | None:
        """Start a request: return its answer, a coroutine that leads to it, or None if it comes by itself.

        Never raises what a processor raises: that becomes an answer.
        """
        code = request.header.code
        handler = self._handlers.get(code)
        if handler is None:
            return Response(
                int(ErrorCode.UNSUPPORTED_REQUEST.response_code), remark=f" request type {code} not supported"
            )
        if code not in _PUTS:
            self._before_look(code in _PULLS and _may_be_parked(request))
        try:
            return handler(request)
        except Exception as error:
            return self._refused(request, error)

    async def finish(self, request: Request, work: Awaitable[Response | None]) -> Response | None:
        """Run the coroutine that a processor returned to its end, and answer as `begin` does."""
        try:
            return await work
        except Exception as error:
            return self._refused(request, error)

    def _refused(self, request: Request, error: Exception) -> Response:
        if isinstance(error, Refusal):
            return error.response()
        known = _as_refusal(error)
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
    """Return the refusal that a bad request amounts to; None if the error is not the sender's."""
    if isinstance(error, HeaderFieldError | BodyMalformed):
        return Refusal(ErrorCode.INVALID_ARGUMENT, str(error))
    if isinstance(error, InvalidName):
        return Refusal(ErrorCode.INVALID_ARGUMENT, str(error))
    if isinstance(error, FilterSyntaxError):
        return Refusal(ErrorCode.FILTER_SYNTAX, str(error))
    if isinstance(error, ReputError) and type(error).__module__.endswith("store.errors"):
        return Refusal(ErrorCode.READ_ONLY, str(error))
    return None


def _may_be_parked(request: Request) -> bool:
    """Whether a pull says that it waits; what it says wrongly is its processor's to refuse."""
    try:
        return bool(int(request.ext.get("sysFlag") or 0) & PullSysFlag.SUSPEND)
    except (TypeError, ValueError):
        return False
