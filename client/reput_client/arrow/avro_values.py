"""Arrow types of Avro's schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from reput_client.arrow.value_form import ValueForm
from reput_client.serialize.avro import DECIMAL

_SIMPLE: Final = {
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


def form_of(schema: Any) -> ValueForm:
    """Return the form of a schema that fastavro has parsed.

    Raises:
        ValueError: it is recursive, or has a union of several types.
    """
    parts = [part for part in (schema if isinstance(schema, list) else [schema]) if isinstance(part, dict)]
    named: Mapping[str, Any] = parts[0]["__named_schemas"] if parts else {}
    types = _Types(named)
    kind = types.of(schema, ())
    return ValueForm(kind, _without_uuids if types.has_uuids else None)


class _Types:
    def __init__(self, named: Mapping[str, Any]) -> None:
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
            if schema in _SIMPLE:
                return _SIMPLE[schema]
            schema = self._named[schema]
        logical = schema.get("logicalType")
        if logical == DECIMAL:
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
                    [
                        pa.field(each["name"], self.of(each["type"], (*parents, name)))
                        for each in schema["fields"]
                    ]
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
