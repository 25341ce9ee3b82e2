"""Typed columns from the values of messages: `value`, and `error` for bodies that are not of the form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import pyarrow as pa

from reput_client.arrow.value_form import ValueForm, avro_form, json_form
from reput_client.consume.arrow_columns import arrow_schema
from reput_client.errors import NotDeserialized, RegistryRefused, RegistryUnavailable
from reput_client.serialize.json import Json

if TYPE_CHECKING:
    from reput_client.serialize.avro import Avro
    from reput_client.serialize.protobuf import Protobuf

Decoder: TypeAlias = "Avro | Json[Any] | Protobuf[Any]"
OnBadValue: TypeAlias = Literal["raise", "null"]
VALUE: Final = "value"
ERROR: Final = "error"
_NOT_OF_THE_TYPE: Final = (pa.ArrowException, OverflowError, TypeError, ValueError)


class TypedColumns:
    """Which columns are read, and what becomes of them.

    Args:
        names: of the columns; None: all but the body, with `value`, and `error` if it is of use.
        decoder: deserializes bodies.
        value_type: of the values of `Json`.
        on_bad_value: what a body becomes that is not of the form.

    Attributes:
        schema: of the batches.
        read_schema: of the batches that they are made of.

    Raises:
        ValueError: the decoder's values have no column type, or a column is unknown.
    """

    def __init__(
        self, names: Sequence[str] | None, decoder: Decoder, value_type: pa.DataType | None, on_bad_value: OnBadValue
    ) -> None:
        if on_bad_value not in ("raise", "null"):
            raise ValueError(f"on_bad_value is {on_bad_value!r}; it is 'raise' or 'null'")
        self._is_strict = on_bad_value == "raise"
        decoder = reader_of(decoder)
        self._deserialize = decoder.deserialize
        self._form = form_of(decoder, value_type)
        own = {VALUE: self._form.kind} | ({} if self._is_strict else {ERROR: pa.string()})
        if names is None:
            names = [*(name for name in arrow_schema().names if name != "body"), *own]
        plain = arrow_schema(name for name in names if name not in own)
        self.schema = pa.schema([pa.field(name, own[name]) if name in own else plain.field(name) for name in names])
        needed = ("body", "topic", "queueId", "queueOffset") if any(name in own for name in names) else ()
        self.read_schema = arrow_schema(dict.fromkeys((*plain.names, *needed)))

    def batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with their bodies decoded.

        Raises:
            NotDeserialized: a body is not of the form, and `on_bad_value` is "raise".
            RegistryUnavailable, RegistryRefused: a schema registry gave no schema.
        """
        for batch in batches:
            made = {name: batch.column(name) for name in batch.schema.names}
            if VALUE in self.schema.names or ERROR in self.schema.names:
                made[VALUE], made[ERROR] = self._decoded(batch)
            arrays = [made[name] for name in self.schema.names]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _decoded(self, batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
        """Return the columns of values and of errors."""
        values, errors = values_of(batch.column("body"), self._deserialize, self._form)
        if errors and self._is_strict:
            row = min(errors)
            topic, queue_id, offset = (batch.column(name)[row].as_py() for name in ("topic", "queueId", "queueOffset"))
            raise NotDeserialized(topic, queue_id, offset, reason_of(errors[row])) from errors[row]
        return values, error_column(errors, len(values))


def values_of(
    bodies: pa.Array, deserialize: Callable[[bytes], Any], form: ValueForm
) -> tuple[pa.Array, dict[int, Exception]]:
    """Return the values of bodies, null where there is none, and by row why a body has none.

    Raises:
        RegistryUnavailable, RegistryRefused: a schema registry gave no schema.
    """
    values: list[Any] = []
    errors: dict[int, Exception] = {}
    for row, body in enumerate(bodies.to_pylist()):
        try:
            value = deserialize(body)
            values.append(value if form.fit is None else form.fit(value))
        except (RegistryRefused, RegistryUnavailable):
            raise  # the body may be right
        except Exception as error:
            values.append(None)
            errors[row] = error
    return _array(values, form, errors, 0), errors


def _array(values: list[Any], form: ValueForm, errors: dict[int, Exception], first: int) -> pa.Array:
    """Return an array of the values of the rows from `first` on, null for those that are not of the type.

    The halves that one value is searched in stay arrays of their own: whether Arrow takes a value depends on its
    neighbours.
    """
    try:
        if form.check is not None:
            form.check(values)
        return pa.array(values, form.kind)
    except _NOT_OF_THE_TYPE as error:
        if len(values) == 1:
            errors[first] = error
            return pa.nulls(1, form.kind)
    middle = len(values) // 2
    halves = (values[:middle], first), (values[middle:], first + middle)
    return pa.concat_arrays([_array(half, form, errors, row) for half, row in halves])


def reason_of(error: Exception) -> str:
    """Return an error as text that is UTF-8."""
    return f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()


def error_column(errors: Mapping[int, Exception], rows: int) -> pa.Array:
    """Return the reasons by row, null where there is none."""
    return pa.array((reason_of(errors[row]) if row in errors else None for row in range(rows)), pa.string())


def reader_of(decoder: Decoder) -> Decoder:
    """Return the decoder that returns values of the column's type.

    An `Avro` without a schema returns values as written, but its column has the type of the subject's latest schema:
    bodies are resolved to that one, or its defaults and aliases would become nulls.

    Raises:
        ValueError: the `Avro` has neither a schema nor a subject.
        RegistryUnavailable, RegistryRefused, SchemaNotFound: its registry gave no schema.
    """
    # Told apart without their classes: fastavro, or protobuf, need not be installed.
    if isinstance(decoder, Json) or hasattr(decoder, "message_class"):
        return decoder
    return decoder.to_one_schema()


def form_of(decoder: Decoder, value_type: pa.DataType | None) -> ValueForm:
    """Return the form of a decoder's values.

    Raises:
        ValueError: they have none, or `value_type` is missing or of no use.
    """
    if isinstance(decoder, Json):
        if value_type is None:
            raise ValueError("Json needs value_type=, the Arrow type of its values")
        return json_form(decoder, value_type)
    if value_type is not None:
        raise ValueError("value_type= is for Json; Avro and Protobuf have types of their own")
    # Told apart without their classes: fastavro, or protobuf, need not be installed.
    message_class = getattr(decoder, "message_class", None)
    if message_class is not None:
        from reput_client.arrow.protobuf_values import protobuf_form

        return protobuf_form(message_class.DESCRIPTOR)
    return avro_form(cast("Avro", decoder).parsed_schema())
