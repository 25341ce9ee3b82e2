"""What all typed headers share: reading fields from a header's `ext` and writing them back.

A typed header is a msgspec struct. A field's name on the wire is its own in camel case unless `field(name=...)` says
otherwise. The same class reads all three header types: a value may come typed (msgpack) or as text (JSON, binary), and
an empty text stands for an absent number, as in RocketMQ's binary headers. Unknown fields are ignored.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Final, Self, TypeAlias, Union, get_args, get_origin

from msgspec import Meta, Struct, ValidationError, convert, to_builtins
from msgspec.structs import fields

from reput_protocol.errors import HeaderFieldError
from reput_protocol.header_model import HeaderType, Value, value_text

_MSGPACK: Final = HeaderType.MSGPACK.value
_DIGITS_MAX: Final = 20
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,20}")

I32: TypeAlias = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
I64: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class CommandHeader(Struct, gc=False, rename="camel"):
    """Base of all typed headers."""

    @classmethod
    def from_ext(cls, ext: Mapping[str, Value]) -> Self:
        """Read the fields.

        Raises:
            HeaderFieldError: a required field is missing, or a value is not of its field's type or range.
        """
        read: dict[str, Value] = {}
        for name, reader in _not_texts(cls):
            value = ext.get(name)
            if type(value) is str:
                plain = (
                    reader is _integer and value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX
                )
                read[name] = int(value) if plain else reader(value)
        found = {**ext, **read} if read else ext
        try:
            return convert(found, cls)
        except ValidationError:
            return convert(_forgive(cls, found), cls)

    def to_ext(self, header_type: int) -> dict[str, Value]:
        """Return the fields for a header of this type: text for JSON and binary, typed for msgpack; none if None."""
        ext: dict[str, Value] = to_builtins(self)
        for name in _optional(type(self)):
            if ext[name] is None:
                del ext[name]
        if header_type == _MSGPACK:
            return ext
        return {
            name: value if type(value) is str else str(value) if type(value) is int else value_text(value)
            for name, value in ext.items()
        }


@cache
def _optional(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields that may be None."""
    return tuple(field.encode_name for field in fields(kind) if field.default is None)


@cache
def _not_texts(kind: Any) -> tuple[tuple[str, Callable[[str], Value]], ...]:
    """Return the names of the numbers and flags of a struct, and how their text is read."""
    readers = {int: _integer, bool: _flag}
    known = [(field.encode_name, readers.get(_plain(field.type))) for field in fields(kind)]
    return tuple((name, read) for name, read in known if read is not None)


def _integer(text: str) -> Value:
    """Return the integer that a decimal text stands for, or the text."""
    return int(text) if _DECIMAL.fullmatch(text) else text


def _flag(text: str) -> Value:
    """Return the boolean that `true` or `false` stands for, in any case, or the text."""
    return {"true": True, "false": False}.get(text.lower(), text)


def _forgive(kind: type[Any], found: Mapping[str, Value]) -> dict[str, Value]:
    """Return the fields with what need not be right: absent ones, and numbers where text is wanted.

    Raises:
        HeaderFieldError: for the first one that is wrong.
    """
    forgiven: dict[str, Value] = {}
    for field in fields(kind):
        name, value, plain = field.encode_name, found.get(field.encode_name), _plain(field.type)
        if value is None or (value == "" and plain is not str):
            if field.required:
                raise HeaderFieldError(name, "is missing")
            continue
        try:
            forgiven[name] = value = value_text(value) if plain is str else value
            convert(value, field.type)
        except ValueError:
            raise HeaderFieldError(name, _fault(field.type, value)) from None
    return forgiven


def _fault(hint: Any, value: Value) -> str:
    plain = _plain(hint)
    if plain is str:
        return "is not text"
    if plain is bool:
        return "is neither true nor false"
    if plain is not int:
        return f"is not one of {', '.join(plain)}"
    if type(value) is not int:
        return "is not an integer"
    return f"does not fit {32 if hint in (I32, I32 | None) else 64} bits"


@cache
def _plain(hint: Any) -> Any:
    """Return the type of an annotation: `int` of `I32 | None`."""
    if get_origin(hint) in (Annotated, Union, types.UnionType):
        return _plain(get_args(hint)[0])
    return hint
