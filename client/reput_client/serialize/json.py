"""JSON for the values of messages: a pair of functions for producers and consumers."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import msgspec

from reput_client.received import V
from reput_client.serialize.registry import (
    FRAME_BYTES,
    Registered,
    Schema,
    SchemaRegistry,
    frame,
    json_text,
    schema_id_of,
)

_encode: Final = msgspec.json.Encoder().encode


class Json(Registered[V]):
    """Values of one type as JSON.

        orders = Json(Order)
        Producer(address, serializer=orders.serialize)
        Consumer(address, group="billing", topic="orders", deserializer=orders.deserialize)

    Any other pair of functions does as well. May be shared by clients, tasks and threads, and pickled.

    Args:
        kind: a pydantic model, or a type that msgspec knows: a `Struct`, a dataclass, a `TypedDict`, `list[Order]` and
            so on. `deserialize` checks bodies against it. None: any JSON.
        registry: each body starts with the id of its JSON schema, in Confluent's frame. `serialize` asks the registry
            for the id at its first call, and blocks for up to its `timeout_s`; `await prepare()` asks in a thread.
            `deserialize` checks bodies against `kind` and does not ask. None: bodies have no frame.
        subject: under which `serialize` finds the schema of `kind`, or without a `kind` the latest one; usually
            `TOPIC-value`.
        register: whether `serialize` adds the schema of `kind` to the subject if it is not there.

    Raises:
        TypeError: msgspec does not know the type.
        ValueError: arguments contradict each other.
    """

    def __init__(
        self,
        kind: type[V] | None = None,
        *,
        registry: SchemaRegistry | None = None,
        subject: str | None = None,
        register: bool = False,
    ) -> None:
        super().__init__(registry, subject, register)
        if register and kind is None:
            raise ValueError("register=True needs kind, whose schema it registers")
        self._remade = partial(Json, kind, registry=registry, subject=subject, register=register)
        self._kind = kind
        self._is_model = hasattr(kind, "model_validate_json")  # of pydantic, which need not be installed
        self._decode = (
            kind.model_validate_json  # type: ignore[union-attr]
            if self._is_model
            else msgspec.json.Decoder(Any if kind is None else kind).decode
        )

    @property
    def kind(self) -> type[V] | None:
        """The type of the values; None: any JSON."""
        return self._kind

    def serialize(self, value: V) -> bytes:
        """Return the JSON text of `value`, in a frame with a registry.

        Raises:
            RegistryUnavailable, RegistryRefused, SchemaNotFound: the registry gave no id. A producer raises them, too.
            Exception: the library's own, if it cannot be expressed. A producer raises `InvalidMessage` from it.
        """
        if self._is_model and hasattr(value, "model_dump_json"):
            text: bytes = value.model_dump_json().encode()
        else:
            text = _encode(value)
        return text if self._registry is None else frame(self._schema_id(), text)

    def deserialize(self, body: bytes) -> V:
        """Return the value of a JSON text.

        Raises:
            Exception: the library's own, if it is not JSON, or not of the type. `ReceivedMessage.value` raises
                `NotDeserialized` from it.
        """
        if self._registry is not None:
            schema_id_of(body)  # raises without a frame
            body = body[FRAME_BYTES:]
        value: V = self._decode(body)
        return value

    def _own_schema(self) -> Schema | None:
        if self._kind is None:
            return None
        kind: Any = self._kind
        schema = kind.model_json_schema() if self._is_model else msgspec.json.schema(kind)
        return Schema("JSON", json_text(schema))

    def __reduce__(self) -> tuple[Any, ...]:
        return self._remade, ()
