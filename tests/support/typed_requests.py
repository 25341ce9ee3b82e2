"""Requests made from their rows in the table of requests: every field has a value, and chosen names."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from msgspec import Struct, to_builtins
from msgspec.structs import fields

import reput_protocol.commands
from reput_protocol.codes import RequestCode, TransactionState
from reput_protocol.commands.base import CommandHeader, RequestType, encode_json
from reput_protocol.commands.table import REQUESTS
from reput_protocol.names import Names
from reput_protocol.wire.header import Value

_TEXTS: Final = {
    "properties": "", "i": "", "subString": "*", "exp": "*", "expType": "TAG", "expressionType": "TAG",
    "subscription": "*", "strategyName": "AVG", "mode": "PULL", "topicFilterType": "SINGLE_TAG", "attributes": "",
    "r": "0", "b": "AQ==",
}  # fmt: skip
"""What a text has to be so that the request is not refused for it."""
_NUMBERS: Final = {"commitOrRollback": TransactionState.COMMIT.value}
"""What a number has to be so that there is an answer."""

NameOf = Callable[[str, Names], str]
"""Returns the name for a field, of its path and of what it names."""


def request_of(row: RequestType, name_of: NameOf) -> tuple[dict[str, Value], bytes]:
    """Return the fields of the header and the body of a request."""
    ext = {} if row.header is None else _members(row.header, name_of, ())
    body = b"" if row.body is None else encode_json(_members(row.body, name_of, ()))
    return ext, body


def _members(kind: Any, name_of: NameOf, path: tuple[str, ...]) -> dict[str, Any]:
    return {field.encode_name: _value(field.type, name_of, (*path, field.encode_name)) for field in fields(kind)}


def _value(hint: Any, name_of: NameOf, path: tuple[str, ...]) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _value(next(part for part in inner if part is not type(None)), name_of, path)
    if origin is Annotated:
        names = next((mark for mark in inner[1:] if isinstance(mark, Names)), None)
        return _value(inner[0], name_of, path) if names is None else name_of(".".join(path), names)
    if origin in (list, Sequence, tuple):
        return [_value(inner[0], name_of, path)]
    if origin in (dict, Mapping):
        key = _value(inner[0], name_of, path)
        value = _value(inner[1], name_of, path)
        # A map that is keyed by objects is written as a list of pairs.
        return [[key, value]] if isinstance(key, dict) else {str(key): value}
    return _plain(hint, name_of, path)


def _plain(hint: Any, name_of: NameOf, path: tuple[str, ...]) -> Any:
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _members(hint, name_of, path)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return to_builtins(next(iter(hint)))
    if hasattr(hint, "_fields"):
        return [_value(part, name_of, path) for part in get_type_hints(hint, include_extras=True).values()]
    if hint is str:
        return _TEXTS.get(path[-1], "x")
    plain: dict[Any, Any] = {bool: False, int: _NUMBERS.get(path[-1], 0), float: 0.0}
    return plain.get(hint)


def typed_headers() -> list[type[CommandHeader]]:
    for module in iter_modules(reput_protocol.commands.__path__, "reput_protocol.commands."):
        import_module(module.name)
    found = CommandHeader.__subclasses__()
    for kind in found:
        found += kind.__subclasses__()
    return [kind for kind in found if kind.__module__.startswith("reput_protocol.")]


def code_of(header: type[CommandHeader]) -> RequestCode:
    """Return the first request in the table that has a header."""
    return next(row.code for row in REQUESTS.values() if row.header is header)
