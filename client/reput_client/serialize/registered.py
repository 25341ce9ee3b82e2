r"""Values whose schema is in a registry, and Confluent's frame of their bodies.

    00 | schema id, 4 bytes, big endian | Protobuf: message indexes | payload

The message indexes are the path to the message in its file: their count, then each, as zigzag varints. `00` stands for
the file's first message, `[0]`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, Generic

from reput_client.errors import SchemaNotFound
from reput_client.received import V
from reput_client.serialize.registry import Schema, SchemaRegistry

_HEAD: Final = Struct(">BI")
FRAME_BYTES: Final = _HEAD.size
_INDEXES_MAX: Final = 64
"""Depth to which messages are nested; protoc allows 32."""
_VARINT_BYTES_MAX: Final = 5


class Registered(ABC, Generic[V]):
    """The shared part of `Avro`, `Protobuf` and `Json`: their schema's id, found at the first use.

    Args:
        registry: None: bodies have no frame.
        subject: under which `serialize` finds the schema's id, usually `TOPIC-value`.
        register: whether `serialize` adds the schema to the subject if it is not there.

    Raises:
        ValueError: `subject` or `register` is given without what it needs.
    """

    def __init__(self, registry: SchemaRegistry | None, subject: str | None, register: bool) -> None:
        if registry is None and subject is not None:
            raise ValueError("subject= belongs to registry=, which is not given")
        if register and subject is None:
            raise ValueError("register=True needs subject=, such as 'orders-value'")
        self._registry = registry
        self._subject = subject
        self._register = register
        self._known_id: int | None = None

    @abstractmethod
    def serialize(self, value: V) -> bytes:
        """Return the body of a value."""

    @abstractmethod
    def deserialize(self, body: bytes) -> V:
        """Return the value of a body."""

    def look_up(self) -> None:
        """Ask the registry now for what `serialize` needs, and register the schema if that is wanted; blocks.

        Raises:
            RegistryUnavailable, RegistryRefused, SchemaNotFound: the registry gave no schema.
        """
        if self._registry is not None:
            self._schema_id()

    async def prepare(self, *bodies: bytes) -> None:
        """Ask the registry now, in a worker thread, so that calls of this object block no event loop.

        Without bodies, for what `serialize` needs; else for what `deserialize` needs for these bodies. Does nothing
        without a registry. Malformed bodies and unknown ids are left to `deserialize`.

        Raises:
            RegistryUnavailable, RegistryRefused: the registry gave no schema.
            SchemaNotFound: without bodies: the subject does not have the schema of `serialize`.
        """
        if self._registry is None:
            return
        from anyio import to_thread  # here, because the synchronous API loads no event loop

        if not bodies:
            await to_thread.run_sync(self.look_up)
        for body in bodies:
            try:
                schema_id = schema_id_of(body)
                if not self._knows(schema_id):
                    await to_thread.run_sync(self._learn, schema_id)
            except (SchemaNotFound, ValueError):
                continue

    def _schema_id(self) -> int:
        """Return the id with which `serialize` marks bodies; asks the registry once."""
        if self._known_id is None:
            assert self._registry is not None, "the caller has checked"
            if self._subject is None:
                raise ValueError("the registry finds no schema without subject=, such as 'orders-value'")
            self._known_id = self._find_id(self._registry, self._subject)
        return self._known_id

    def _find_id(self, registry: SchemaRegistry, subject: str) -> int:
        own = self._own_schema()
        if own is None:
            latest = registry.version(subject)
            self._adopt(latest.schema_id)
            return latest.schema_id
        if self._register:
            return registry.register(subject, own)
        return registry.look_up(subject, own).schema_id

    @abstractmethod
    def _own_schema(self) -> Schema | None:
        """Return the program's schema as the registry knows it; None: it has none and uses the subject's latest."""

    def _adopt(self, schema_id: int) -> None:
        """Use a schema of the registry from now on, for want of one of the program."""

    def _knows(self, schema_id: int) -> bool:  # noqa: ARG002
        """Return whether bodies with this schema are deserialized without asking the registry."""
        return True

    def _learn(self, schema_id: int) -> None:
        """Ask the registry for what `deserialize` needs for a schema."""


def frame(schema_id: int, payload: bytes, indexes: bytes = b"") -> bytes:
    """Return the body of a payload; `indexes` are a Protobuf message's, encoded."""
    return _HEAD.pack(0, schema_id) + indexes + payload


def schema_id_of(body: bytes) -> int:
    """Return the schema id of a body, whose payload or message indexes start at `FRAME_BYTES`.

    Raises:
        ValueError: it has no frame.
    """
    if len(body) < FRAME_BYTES or body[0] != 0:
        raise ValueError(
            f"the body has no schema id: it starts with {body[:FRAME_BYTES].hex(' ') or 'nothing'}"
        )
    schema_id: int = _HEAD.unpack_from(body)[1]
    return schema_id


def encode_indexes(indexes: Sequence[int]) -> bytes:
    """Return the bytes of message indexes."""
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(map(_varint, (len(indexes), *indexes)))


def decode_indexes(body: bytes) -> tuple[list[int], int]:
    """Return a framed body's message indexes and where its payload starts.

    Raises:
        ValueError: they are malformed.
    """
    count, at = _read_varint(body, FRAME_BYTES)
    if not 0 <= count <= _INDEXES_MAX:
        raise ValueError(f"{count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _read_varint(body, at)
        if index < 0:
            raise ValueError(f"message index {index}")
        indexes.append(index)
    return indexes or [0], at


def _varint(number: int) -> bytes:
    """Return a number that is not negative as a zigzag varint."""
    rest = number << 1
    encoded = bytearray()
    while rest >= 0x80:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint and where the next byte is."""
    encoded = 0
    for place, byte in enumerate(body[at : at + _VARINT_BYTES_MAX]):
        encoded |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (encoded >> 1) ^ -(encoded & 1), at + place + 1
    raise ValueError("the message indexes are incomplete")


def needs(library: str, extra: str, missing: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error for a library that is not installed, with the extra that installs it."""
    return ModuleNotFoundError(
        f"{library} is not installed: pip install 'reput-client[{extra}]'", name=missing.name
    )


def json_text(schema: Any) -> str:
    """Return a schema that is JSON as text."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
