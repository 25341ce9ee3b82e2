"""Protobuf for the values of messages: a generated class, with or without a schema registry."""

from __future__ import annotations

from base64 import b64encode
from functools import partial
from typing import Any, Final, TypeVar

from reput_client.serialize.registry import (
    Registered,
    Schema,
    SchemaReference,
    SchemaRegistry,
    decode_indexes,
    encode_indexes,
    frame,
    needs,
    schema_id_of,
)

try:
    from google.protobuf.descriptor import Descriptor, FileDescriptor
    from google.protobuf.message import Message as ProtobufMessage
except ModuleNotFoundError as missing:
    raise needs("protobuf", "protobuf", missing) from missing

M = TypeVar("M", bound=ProtobufMessage)
_KNOWN_FILES: Final = ("google/protobuf/", "google/type/", "confluent/")
"""What registries know, so that it is no reference."""


class Protobuf(Registered[M]):
    """Values of a class that protoc has generated.

        orders = Protobuf(shop_pb2.Order)
        Producer(address, serializer=orders.serialize)
        Consumer(address, group="billing", topic="orders", deserializer=orders.deserialize)

    With a registry each body starts with the id of its schema and the number of the message in it, in Confluent's
    frame. `serialize` asks the registry for the id at its first call, and blocks for up to the registry's `timeout_s`;
    `await prepare()` asks in a thread. `deserialize` reads any version with this class and does not ask.
    May be shared by clients, tasks and threads, and pickled if the class can be.

    Args:
        kind: the class.
        registry: None: bodies have no frame.
        subject: under which `serialize` finds the schema, usually `TOPIC-value`.
        register: whether `serialize` adds the schema to the subject if it is not there. Files that it imports are
            registered under their names.

    Raises:
        ModuleNotFoundError: protobuf is not installed; the extra `protobuf` of `reput-client` has it.
        ValueError: arguments contradict each other.
    """

    def __init__(
        self,
        kind: type[M],
        *,
        registry: SchemaRegistry | None = None,
        subject: str | None = None,
        register: bool = False,
    ) -> None:
        super().__init__(registry, subject, register)
        self._remade = partial(Protobuf, kind, registry=registry, subject=subject, register=register)
        self._kind = kind
        self._indexes = encode_indexes(_path(kind.DESCRIPTOR))

    @property
    def message_class(self) -> type[M]:
        """The class of the values."""
        return self._kind

    def serialize(self, value: M) -> bytes:
        """Return the body of a value.

        Raises:
            RegistryUnavailable, RegistryRefused, SchemaNotFound: the registry gave no id. A producer raises them, too.
            TypeError: the value is not of this class. A producer raises `InvalidMessage` from it.
            EncodeError: a required field has no value; likewise.
        """
        if not isinstance(value, self._kind):
            raise TypeError(f"expected {self._kind.__name__}, got {type(value).__name__}")
        payload: bytes = value.SerializeToString()
        return payload if self._registry is None else frame(self._schema_id(), payload, self._indexes)

    def deserialize(self, body: bytes) -> M:
        """Return the value of a body.

        Raises:
            ValueError: it has no frame.
            DecodeError: its payload is malformed. `ReceivedMessage.value` raises `NotDeserialized` from either.
        """
        if self._registry is not None:
            schema_id_of(body)  # raises without a frame
            body = body[decode_indexes(body)[1] :]
        value: M = self._kind.FromString(body)
        return value

    def _own_schema(self) -> Schema:
        assert self._registry is not None, "the caller has checked"
        return _schema_of(self._kind.DESCRIPTOR.file, self._registry, self._register)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._remade, ()


def _path(message: Descriptor) -> list[int]:
    """Return the numbers that lead from a file to a message in it."""
    parent = message.containing_type
    if parent is None:
        names = list(message.file.message_types_by_name)
        return [names.index(message.name)]
    names = [each.name for each in parent.nested_types]
    return [*_path(parent), names.index(message.name)]


def _schema_of(file: FileDescriptor, registry: SchemaRegistry, register: bool) -> Schema:
    """Return a file as registries take it, after finding the files that it imports, or registering them."""
    references = []
    for each in file.dependencies:
        if each.name.startswith(_KNOWN_FILES):
            continue
        schema = _schema_of(each, registry, register)
        if register:
            registry.register(each.name, schema)
        found = registry.look_up(each.name, schema)
        references.append(SchemaReference(each.name, each.name, found.version))
    return Schema("PROTOBUF", b64encode(file.serialized_pb).decode(), tuple(references))
