"""The rights that each request needs, by its row in the table of requests.

A request needs a right on everything that a field of its header or body names. Fields are read as the processors read
them.

Some requests name a message by its place in the log, and the body of STAGE_RECORDS is the rest of an earlier one. For
these the processor checks the topic itself, with `Request.check` or `Request.check_topic_of_message`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from reput_broker.access.model import Need
from reput_broker.remoting.request import Request
from reput_protocol.commands.base import NamedField, RequestType, named_fields
from reput_protocol.commands.table import REQUESTS
from reput_protocol.errors import HeaderFieldError
from reput_protocol.names import Names, popped_topic
from reput_protocol.rights import Kind, Right
from reput_protocol.wire.header import Value, value_text

Needs: TypeAlias = Callable[[Request], Sequence[Need]]

_KINDS: Final = {
    Names.TOPIC: Kind.TOPIC,
    Names.TOPICS: Kind.TOPIC,
    Names.POPPED_TOPIC: Kind.TOPIC,
    Names.GROUP: Kind.GROUP,
    Names.GROUPS: Kind.GROUP,
}


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
        return lambda request: [
            *_header_needs(in_header, request.ext),
            *_body_needs(row, in_body, request),
        ]
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
    return [
        Need(right, _KINDS[field.names], name) for field, right in in_body for name in field.names_in(body)
    ]


_REQUIREMENTS: Final[Mapping[int, Requirement]] = {code: _requirement(row) for code, row in REQUESTS.items()}
