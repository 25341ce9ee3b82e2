"""The base of typed headers: msgspec structs read from the `ext` of a `wire.header.Header` and written to it.

Fields have their names in camel case on the wire unless `field(name=...)` is given. One class reads all three header
types: a value may be typed (msgpack) or text (JSON, binary), and an empty text is an absent number, as in RocketMQ's
binary headers. Unknown fields are ignored.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, Self, TypeAlias, Union, get_args, get_origin

from msgspec import Meta, Struct, ValidationError, convert, to_builtins
from msgspec.structs import FieldInfo
from msgspec.structs import fields as fields_of

from reput_protocol.errors import HeaderFieldError
from reput_protocol.kernel.frames import typed_fields
from reput_protocol.wire.header import HeaderType, Value, value_text

_MSGPACK: Final = HeaderType.MSGPACK.value

I32: TypeAlias = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
I64: TypeAlias = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class CommandHeader(Struct, gc=False, rename="camel"):
    """The base class of typed headers."""

    @classmethod
    def from_ext(cls, ext: Mapping[str, Value]) -> Self:
        """Read the fields.

        Raises:
            HeaderFieldError: a required field is missing, or a value has the wrong type or range.
        """
        found = typed_fields(ext, *_not_texts(cls))
        try:
            return convert(found, cls)
        except ValidationError:
            return convert(_forgive(cls, found), cls)

    def to_ext(self, header_type: int = _MSGPACK) -> dict[str, Value]:
        """Return the fields other than None: as text for JSON and binary, typed for msgpack.

        The client leaves it at MSGPACK: it may not know yet what the server reads, and a header that then leaves as
        JSON has its values turned into text by the encoder (`text_ext`).
        """
        ext: dict[str, Value] = to_builtins(self)
        if header_type != _MSGPACK:
            return {
                name: value if type(value) is str else str(value) if type(value) is int else value_text(value)
                for name, value in ext.items()
                if value is not None
            }
        for name in _optional(type(self)):
            if ext[name] is None:
                del ext[name]
        return ext


@cache
def _fields(kind: Any) -> tuple[FieldInfo, ...]:
    """Return the fields of a class. To look them up evaluates all annotations, which takes longer than a request."""
    return fields_of(kind)


@cache
def _optional(kind: Any) -> tuple[str, ...]:
    """Return the names of fields that may be None."""
    return tuple(field.encode_name for field in _fields(kind) if field.default is None)


@cache
def _not_texts(kind: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the integer fields, and of the flags."""
    plain = [(field.encode_name, _plain(field.type)) for field in _fields(kind)]
    return (
        tuple(name for name, found in plain if found is int),
        tuple(name for name, found in plain if found is bool),
    )


def _forgive(kind: Any, found: Mapping[str, Value]) -> dict[str, Value]:
    """Return the fields without absent ones, and numbers as text where text is wanted.

    Raises:
        HeaderFieldError: for the first invalid one.
    """
    forgiven: dict[str, Value] = {}
    for field in _fields(kind):
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
    for bits, kind in ((32, I32), (64, I64)):
        if hint in (kind, kind | None):
            return f"does not fit {bits} bits"
    (bounds,) = (meta for meta in get_args(hint)[1:] if isinstance(meta, Meta))
    return f"is not from {bounds.ge} to {bounds.le}"


@cache
def _plain(hint: Any) -> Any:
    """Return the type in an annotation: `int` for `I32 | None`."""
    if get_origin(hint) in (Annotated, Union, types.UnionType):
        return _plain(get_args(hint)[0])
    return hint
