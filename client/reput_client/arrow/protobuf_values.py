"""Arrow types of Protobuf's messages, and messages of values of these types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from reput_client.arrow.value_form import ValueForm

_SIMPLE: Final = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.uint32(),
    FieldDescriptor.CPPTYPE_UINT64: pa.uint64(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
}


def protobuf_form(message: Descriptor, parents: tuple[str, ...] = ()) -> ValueForm:
    """Return the form of a message within the messages `parents`: a struct, with null for what is not set.

    Raises:
        ValueError: it is recursive.
    """
    if message.full_name == "google.protobuf.Timestamp":
        return ValueForm(pa.timestamp("us", "UTC"), lambda value: value.ToDatetime(UTC))
    if message.full_name in parents:
        raise ValueError(f"{message.full_name} is recursive, and has no column type")
    parents = (*parents, message.full_name)
    forms = {field.name: _field(field, parents) for field in message.fields}
    with_presence = {field.name for field in message.fields if field.has_presence}

    def fit(value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, form in forms.items():
            if name in with_presence and not value.HasField(name):
                found[name] = None
            else:
                content = getattr(value, name)
                found[name] = content if form.fit is None else form.fit(content)
        return found

    return ValueForm(pa.struct([pa.field(name, form.kind) for name, form in forms.items()]), fit)


def _field(field: FieldDescriptor, parents: tuple[str, ...]) -> ValueForm:
    """Return the form of a field."""
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = (_single(message.fields_by_name[name], parents) for name in ("key", "value"))
        fit = value.fit or _same
        return ValueForm(
            pa.map_(key.kind, value.kind), lambda content: {name: fit(each) for name, each in content.items()}
        )
    single = _single(field, parents)
    if not field.is_repeated:
        return single
    fit_one = single.fit or _same
    return ValueForm(pa.list_(single.kind), lambda content: [fit_one(each) for each in content])


def _single(field: FieldDescriptor, parents: tuple[str, ...]) -> ValueForm:
    """Return the form of one value of a field."""
    if field.message_type is not None:
        return protobuf_form(field.message_type, parents)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return ValueForm(pa.string(), _enum_names(names))
    if field.cpp_type in _SIMPLE:
        return ValueForm(_SIMPLE[field.cpp_type])
    return ValueForm(pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string())


def _enum_names(names: dict[int, str]) -> Callable[[int], str]:
    return lambda number: names.get(number, str(number))  # of a later version of the schema


def _same(value: Any) -> Any:
    return value


def fill(message: Any, value: Any) -> None:
    """Set the fields of an empty message to those of a value of its column; one that is null stays as it is.

    Args:
        message: of the class.
        value: a dictionary, or a time for a Timestamp; maps are dictionaries. Numbers may be of a larger type.

    Raises:
        TypeError, ValueError: a field is unknown, or of another type.
    """
    if isinstance(value, datetime):
        message.FromDatetime(value)
        return
    if not isinstance(value, Mapping):
        raise TypeError(f"{type(value).__name__} is no value of {message.DESCRIPTOR.full_name}")
    for name, content in value.items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            raise ValueError(f"{message.DESCRIPTOR.full_name} has no field {name!r}")
        if content is not None:
            _fill_field(message, field, content)


def _fill_field(message: Any, field: FieldDescriptor, content: Any) -> None:
    target = getattr(message, field.name)
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        of_value = kind.fields_by_name["value"]
        for key, each in content.items():
            if of_value.message_type is not None:
                fill(target[key], each)
            else:
                target[key] = _scalar(of_value, each)
    elif field.is_repeated:
        for each in content:
            if kind is not None:
                fill(target.add(), each)
            else:
                target.append(_scalar(field, each))
    elif kind is not None:
        target.SetInParent()  # also if none of its fields is set
        fill(target, content)
    else:
        setattr(message, field.name, _scalar(field, content))


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, Decimal) and value % 1 == 0:  # Spark has no other type for 64 bits without a sign
        return int(value)
    if field.enum_type is not None and isinstance(value, str):
        known = field.enum_type.values_by_name.get(value)
        return int(value) if known is None else known.number
    return value
