"""The log entries of access control: refusals, and every administrative request.

Entries have the event `access_refused` or `administrative_request`, the user, the request, what it is about, the
client's address and the outcome. Never a secret, and nothing of a message.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import structlog

from reput_broker.access.model import Need
from reput_broker.access.requests import text_of
from reput_broker.observe.counters import RequestTraffic
from reput_broker.remoting.request import Request
from reput_protocol.codes import RequestCode, ResponseCode

log = structlog.get_logger(__name__)

_INTERVAL_S: Final = 10.0
_KINDS_MAX: Final = 1000
_TEXT_MAX: Final = 80
_OF_ACCOUNTS: Final = range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1)
_REQUESTS: Final = {code.value: code.name for code in RequestCode}
_RESPONSES: Final = {code.value: code.name for code in ResponseCode}


def request_name(code: int) -> str:
    """Return the name of a request code, its number if it has none."""
    return _REQUESTS.get(code, str(code))


class Audited(RequestTraffic):
    """Logs an administrative request with its outcome; it stands in for the counters that note the answer."""

    __slots__ = ("_account", "_counters", "_peer", "_request", "_user", "needs")

    def __init__(self, request: Request, user: str) -> None:
        self._counters = request.traffic
        self._user = user
        self._peer = request.client.peer
        self._request = request_name(request.header.code)
        self._account = _account_of(request)
        self.needs: Sequence[Need] = ()

    def done(self, response_code: int, duration_s: float, count: int = 1) -> None:
        """Log the request with its answer."""
        self._counters.done(response_code, duration_s, count)
        self._log(_RESPONSES.get(response_code, str(response_code)))

    def abandoned(self, count: int = 1) -> None:
        """Log the request without an answer: the connection has ended."""
        self._counters.abandoned(count)
        self._log("CONNECTION_LOST")

    def _log(self, outcome: str) -> None:
        log.info(
            "administrative_request",
            user=self._user,
            request=self._request,
            resources=[need.resource[:_TEXT_MAX] for need in self.needs],
            **self._account,
            peer=self._peer,
            outcome=outcome,
        )


def _account_of(request: Request) -> dict[str, str]:
    """Return the user, or the subject of rules, that a request sees or changes."""
    if request.header.code not in _OF_ACCOUNTS:
        return {}
    account = text_of(request.ext, "username") or text_of(request.ext, "subject")
    return {"account": account[:_TEXT_MAX]} if account else {}


class RefusalLog:
    """Logs refusals: of each user and request, or of each address without a valid user, one in ten seconds.

    The next entry has the number of those left out, so that a client that repeats its request cannot fill the log.
    """

    def __init__(self) -> None:
        self._written: dict[tuple[str, ...], float] = {}
        self._suppressed: dict[tuple[str, ...], int] = {}

    def forbidden(self, user: str, request: str, need: str, peer: str) -> None:
        """Log that a user lacks a right."""
        self._note((user, request), user=user, request=request, needs=need[: 2 * _TEXT_MAX], peer=peer)

    def bad_credentials(self, user: str, request: str, reason: str, peer: str) -> None:
        """Log a request without a valid signature. `user` is what the client claims."""
        host = peer.rpartition(":")[0]
        self._note((host, reason), user=user[:_TEXT_MAX], request=request, reason=reason, peer=peer)

    def _note(self, kind: tuple[str, ...], **facts: str) -> None:
        now = time.monotonic()
        last = self._written.get(kind)
        if last is not None and now - last < _INTERVAL_S:
            self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
            return
        if len(self._written) >= _KINDS_MAX:
            self._written.clear()
            self._suppressed.clear()
        self._written[kind] = now
        suppressed = self._suppressed.pop(kind, 0)
        log.info(
            "access_refused", **facts, outcome="refused", **({"suppressed": suppressed} if suppressed else {})
        )
