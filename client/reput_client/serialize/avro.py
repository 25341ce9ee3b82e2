"""Avro for the values of messages, with a schema of the program or of a registry."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from reput_client.serialize.registry import (
    FRAME_BYTES,
    Registered,
    Schema,
    SchemaRegistry,
    frame,
    json_text,
    needs,
    schema_id_of,
)

try:
    # In plain Python, for recursive schemas: the compiled reader overflows the stack and ends the process at some
    # thousand levels, and a body of 10 KB can have them.
    from fastavro import _read_py, parse_schema, schemaless_reader, schemaless_writer
    from fastavro.read import LOGICAL_READERS
    from fastavro.write import LOGICAL_WRITERS
except ModuleNotFoundError as missing:
    raise needs("fastavro", "avro", missing) from missing

_SCHEMAS_MAX: Final = 1000
_REFERENCES_MAX: Final = 200
_DEPTH_MAX: Final = 32
_LEVELS_MAX: Final = 100
DECIMAL: Final = "reput-decimal"
"""The logical type that stands for `decimal` in parsed schemas.

fastavro takes seconds for a number of 100 KB, and rounds one with more digits than its schema allows.
"""

AvroSchema: TypeAlias = str | os.PathLike[str] | dict[str, Any] | list[Any]
"""A file of a schema in JSON (a path, or its name in a text), a text with the schema, or its parsed JSON."""


class _Parsed(NamedTuple):
    """A schema as fastavro takes it, the reader for it, and whether its values can be of any depth."""

    schema: Any
    read: Callable[..., Any]
    is_recursive: bool


class Avro(Registered[Any]):
    """Values as Avro: dictionaries for records, and what fastavro makes of the other types.

        orders = Avro("order.avsc")
        Producer(address, serializer=orders.serialize)
        Consumer(address, group="billing", topic="orders", deserializer=orders.deserialize)

    With a registry each body starts with the id of its writer's schema, in Confluent's frame. `serialize` asks the
    registry for the id of its schema at its first call. `deserialize` asks for each writer's schema once, and resolves
    it to `schema`: fields that the writer did not have get their defaults. These calls block for up to the registry's
    `timeout_s`; `await prepare(...)` asks in a thread. May be shared by clients, tasks and threads, and pickled.

    Args:
        schema: None, with a registry: the subject's latest for `serialize`, each writer's for `deserialize`.
        registry: None: bodies have no frame, and are written and read with `schema`.
        subject: under which `serialize` finds its schema, usually `TOPIC-value`.
        register: whether `serialize` adds its schema to the subject if it is not there.

    Raises:
        ModuleNotFoundError: fastavro is not installed; the extra `avro` of `reput-client` has it.
        ValueError: the schema cannot be read or is invalid, or arguments contradict each other.
    """

    def __init__(
        self,
        schema: AvroSchema | None = None,
        *,
        registry: SchemaRegistry | None = None,
        subject: str | None = None,
        register: bool = False,
    ) -> None:
        super().__init__(registry, subject, register)
        if schema is None and (registry is None or register):
            raise ValueError("give a schema" + ("" if registry is None else " to register"))
        self._given = None if schema is None else _load(schema)
        self._reader = None if schema is None else _parse(self._given)
        self._latest: _Parsed | None = None
        self._writers: dict[int, _Parsed] = {}

    def serialize(self, value: Any) -> bytes:
        """Return the body of a value.

        Raises:
            RegistryUnavailable, RegistryRefused, SchemaNotFound: the registry gave no id. A producer raises them, too.
            Exception: of fastavro, if the value does not fit the schema. A producer raises `InvalidMessage` from it.
        """
        schema_id = None if self._registry is None else self._schema_id()
        parsed = self._reader or self._latest
        assert parsed is not None, "given, or found with the id"
        if parsed.is_recursive:
            _check_depth(value)
        payload = BytesIO()
        schemaless_writer(payload, parsed.schema, value)
        return payload.getvalue() if schema_id is None else frame(schema_id, payload.getvalue())

    def deserialize(self, body: bytes) -> Any:
        """Return the value of a body.

        Raises:
            RegistryUnavailable, RegistryRefused: the registry gave no schema. `ReceivedMessage.value` raises them, too.
            Exception: the body is malformed, its schema is unknown (`SchemaNotFound`), or cannot be resolved to the
                program's. `ReceivedMessage.value` raises `NotDeserialized` from it.
        """
        payload = BytesIO(body)
        if self._registry is None:
            writer = self._reader
        else:
            writer = self._writer(schema_id_of(body))
            payload.seek(FRAME_BYTES)
        assert writer is not None, "given without a registry"
        reader = None if self._reader is None or self._reader is writer else self._reader.schema
        value = writer.read(payload, writer.schema, reader)
        if payload.tell() != len(body):
            raise ValueError(f"the value ends at byte {payload.tell()} of {len(body)}")
        return value

    def to_one_schema(self) -> Avro:
        """Return one that resolves bodies to the schema of the program, or else to the subject's latest as it is now.

        Raises as `parsed_schema`, whose values it returns.
        """
        if self._reader is not None:
            return self
        return _ToLatest(self._registry, self._subject, self._schema_id())

    def parsed_schema(self) -> Any:
        """Return the schema of the program, or else the subject's latest, as fastavro has parsed it.

        Raises:
            ValueError: there is neither a schema nor a subject.
            RegistryUnavailable, RegistryRefused, SchemaNotFound: the registry gave no schema.
        """
        if self._reader is None and self._latest is None:
            self._schema_id()
        parsed = self._reader or self._latest
        assert parsed is not None, "given, or found with the id"
        return parsed.schema

    def _own_schema(self) -> Schema | None:
        return None if self._given is None else Schema("AVRO", json_text(self._given))

    def _adopt(self, schema_id: int) -> None:
        self._latest = self._writer(schema_id)

    def _knows(self, schema_id: int) -> bool:
        return schema_id in self._writers

    def _learn(self, schema_id: int) -> None:
        self._writer(schema_id)

    def _writer(self, schema_id: int) -> _Parsed:
        """Return the schema with an id, parsed, with those that it refers to."""
        found = self._writers.get(schema_id)
        if found is None:
            assert self._registry is not None, "the caller has checked"
            found = _parse_registered(self._registry, schema_id)
            if len(self._writers) >= _SCHEMAS_MAX:
                self._writers.clear()
            self._writers[schema_id] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        # With the text, since another machine may not have the file.
        text = None if self._given is None else json_text(self._given)
        remade = partial(Avro, text, registry=self._registry, subject=self._subject, register=self._register)
        return remade, ()


class _ToLatest(Avro):
    """Resolves bodies to the schema that was the subject's latest; another process asks the registry for it by id."""

    def __init__(self, registry: SchemaRegistry | None, subject: str | None, schema_id: int) -> None:
        super().__init__(registry=registry, subject=subject)
        self._latest_id = schema_id

    def deserialize(self, body: bytes) -> Any:
        self._find_reader()
        return super().deserialize(body)

    def parsed_schema(self) -> Any:
        self._find_reader()
        return super().parsed_schema()

    def _find_reader(self) -> None:
        if self._reader is None:
            self._reader = self._writer(self._latest_id)

    def __reduce__(self) -> tuple[Any, ...]:
        return _ToLatest, (self._registry, self._subject, self._latest_id)


def _load(schema: AvroSchema) -> Any:
    """Return the parsed JSON of a schema.

    Raises:
        ValueError: it cannot be read, or is not JSON.
    """
    if isinstance(schema, dict | list):
        return schema
    is_text = isinstance(schema, str) and schema.lstrip()[:1] in ("{", "[", '"')
    try:
        return json.loads(schema if is_text else Path(schema).read_bytes())  # type: ignore[arg-type]
    except (OSError, ValueError) as error:
        place = "schema" if is_text else f"schema file {os.fspath(schema)}"
        raise ValueError(f"the {place} cannot be read: {error}") from error


def _read_decimal(data: bytes, writer_schema: Any = None, reader_schema: Any = None) -> Any:
    digits: int = writer_schema["precision"]
    if abs(int.from_bytes(data, "big", signed=True)) >= 10**digits:
        raise ValueError(f"a decimal number has more than {digits} digits")
    return _read_any_decimal(data, writer_schema, reader_schema)


_read_any_decimal: Final = LOGICAL_READERS["bytes-decimal"]
for _kind in ("bytes", "fixed"):  # under a name of our own: other users of fastavro see no difference
    LOGICAL_READERS[f"{_kind}-{DECIMAL}"] = _read_decimal
    LOGICAL_WRITERS[f"{_kind}-{DECIMAL}"] = LOGICAL_WRITERS[f"{_kind}-decimal"]


def _with_checked_decimals(schema: Any) -> Any:
    """Return a schema whose decimal numbers are read by `_read_decimal`."""
    if isinstance(schema, list):
        return [_with_checked_decimals(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    checked = {
        name: _with_checked_decimals(part) if name in ("type", "fields", "items", "values") else part
        for name, part in schema.items()
    }
    if schema.get("logicalType") == "decimal":
        if not isinstance(schema.get("precision"), int):
            raise ValueError("a decimal has no precision")
        checked["logicalType"] = DECIMAL
    return checked


def _parse(*schemas: Any) -> _Parsed:
    """Return the last schema as fastavro needs it, after those that it refers to.

    Raises:
        ValueError: a schema is invalid, or a body of a few bytes could hold an endless array.
    """
    named: dict[str, Any] = {}
    survey = _Survey()
    parsed: Any = None
    for schema in schemas:
        try:
            parse_schema(schema, dict(named))  # which checks decimals
            parsed = parse_schema(_with_checked_decimals(schema), named)
        except Exception as error:  # of many kinds, for what is not of Avro's form
            raise ValueError(f"the schema is invalid: {type(error).__name__}: {error}") from error
        survey.least_bytes(parsed)
    read = _read_py.schemaless_reader if survey.is_recursive else schemaless_reader
    return _Parsed(_with_named(parsed, named), read, survey.is_recursive)


def _with_named(parsed: Any, named: dict[str, Any]) -> Any:
    """Return a parsed schema with the types that it names.

    fastavro adds them to a record only. Of a union, an array, a map or a name it would parse the schema again to read a
    value, and not find those that are in other schemas.
    """
    if isinstance(parsed, list):
        return [_with_named(part, named) for part in parsed]
    if isinstance(parsed, str):
        if parsed not in named:
            return parsed
        parsed = named[parsed]
    return {**parsed, "__fastavro_parsed": True, "__named_schemas": named}


def _check_depth(value: Any) -> None:
    """Check that fastavro can write a value without a stack overflow, and read it again.

    Raises:
        ValueError: it has more than 100 levels.
    """
    level = [value]
    for _ in range(_LEVELS_MAX):
        level = [
            part
            for each in level
            if isinstance(each, dict | list | tuple)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    raise ValueError(f"the value has more than {_LEVELS_MAX} levels")


class _Survey:
    """Looks through parsed schemas for what makes malformed bodies dangerous."""

    def __init__(self) -> None:
        self.is_recursive = False
        self._sizes: dict[str, int | None] = {}
        """Least bytes of named types; None: its definition is not complete yet."""

    def least_bytes(self, schema: Any) -> int:
        """Return the size of the shortest value.

        Raises:
            ValueError: there are arrays whose items have no bytes.
        """
        if isinstance(schema, list):
            for each in schema:
                self.least_bytes(each)
            return 1  # the number of the branch
        if isinstance(schema, str):
            size = self._sizes.get(schema, int(schema != "null"))
            self.is_recursive = self.is_recursive or size is None
            return 1 if size is None else size
        kind = schema["type"]
        if kind in ("record", "error"):
            self._sizes[schema["name"]] = None
            size = sum(self.least_bytes(each["type"]) for each in schema["fields"])
            self._sizes[schema["name"]] = size
            return size
        if kind in ("enum", "fixed"):
            size = int(schema.get("size", 1))
            self._sizes[schema["name"]] = size
            return size
        if kind == "array" and self.least_bytes(schema["items"]) == 0:
            raise ValueError("the schema has an array of items without bytes, which could be endless")
        if kind == "map":
            self.least_bytes(schema["values"])
        return 1 if kind in ("array", "map") else self.least_bytes(kind)


def _parse_registered(registry: SchemaRegistry, schema_id: int) -> _Parsed:
    """Return a schema of a registry, after those that it refers to.

    Raises:
        ValueError: it is not of Avro, is invalid, or refers to too many others.
    """
    schema = registry.schema(schema_id)
    if schema.kind != "AVRO":
        raise ValueError(f"schema {schema_id} is not of Avro, but {schema.kind}")
    ordered: dict[str, Any] = {}
    _add_references(registry, schema, ordered, 0)
    return _parse(*ordered.values(), json.loads(schema.text))


def _add_references(registry: SchemaRegistry, schema: Schema, ordered: dict[str, Any], depth: int) -> None:
    """Add the schemas that one refers to, each after those that it refers to itself."""
    for each in schema.references:
        if each.name in ordered:
            continue
        if depth >= _DEPTH_MAX or len(ordered) >= _REFERENCES_MAX:
            raise ValueError(f"the schema refers to too many others, the last is {each.name}")
        other = registry.version(each.subject, each.version).schema
        _add_references(registry, other, ordered, depth + 1)
        ordered[each.name] = json.loads(other.text)
