"""The results of our filters for a case of `cases.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reput_protocol.errors import FilterSyntaxError
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.filter.sql.conditions import NotComparable
from reput_protocol.properties import encode_properties


def outcome(expression: str, messages: Iterable[Mapping[str, str]]) -> str | list[bool | str | None]:
    """`refused`, or for each message true, false, None or `failed`."""
    try:
        compiled = SqlFilter.parse(expression)
    except FilterSyntaxError:
        return "refused"
    return [evaluated(compiled, encode_properties(message)) for message in messages]


def evaluated(compiled: SqlFilter, properties: bytes) -> bool | str | None:
    """The value for one message; checked against what `matches` says of it."""
    try:
        value = compiled.evaluate(properties)
    except NotComparable:
        assert not compiled.matches(properties)
        return "failed"
    assert compiled.matches(properties) is (value is True)
    return value
