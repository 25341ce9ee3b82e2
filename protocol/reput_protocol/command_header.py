"""What all typed headers share: reading fields from a header's `ext` and writing them back.

A typed header is a slots dataclass. Its annotations say how a field travels: `I32` and `I64` are integers of that
width, and a field's name on the wire is its own in camel case unless `Wire("...")` says otherwise. The same class
reads all three header types: a value may come typed (msgpack) or as text (JSON, binary), and an empty text stands
for an absent number, as in RocketMQ's binary headers. Fields that nobody here knows are ignored.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final, Self, TypeAlias, Union, get_args, get_origin, get_type_hints

from reput_protocol.errors import HeaderFieldError
from reput_protocol.header_model import HeaderType, Value, value_text

_MSGPACK: Final = HeaderType.MSGPACK.value
_DIGITS_MAX: Final = 20
_DECIMAL = re.compile(r"[+-]?[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class Wire:
    """Annotation of a field: its name on the wire."""

    name: str


@dataclass(frozen=True, slots=True)
class Width:
    """Annotation of an integer: how many bits the peer has for it."""

    bits: int


I32: TypeAlias = Annotated[int, Width(32)]
I64: TypeAlias = Annotated[int, Width(64)]

_Reader: TypeAlias = Callable[[str, Value], Any]


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """How one field of a typed header travels."""

    attribute: str
    wire_name: str
    read: _Reader
    is_text: bool
    required: bool
    default: Any


class CommandHeader:
    """Base of all typed headers."""

    __slots__ = ()

    @classmethod
    def from_ext(cls, ext: Mapping[str, Value]) -> Self:
        """Read the fields.

        Raises:
            HeaderFieldError: a required field is missing, or a value is not of its field's type or range.
        """
        header: Self = read_fields(cls, ext)
        return header

    def to_ext(self, header_type: int) -> dict[str, Value]:
        """Return the fields for a header of this type: text for JSON and binary, typed for msgpack; none if None."""
        return write_fields(self, header_type)


def read_fields(kind: type[Any], ext: Mapping[str, Value], names: Mapping[str, str] | None = None) -> Any:
    """Read an instance of the typed header `kind`; `names` maps attributes to other wire names than the usual ones."""
    values = []
    for spec in field_specs(kind):
        name = names[spec.attribute] if names else spec.wire_name
        value = ext.get(name)
        if value is not None and (value != "" or spec.is_text):
            values.append(spec.read(name, value))
        elif spec.required:
            raise HeaderFieldError(name, "is missing")
        else:
            values.append(spec.default)
    return kind(*values)


def write_fields(
    header: object, header_type: int, names: Mapping[str, str] | None = None
) -> dict[str, Value]:
    """Return the fields of a typed header as `CommandHeader.to_ext` does, under other wire names if given."""
    ext: dict[str, Value] = {}
    typed = header_type == _MSGPACK
    for spec in field_specs(type(header)):
        value = getattr(header, spec.attribute)
        if value is not None:
            name = names[spec.attribute] if names else spec.wire_name
            ext[name] = value if typed or type(value) is str else value_text(value)
    return ext


def field_specs(kind: type[Any]) -> tuple[FieldSpec, ...]:
    """Return how the fields of a typed header travel, in the order of its constructor."""
    specs = _SPECS.get(kind)
    if specs is None:
        specs = _SPECS[kind] = _read_annotations(kind)
    return specs


_SPECS: dict[type[Any], tuple[FieldSpec, ...]] = {}


def _read_annotations(kind: type[Any]) -> tuple[FieldSpec, ...]:
    hints = get_type_hints(kind, include_extras=True)
    specs = []
    for field in fields(kind):
        hint = hints[field.name]
        wire_name = _camel_case(field.name)
        read: _Reader | None = None
        for part in _flatten(hint):
            if isinstance(part, Wire):
                wire_name = part.name
            elif isinstance(part, Width):
                read = _integer_reader(part.bits)
            elif read is None:
                read = _reader_of(part)
        assert read is not None, f"{kind.__name__}.{field.name}: no way to read {hint!r}"
        specs.append(
            FieldSpec(field.name, wire_name, read, read is read_text, field.default is MISSING, field.default)
        )
    return tuple(specs)


def read_text(name: str, value: Value) -> str:
    """Return a text field's value; numbers and booleans that a client sends unquoted are taken as their text."""
    if type(value) is str:
        return value
    try:
        return value_text(value)
    except ValueError:
        raise HeaderFieldError(name, "is not text") from None


def read_bool(name: str, value: Value) -> bool:
    """Return a boolean field's value: a boolean, or `true` or `false` in any case."""
    if type(value) is bool:
        return value
    if type(value) is str:
        lower = value.lower()
        if lower in ("true", "false"):
            return lower == "true"
    raise HeaderFieldError(name, "is neither true nor false")


def read_integer(name: str, value: Value, bits: int) -> int:
    """Return an integer field's value, which must fit `bits` bits with a sign: an integer or its decimal text."""
    if type(value) is str and (
        (value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX) or _DECIMAL.fullmatch(value)
    ):
        value = int(value)
    if type(value) is not int:
        raise HeaderFieldError(name, "is not an integer")
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise HeaderFieldError(name, f"does not fit {bits} bits")
    return value


@cache
def _integer_reader(bits: int) -> _Reader:
    return lambda name, value: read_integer(name, value, bits)


def _reader_of(kind: object) -> _Reader | None:
    if kind is str:
        return read_text
    if kind is bool:
        return read_bool
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _choice_reader(kind)
    return None


def _choice_reader(kind: type[StrEnum]) -> _Reader:
    def read_choice(name: str, value: Value) -> StrEnum:
        try:
            return kind(str(value))
        except ValueError:
            known = ", ".join(kind)
            raise HeaderFieldError(name, f"is not one of {known}") from None

    return read_choice


def _flatten(hint: object) -> list[object]:
    """Return what an annotation is made of, outermost first: `Annotated[int, X] | None` is int, X, None's type."""
    if get_origin(hint) in (Annotated, Union, types.UnionType):
        return [part for argument in get_args(hint) for part in _flatten(argument)]
    return [hint]


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
