"""The rights that each request needs, by its row in the table of requests.

A request needs a right on everything that a field of its header or body names. Fields are read as the processors read
them.

Some requests name a message by its place in the log, and the body of STAGE_RECORDS is the rest of an earlier one. For
these the processor checks the topic itself, with `Request.check` or `Request.check_topic_of_message`.

The log entries of access control are here too: refusals, and every administrative request. They have the event
`access_refused` or `administrative_request`, the user, the request, what it is about, the client's address and the
outcome. Never a secret, and nothing of a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import structlog

from reput_broker.access.model import Need
from reput_broker.observe.counters import RequestTraffic
from reput_broker.remoting.request import Request
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.base import NamedField, RequestType, named_fields
from reput_protocol.commands.table import REQUESTS
from reput_protocol.errors import HeaderFieldError
from reput_protocol.names import Names, popped_topic
from reput_protocol.rights import Kind, Right
from reput_protocol.wire.header import Value, value_text

log = structlog.get_logger(__name__)

Needs: TypeAlias = Callable[[Request], Sequence[Need]]

_KINDS: Final = {
    Names.TOPIC: Kind.TOPIC,
    Names.TOPICS: Kind.TOPIC,
    Names.POPPED_TOPIC: Kind.TOPIC,
    Names.GROUP: Kind.GROUP,
    Names.GROUPS: Kind.GROUP,
}
_INTERVAL_S: Final = 10.0
_KINDS_MAX: Final = 1000
_TEXT_MAX: Final = 80
_OF_ACCOUNTS: Final = range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1)
_REQUESTS: Final = {code.value: code.name for code in RequestCode}
_RESPONSES: Final = {code.value: code.name for code in ResponseCode}


class Requirement(NamedTuple):
    """The rights of one request code.

    Attributes:
        text: for the documentation.
        needs: returns the rights that a request needs. Raises HeaderFieldError, BodyMalformed.
        writes_something: whether its user must be allowed to send to some topic, whichever.
        is_administrative: whether it is logged for an audit, and refused from other machines while access control is
            off.
    """

    text: str
    needs: Needs
    writes_something: bool = False
    is_administrative: bool = False


def requirement_of(code: int) -> Requirement:
    """Return the requirement of a request code that is in the table."""
    return _REQUIREMENTS[code]


def text_of(ext: Mapping[str, Value], name: str) -> str:
    """Return a field as the typed headers read it: as text, "" if it is absent."""
    value = ext.get(name)
    if type(value) is str:
        return value
    if value is None:
        return ""
    try:
        return value_text(value)
    except ValueError:
        raise HeaderFieldError(name, "is not text") from None


_Checked: TypeAlias = tuple[NamedField, Right]


def _requirement(row: RequestType) -> Requirement:
    in_header = [] if row.cluster is not None else _checked(row, named_fields(row.header))
    in_body = [] if row.cluster is not None else _checked(row, named_fields(row.body))
    texts = [*map(_of_header, in_header), *map(_of_body, in_body)]
    if row.cluster is not None and not row.handler_checks:
        texts.append(f"{row.cluster} on the cluster")
    if row.unnamed is not None:
        texts.append(f"without one {row.unnamed} on the cluster")
    if row.writes_something:
        texts.append("write on some topic")
    if row.handler_checks:
        texts.append(row.handler_checks)
    needs = _needs(row, in_header, in_body)
    return Requirement(", ".join(texts) or "any user", needs, row.writes_something, row.is_administrative)


def _checked(row: RequestType, fields: Sequence[NamedField]) -> list[_Checked]:
    """Return the fields on whose names a right is needed, those with topics first."""
    found = [(field, right) for field in fields if (right := row.right_on(field)) is not None]
    return sorted(found, key=lambda checked: _KINDS[checked[0].names] is Kind.GROUP)


def _of_header(checked: _Checked) -> str:
    field, right = checked
    return f"{right} on {_KINDS[field.names]} `{field.path}`{', if given' * field.may_be_absent}"


def _of_body(checked: _Checked) -> str:
    field, right = checked
    return f"{right} on each {_KINDS[field.names]} `{field.path}` of the body"


def _needs(row: RequestType, in_header: Sequence[_Checked], in_body: Sequence[_Checked]) -> Needs:
    on_cluster = row.cluster or row.unnamed
    if on_cluster is not None and not in_header:
        needs = (Need(on_cluster, Kind.CLUSTER),)
        return lambda _: needs
    if in_body:
        return lambda request: [*_header_needs(in_header, request.ext), *_body_needs(row, in_body, request)]
    if row.unnamed is not None:
        unnamed = (Need(row.unnamed, Kind.CLUSTER),)
        return lambda request: _header_needs(in_header, request.ext) or unnamed
    if all(field.names in (Names.TOPIC, Names.GROUP) for field, _ in in_header):
        return _plain_needs(in_header)
    return lambda request: _header_needs(in_header, request.ext)


def _plain_needs(in_header: Sequence[_Checked]) -> Needs:
    """Return what reads plain fields of a header, as those of sends and pulls, without decoding it."""
    parts = tuple((right, _KINDS[field.names], field.path, field.may_be_absent) for field, right in in_header)

    def needs(request: Request) -> list[Need]:
        ext = request.header.ext
        return [
            Need(right, kind, name)
            for right, kind, field, may_be_absent in parts
            if (name := text_of(ext, field)) or not may_be_absent
        ]

    return needs


def _header_needs(in_header: Sequence[_Checked], ext: Mapping[str, Value]) -> list[Need]:
    found = []
    for field, right in in_header:
        text = text_of(ext, field.path)
        if field.group_path:
            text = popped_topic(text, text_of(ext, field.group_path))
        if text or not field.may_be_absent:
            found += [Need(right, _KINDS[field.names], name) for name in field.split(text)]
    return found


def _body_needs(row: RequestType, in_body: Sequence[_Checked], request: Request) -> list[Need]:
    assert row.body is not None, "it has fields"
    body = request.content(row.body)
    return [Need(right, _KINDS[field.names], name) for field, right in in_body for name in field.names_in(body)]


_REQUIREMENTS: Final[Mapping[int, Requirement]] = {code: _requirement(row) for code, row in REQUESTS.items()}


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
        log.info("access_refused", **facts, outcome="refused", **({"suppressed": suppressed} if suppressed else {}))
