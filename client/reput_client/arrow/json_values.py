"""Values of `Json` for a column of a given Arrow type."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypedDict

import msgspec
import pyarrow as pa
from pyarrow import types

from reput_client.arrow.value_form import ValueForm

if TYPE_CHECKING:
    from reput_client.serialize.json import Json

_KEPT: Final = (bytes, date, datetime, time, Decimal)
"""Types of values that Arrow takes as they are."""
_ROWS: Final = 256
"""Rows that are checked together; msgspec makes a copy of them, which is dropped."""
_SIMPLE: Final[tuple[tuple[Any, Any], ...]] = (
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


def form_of(decoder: Json[Any], kind: pa.DataType) -> ValueForm:
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
        checked = next((python for is_one, python in _SIMPLE if is_one(kind)), Any)
    return checked if checked is Any else checked | None
