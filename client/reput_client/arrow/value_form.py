"""How values become a column: those of `Json` of a given Arrow type, those of `Avro` of the type of its schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pyarrow as pa
from pyarrow import types

if TYPE_CHECKING:
    from reput_client.serialize.json import Json


class ValueForm(NamedTuple):
    """How deserialized values become a column.

    Attributes:
        kind: its type.
        fit: makes one value of the type of a deserialized one; None: it is one.
        check: raises ValueError if Arrow would coerce one of the values of rows; None: all are of the type.
    """

    kind: pa.DataType
    fit: Callable[[Any], Any] | None = None
    check: Callable[[list[Any]], None] | None = None


_KEPT: Final = (bytes, date, datetime, time, Decimal)
"""Types of values that Arrow takes as they are."""
_ROWS: Final = 256
"""Rows that are checked together; msgspec makes a copy of them, which is dropped."""
_OF_JSON: Final[tuple[tuple[Any, Any], ...]] = (
    (types.is_null, type(None)),
    (types.is_boolean, bool),
    (types.is_integer, int),
    (types.is_floating, int | float),
    (types.is_decimal, int | Decimal),
    (types.is_string, str),
    (types.is_large_string, str),
    (types.is_string_view, str),
    (types.is_date, int | date),
    (types.is_time, int | time),
    (types.is_timestamp, int | datetime),
    (types.is_duration, int),
)
_OBJECT: Any = TypedDict
_MAP: Any = dict
_LIST: Any = list
"""As values: a type checker does not take types that are made here."""
_LISTS: Final = (
    types.is_list,
    types.is_large_list,
    types.is_fixed_size_list,
    types.is_list_view,
    types.is_large_list_view,
)


def json_form(decoder: Json[Any], kind: pa.DataType) -> ValueForm:
    """Return the form of a decoder's values for a column of an Arrow type.

    Values are checked against the type, since Arrow would take 1.5 as the integer 1, a text as the list of its
    characters, and an empty list as a struct. Any value may be null, and the fields of a struct may be missing; those
    that the type does not name are left out. Besides null there are:

    - for a struct an object, for a map an object whose values are of its type, for a list an array
    - for integers, and for dates, times, timestamps and durations in the type's unit, a number without a fraction or
      exponent: not 1.0, true or "1"
    - for floating-point types any number, for decimals an integer
    - for texts a text, for binary types a text, which becomes UTF-8, for booleans true or false

    With `Json(kind)`, whose values have further types, also `date`, `time`, `datetime`, `Decimal` and `bytes` where the
    type is theirs; times lose what is below the type's unit.

    Raises:
        ValueError: Arrow makes no column of this type from values of Python.
    """
    try:
        pa.array([None], kind)
    except pa.ArrowException as error:
        raise ValueError(f"value_type is {kind}, which values cannot be converted to: {error}") from error
    return ValueForm(kind, None if decoder.kind is None else _plain, _Check(kind))


class _Check:
    """Checks values; pickled without the types that msgspec checks them with, which no module has."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._rows: Any = _LIST[_checked(kind)]

    def __call__(self, values: list[Any]) -> None:
        """Check the values of rows.

        Raises:
            ValueError: a value is not of the type; if it is the only one, says at which place of it.
        """
        try:
            for first in range(0, len(values), _ROWS):
                msgspec.convert(values[first : first + _ROWS], self._rows, builtin_types=_KEPT)
        except msgspec.ValidationError as error:
            raise ValueError(str(error).replace("`$[0]", "`$", 1)) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Check, (self._kind,)


def _plain(value: Any) -> Any:
    """Return dictionaries and lists for the objects of `Json(kind)`."""
    if hasattr(value, "model_dump"):  # of pydantic, which need not be installed
        value = value.model_dump()
    return msgspec.to_builtins(value, builtin_types=_KEPT)


def _checked(kind: pa.DataType) -> Any:
    """Return the type of Python, as msgspec takes it, of values for an Arrow type; any where Arrow coerces nothing."""
    checked: Any = Any
    if types.is_struct(kind):
        checked = _OBJECT("Object", {field.name: _checked(field.type) for field in kind}, total=False)
    elif types.is_map(kind):
        checked = _MAP[_checked(kind.key_type), _checked(kind.item_type)]
    elif any(is_one(kind) for is_one in _LISTS):
        checked = _LIST[_checked(kind.value_type)]
    elif types.is_dictionary(kind):
        checked = _checked(kind.value_type)
    else:
        checked = next((python for is_one, python in _OF_JSON if is_one(kind)), Any)
    return checked if checked is Any else checked | None


_OF_AVRO: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}
_DECIMAL128_DIGITS: Final = 38


def avro_form(schema: Any) -> ValueForm:
    """Return the form of a schema that fastavro has parsed.

    Raises:
        ValueError: it is recursive, or has a union of several types.
    """
    parts = [part for part in (schema if isinstance(schema, list) else [schema]) if isinstance(part, dict)]
    named: Mapping[str, Any] = parts[0]["__named_schemas"] if parts else {}
    kinds = _AvroTypes(named)
    kind = kinds.of(schema, ())
    return ValueForm(kind, _without_uuids if kinds.has_uuids else None)


class _AvroTypes:
    def __init__(self, named: Mapping[str, Any]) -> None:
        from reput_client.serialize.avro import DECIMAL  # needs fastavro

        self._decimal = DECIMAL
        self._named = named
        self.has_uuids = False

    def of(self, schema: Any, parents: tuple[str, ...]) -> pa.DataType:
        """Return the type of a schema within the named types `parents`."""
        if isinstance(schema, list):
            others = [each for each in schema if each != "null"]
            if len(others) > 1:
                raise ValueError("a union of several types has no column type")
            return self.of(others[0] if others else "null", parents)
        if isinstance(schema, str):
            if schema in _OF_AVRO:
                return _OF_AVRO[schema]
            schema = self._named[schema]
        logical = schema.get("logicalType")
        if logical == self._decimal:
            digits, scale = schema["precision"], schema.get("scale", 0)
            return (pa.decimal128 if digits <= _DECIMAL128_DIGITS else pa.decimal256)(digits, scale)
        if logical in _LOGICAL:
            self.has_uuids = self.has_uuids or logical == "uuid"
            return _LOGICAL[logical]
        match schema["type"]:
            case "record" | "error":
                name = schema["name"]
                if name in parents:
                    raise ValueError(f"{name} is recursive, and has no column type")
                return pa.struct(
                    [pa.field(each["name"], self.of(each["type"], (*parents, name))) for each in schema["fields"]]
                )
            case "enum":
                return pa.string()
            case "fixed":
                return pa.binary(schema["size"])
            case "array":
                return pa.list_(self.of(schema["items"], parents))
            case "map":
                return pa.map_(pa.string(), self.of(schema["values"], parents))
            case other:
                return self.of(other, parents)


def _without_uuids(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_uuids(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_uuids(each) for each in value]
    return str(value) if isinstance(value, UUID) else value
