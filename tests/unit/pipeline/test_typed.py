"""`decode_values` and `encode_values` without Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, time
from decimal import Decimal
from importlib import import_module
from typing import Any

import pytest

from reput_client import Json, Protobuf

pa = pytest.importorskip("pyarrow")
types = pytest.importorskip("pyspark.sql.types")
typed = import_module("reput_pipeline.typed")


class Made:
    """What `mapInArrow` has made of it."""

    def __init__(self, batch: Any, names: list[str]) -> None:
        self.batch = batch
        self.names = names

    @property
    def rows(self) -> Any:
        return self.batch.to_pylist()


class Frame:
    """A DataFrame of one batch."""

    def __init__(self, **columns: Any) -> None:
        self.batch = pa.RecordBatch.from_pydict(columns)
        self.columns = list(columns)
        self.schema = {
            name: types.StructField(name, types.BinaryType() if name in ("body", "value") else types.StringType())
            for name in columns
        }

    def mapInArrow(self, of: Callable[[Iterable[Any]], Iterator[Any]], schema: Any) -> Any:  # noqa: N802
        (made,) = of([self.batch])
        return Made(made, schema.names)


def decoded(frame: Frame, **given: Any) -> Any:
    given = {"value_type": pa.int64(), **given}
    return typed.decode_values(frame, Json(), **given)


def encoded(frame: Frame, **given: Any) -> Any:
    return typed.encode_values(frame, Json(), **given)


@pytest.mark.parametrize(
    ("of", "on_bad_value", "columns", "name"),
    [
        (decoded, "raise", {"body": [b"1"], "value": [b"own"]}, "value"),
        (decoded, "null", {"body": [b"1"], "error": ["own"]}, "error"),
        (decoded, "null", {"value": [b"1"], "error": ["own"]}, "error"),
        (encoded, "raise", {"value": [b"1"], "body": [b"own"]}, "body"),
        (encoded, "null", {"value": [b"1"], "error": ["own"]}, "error"),
    ],
)
def test_a_column_of_the_user_is_not_replaced(
    of: Callable[..., Any], on_bad_value: str, columns: dict[str, Any], name: str
) -> None:
    with pytest.raises(ValueError, match=rf"column '{name}'.*withColumnRenamed\('{name}', 'own_{name}'\)"):
        of(Frame(**columns), on_bad_value=on_bad_value)


def test_columns_that_are_not_added_are_kept() -> None:
    assert decoded(Frame(error=["own"], body=[b"1"])).rows == [{"error": "own", "value": 1}]
    assert decoded(Frame(value=[b"1", b"x"]), on_bad_value="null").names == ["value", "body", "error"]
    assert encoded(Frame(error=["own"], value=[b"\0"])).rows == [{"error": "own", "body": b'"AA=="'}]


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        (pa.timestamp("ms"), b"5", datetime(1970, 1, 1, 0, 0, 0, 5000)),
        (pa.list_(pa.time32("ms")), b"[5]", [time(0, 0, 0, 5000)]),
        (pa.map_(pa.string(), pa.uint64()), b'{"a":18446744073709551615}', [("a", Decimal((1 << 64) - 1))]),
        (pa.struct([("a", pa.uint32())]), b'{"a":-1}', None),
    ],
    ids=str,
)
def test_numbers_are_of_the_type_that_was_given(kind: Any, body: bytes, value: object) -> None:
    """Spark's next larger type once took milliseconds as microseconds."""
    (row,) = decoded(Frame(body=[body]), value_type=kind, on_bad_value="null").rows
    assert row["value"] == value
    assert (row["error"] is None) == (value is not None)


def test_small_numbers_and_seconds_have_a_type_of_spark() -> None:
    kind = pa.struct([("a", pa.uint8()), ("b", pa.uint16()), ("c", pa.time32("s"))])
    (row,) = decoded(Frame(body=[b'{"a":255,"b":65535,"c":5}']), value_type=kind).rows
    assert row["value"] == {"a": 255, "b": 65535, "c": time(0, 0, 5)}


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (pa.timestamp("ms", "UTC"), b"1767323045000000000"),  # in nanoseconds
        (pa.list_(pa.struct([("at", pa.timestamp("ns"))])), b'[{"at":1767323045000000123}]'),
        (pa.map_(pa.string(), pa.duration("s")), b'{"a":1767323045000000}'),
    ],
    ids=str,
)
def test_a_time_that_spark_has_not_is_an_error_of_its_row(kind: Any, bad: bytes) -> None:
    """It ended the query, whatever was to become of bad values, and the error named no row."""
    good = re.sub(rb"[0-9]+", b"1000", bad)
    rows = decoded(Frame(body=[good, bad, good]), value_type=kind, on_bad_value="null").rows
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert [row["value"] is None for row in rows] == [False, True, False]
    with pytest.raises(Exception, match=r"queueOffset 1: cannot be deserialized: ArrowInvalid"):
        decoded(Frame(queueOffset=["0", "1"], body=[good, bad]), value_type=kind)


def test_a_value_that_python_has_not_is_an_error_of_its_row() -> None:
    """Such as a time after the year 9999: it ended the query."""
    times = pa.array([0, 1 << 60, None], pa.timestamp("us", "UTC"))
    frame = Frame(value=pa.StructArray.from_arrays([times], ["at"]))
    frame.schema["value"] = types.StructField(
        "value", types.StructType([types.StructField("at", types.TimestampType())])
    )
    made = encoded(frame, on_bad_value="null").batch
    assert made["body"].to_pylist() == [b'{"at":"1970-01-01T00:00:00Z"}', None, b'{"at":null}']
    assert made["error"].is_null().to_pylist() == [True, False, True]


def protobuf_class() -> Any:
    """Return a class with fields of many kinds, as protoc would make it."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="typed.proto", package="typed", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    state = file.enum_type.add(name="State")
    for number, name in enumerate(("NEW", "PAID")):
        state.value.add(name=name, number=number)
    file.message_type.add(name="Money").field.add(name="cents", number=1, type=kind.TYPE_INT64, label=1)
    order = file.message_type.add(name="Order")
    of = {
        "uint64": (kind.TYPE_UINT64, None),
        "double": (kind.TYPE_DOUBLE, None),
        "state": (kind.TYPE_ENUM, ".typed.State"),
        "money": (kind.TYPE_MESSAGE, ".typed.Money"),
        "time": (kind.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
    }
    for name, (number_of, type_name) in of.items():
        entry = order.nested_type.add(name=f"{name.title()}MapEntry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=kind.TYPE_STRING, label=1)
        entry.field.add(name="value", number=2, type=number_of, type_name=type_name, label=1)
        for suffix, label in (("", 1), ("_list", 3)):
            number = len(order.field) + 1
            order.field.add(name=name + suffix, number=number, type=number_of, type_name=type_name, label=label)
        order.field.add(
            name=f"{name}_map",
            number=len(order.field) + 1,
            type=kind.TYPE_MESSAGE,
            type_name=f".typed.Order.{entry.name}",
            label=3,
        )
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("typed.Order"))


def test_protobuf_to_columns_and_back() -> None:
    """Maps of messages, lists of times and numbers of 64 bits without a sign could not be encoded again."""
    order = protobuf_class()
    message = order(uint64=(1 << 64) - 1, uint64_list=[1], uint64_map={"a": 1 << 63}, double=1.5, double_list=[2])
    message.state = 1
    message.state_list.extend([0, 1, 7])
    message.state_map["a"] = 1
    message.money.cents = 5
    message.money_list.add()
    message.money_map["a"].cents = 6
    message.time.seconds = 7
    message.time_list.add().seconds = 8
    message.time_map["a"].nanos = 9000
    pair = Protobuf(order)
    values = typed.decode_values(Frame(body=[pair.serialize(message), b""]), pair).batch
    again = typed.encode_values(Frame(value=values["value"]), pair).rows
    assert [pair.deserialize(row["body"]) for row in again] == [message, order()]
