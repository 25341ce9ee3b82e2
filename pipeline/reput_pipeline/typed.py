"""Decode the bodies of a DataFrame into typed columns, and encode values as bodies, batch by batch in Spark's workers.

The serializers are those of the client. Spark's own `from_avro` and `from_protobuf` need further Java packages, and do
not know the frame of a schema registry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from reput_client.arrow.value_form import ValueForm
from reput_client.arrow.values import (
    ERROR,
    VALUE,
    Decoder,
    OnBadValue,
    error_column,
    form_of,
    reader_of,
    reason_of,
    values_of,
)
from reput_client.errors import RegistryRefused, RegistryUnavailable, SchemaNotFound
from reput_pipeline.spark.errors import BadValue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BODY: Final = "body"
_PLACES: Final = ("topic", "queueId", "queueOffset", "partition", "offset")
"""The columns that say which message a row is, native and Kafka's."""
_Batches = Iterable[pa.RecordBatch]


def decode_values(
    frame: DataFrame, decoder: Decoder, *, value_type: pa.DataType | None = None, on_bad_value: OnBadValue = "raise"
) -> DataFrame:
    """Return a DataFrame, or a stream, with the column `value` in the place of `body`, or of Kafka's binary `value`.

    Args:
        frame: has a binary column `body` or `value`, as those of the format `reput`.
        decoder: an `Avro`, a `Protobuf`, whose module the workers can import, or a `Json`.
        value_type: the Arrow type of the values of `Json`, which has no other.
        on_bad_value: what a body becomes that is not of the form: "raise" ends the query with `BadValue`; "null" makes
            its `value` null, keeps `body`, and adds the column `error` with the reason, else null. A null body has
            neither value nor error.

    Raises:
        ValueError: the values have no column type, there is no binary column of that name, or a column that is added
            would replace one of the DataFrame.
        RegistryUnavailable, RegistryRefused, SchemaNotFound: the decoder's registry gave no schema for the type.
    """
    source = _BODY if _BODY in frame.columns else VALUE
    if source not in frame.columns or frame.schema[source].dataType.simpleString() != "binary":
        raise ValueError("there is no binary column 'body' or 'value' to decode")
    decoder = reader_of(decoder)
    form = form_of(decoder, value_type)
    if form.check is not None and _has_other_units(form.kind):  # of JSON, whose times are numbers
        form = form._replace(check=partial(_check_times, form.check, form.kind))
    keeps_errors = _keeps_errors(on_bad_value)
    added = {VALUE: _known_to_spark(form.kind)}
    if keeps_errors:
        added |= {_BODY: pa.binary(), ERROR: pa.string()}
    names = _others(frame, source, added)
    return _mapped(frame, names, added, partial(_decoded, source, decoder.deserialize, form, keeps_errors))


def encode_values(frame: DataFrame, encoder: Decoder, *, on_bad_value: OnBadValue = "raise") -> DataFrame:
    """Return a DataFrame, or a stream, with the binary column `body` in the place of `value`, for the sink.

    Args:
        frame: has a column `value`: a struct for a record or a message, or what the schema says.
        encoder: an `Avro`, a `Protobuf`, whose module the workers can import, or a `Json`. With `register=True` the
            schema is registered here, once.
        on_bad_value: what a row becomes whose value does not fit the schema: "raise" ends the query with `BadValue`;
            "null" makes its `body` null, keeps `value`, and adds the column `error` with the reason, else null. Divide
            the rows by it before the sink, which takes neither of these columns.

    Raises:
        ValueError: there is no column `value`, or a column that is added would replace another one of the DataFrame.
        RegistryUnavailable, RegistryRefused, SchemaNotFound: the encoder's registry gave no id.
    """
    from pyspark.sql.pandas.types import to_arrow_type

    if VALUE not in frame.columns:
        raise ValueError("there is no column 'value' to encode")
    keeps_errors = _keeps_errors(on_bad_value)
    added = {_BODY: pa.binary()}
    if keeps_errors:
        kind = to_arrow_type(frame.schema[VALUE].dataType, timezone="UTC")
        added |= {VALUE: kind, ERROR: pa.string()}
    names = _others(frame, VALUE, added)
    encoder.look_up()
    return _mapped(frame, names, added, partial(_encoded, encoder, keeps_errors))


def _keeps_errors(on_bad_value: str) -> bool:
    if on_bad_value not in ("raise", "null"):
        raise ValueError(f"on_bad_value is {on_bad_value!r}; it is 'raise' or 'null'")
    return on_bad_value == "null"


def _others(frame: DataFrame, source: str, added: Collection[str]) -> list[str]:
    """Return the columns besides the source.

    Raises:
        ValueError: one of them has the name of a column that is added.
    """
    names = [name for name in frame.columns if name != source]
    for name in names:
        if name in added:
            raise ValueError(
                f"the DataFrame has a column {name!r}, which the result's column {name!r} would replace; rename it "
                f"before, such as with withColumnRenamed({name!r}, 'own_{name}'), or drop it"
            )
    return names


def _mapped(
    frame: DataFrame,
    names: list[str],
    added: dict[str, pa.DataType],
    made: Callable[[pa.RecordBatch], dict[str, pa.Array]],
) -> DataFrame:
    """Return the columns `names` of a frame, followed by those that `made` returns for each batch."""
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
    from pyspark.sql.types import StructField, StructType

    fields = [StructField(name, from_arrow_type(kind)) for name, kind in added.items()]
    schema = StructType([*(frame.schema[name] for name in names), *fields])
    arrow = to_arrow_schema(schema, timezone="UTC")

    def batches(found: _Batches) -> Iterator[pa.RecordBatch]:
        for batch in found:
            columns = made(batch)
            arrays = [columns[name] if name in added else batch.column(name) for name in arrow.names]
            yield pa.RecordBatch.from_arrays(
                [array.cast(field.type) for array, field in zip(arrays, arrow, strict=True)], schema=arrow
            )

    return frame.mapInArrow(batches, schema)


def _decoded(
    source: str, deserialize: Callable[[bytes], Any], form: ValueForm, keeps_errors: bool, batch: pa.RecordBatch
) -> dict[str, pa.Array]:
    bodies = batch.column(source)

    def deserialized(body: bytes | None) -> Any:
        return None if body is None else deserialize(body)

    def fitted(value: Any) -> Any:
        return value if value is None or form.fit is None else form.fit(value)

    values, errors = values_of(bodies, deserialized, form._replace(fit=fitted))
    _raise_first(batch, errors, keeps_errors, "cannot be deserialized")
    return {VALUE: values, _BODY: bodies, ERROR: error_column(errors, len(values))}


def _encoded(encoder: Decoder, keeps_errors: bool, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    message_class: Any = getattr(encoder, "message_class", None)  # of Protobuf
    bodies: list[bytes | None] = []
    errors: dict[int, Exception] = {}
    for row, found in enumerate(batch.column(VALUE)):
        try:
            value = found.as_py(maps_as_pydicts="strict")
            bodies.append(encoder.serialize(value if message_class is None else _message(message_class, value)))
        except (RegistryRefused, RegistryUnavailable, SchemaNotFound):
            raise  # the value may be right
        except Exception as error:
            bodies.append(None)
            errors[row] = error
    _raise_first(batch, errors, keeps_errors, "cannot be serialized")
    return {_BODY: pa.array(bodies, pa.binary()), VALUE: batch.column(VALUE), ERROR: error_column(errors, len(bodies))}


def _message(kind: Callable[[], Any], value: Any) -> Any:
    from reput_client.arrow.protobuf_values import fill

    message = kind()
    fill(message, value)
    return message


def _raise_first(batch: pa.RecordBatch, errors: dict[int, Exception], keeps_errors: bool, what: str) -> None:
    if not errors or keeps_errors:
        return
    row = min(errors)
    known = [name for name in _PLACES if name in batch.schema.names]
    place = ", ".join(f"{name} {batch.column(name)[row].as_py()}" for name in known)
    raise BadValue(place or f"row {row} of a batch", what, reason_of(errors[row])) from errors[row]


def _has_other_units(kind: pa.DataType) -> bool:
    """Return whether a type has times in other units than Spark's, which is microseconds."""
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return str(kind.unit) != "us"
    return any(_has_other_units(kind.field(number).type) for number in range(kind.num_fields))


def _check_times(check: Callable[[list[Any]], None], kind: pa.DataType, values: list[Any]) -> None:
    """Check the values of rows, also that Spark has their times.

    Raises:
        ValueError: one is not of the type, or too far away or too exact for Spark.
    """
    from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

    check(values)
    spark_kind = to_arrow_type(from_arrow_type(_known_to_spark(kind)), timezone="UTC")
    pa.array(values, kind).cast(spark_kind)


def _known_to_spark(kind: pa.DataType) -> pa.DataType:
    """Return the type that Spark has for values of a type."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _known_to_spark(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_known_to_spark(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_known_to_spark(kind.key_type), _known_to_spark(kind.item_type))
    if kind in _OTHERS:
        return _OTHERS[kind]
    return pa.binary() if pa.types.is_fixed_size_binary(kind) else kind


_OTHERS: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.time32("s"): pa.time64("us"),
    pa.time32("ms"): pa.time64("us"),
    pa.timestamp("ms", "UTC"): pa.timestamp("us", "UTC"),
    pa.timestamp("ms"): pa.timestamp("us"),
}
"""Types that Spark does not have, and those that hold their values."""
