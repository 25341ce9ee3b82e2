"""JSON for the values of messages: a pair of functions for producers and consumers."""

from __future__ import annotations

from typing import Any, Final, Generic

import msgspec

from reput_client.received import V

_encode: Final = msgspec.json.Encoder().encode


class Json(Generic[V]):
    """Values of one type as JSON.

        orders = Json(Order)
        Producer(address, serializer=orders.serialize)
        Consumer(address, group="billing", topic="orders", deserializer=orders.deserialize)

    Any other pair of functions does as well. May be shared by clients, tasks and threads, and pickled.

    Args:
        kind: a pydantic model, or a type that msgspec knows: a `Struct`, a dataclass, a `TypedDict`, `list[Order]` and
            so on. `deserialize` checks bodies against it. None: any JSON.

    Raises:
        TypeError: msgspec does not know the type.
    """

    def __init__(self, kind: type[V] | None = None) -> None:
        self._kind = kind
        self._is_model = hasattr(kind, "model_validate_json")  # of pydantic, which need not be installed
        self._decode = (
            kind.model_validate_json  # type: ignore[union-attr]
            if self._is_model
            else msgspec.json.Decoder(Any if kind is None else kind).decode
        )

    def serialize(self, value: V) -> bytes:
        """Return the JSON text of `value`.

        Raises:
            Exception: the library's own, if it cannot be expressed. A producer raises `InvalidMessage` from it.
        """
        if self._is_model:
            text: str = value.model_dump_json()  # type: ignore[attr-defined]
            return text.encode()
        return _encode(value)

    def deserialize(self, body: bytes) -> V:
        """Return the value of a JSON text.

        Raises:
            Exception: the library's own, if it is not JSON, or not of the type. `ReceivedMessage.value` raises
                `NotDeserialized` from it.
        """
        value: V = self._decode(body)
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._kind,)
