"""Values in DataFrames: decoded from a topic, encoded for the sink, and what is of another form."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from reput_broker.background import BackgroundBroker
from reput_client import Avro, Json, Protobuf, SchemaRegistry
from reput_client.blocking import Message, Producer
from reput_pipeline.typed import decode_values, encode_values
from support.schema_registry import schema_registry

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "customer", "type": ["null", "string"], "default": None},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 2}},
        {"name": "notes", "type": {"type": "map", "values": "int"}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "article", "type": "string"}]}}},
    ],
}  # fmt: skip
VALUE = {
    "number": 7,
    "customer": None,
    "total": Decimal("12.50"),
    "placed": datetime(2026, 1, 2, 3, 4, 5, 6000, UTC),
    "code": b"de",
    "notes": {"a": 1},
    "lines": [{"article": "tea"}],
}


@pytest.fixture
def broker(new_reput_broker: Callable[..., BackgroundBroker]) -> BackgroundBroker:
    return new_reput_broker(store={"flush": "sync"})


def frame_of(spark: Any, broker: BackgroundBroker, topic: str, *bodies: bytes, **more: str) -> Any:
    if bodies:
        with Producer(broker.address) as producer:
            producer.send_batch([Message(topic, body, tag="t") for body in bodies], queue_id=0)
    given = {"nameServer": broker.address, "subscribe": topic, **more}
    return spark.read.format("reput").options(**given).load()


def write(frame: Any, broker: BackgroundBroker, topic: str) -> None:
    frame.write.format("reput").options(nameServer=broker.address, topic=topic).mode("append").save()


def test_avro_to_columns_and_back(spark: Any, broker: BackgroundBroker, tmp_path: Path) -> None:
    with schema_registry() as fake:
        registry = SchemaRegistry(fake.url)
        file = tmp_path / "order.avsc"
        file.write_text(json.dumps(SCHEMA))
        orders = Avro(file, registry=registry, subject="orders-value", register=True)
        body = orders.serialize(VALUE)
        for columns in ("native", "kafka"):
            frame = frame_of(spark, broker, f"in-{columns}", body, body, columns=columns)
            decoded = decode_values(frame, orders)
            assert "body" not in decoded.columns
            assert decoded.selectExpr("sum(value.number)", "max(value.lines[0].article)").collect() == [(14, "tea")]
        file.unlink()  # the workers do not need it
        write(encode_values(decoded.select("topic", "value").drop("topic"), orders), broker, "out")
        bodies = [bytes(row.body) for row in frame_of(spark, broker, "out").select("body").collect()]
        assert bodies == [body, body]


def test_what_is_of_another_form(spark: Any, broker: BackgroundBroker) -> None:
    number = Avro('"int"')
    frame = frame_of(spark, broker, "bad", number.serialize(1), b"", number.serialize(2)).select(
        "topic", "queueId", "queueOffset", "body"
    )
    with pytest.raises(Exception, match=r"\btopic bad, queueId 0, queueOffset 1: cannot be deserialized"):
        decode_values(frame, number).collect()
    table = decode_values(frame, number, on_bad_value="null").orderBy("queueOffset")
    assert [row.value for row in table.collect()] == [1, None, 2]
    (letter,) = table.where("error IS NOT NULL").collect()
    assert (letter.queueOffset, bytes(letter.body)) == (1, b"")
    state = Avro({"type": "enum", "name": "State", "symbols": ["NEW"]})
    values = spark.createDataFrame([("NEW",), ("OLD",)], "value string")
    with pytest.raises(Exception, match="cannot be serialized"):
        encode_values(values, state).collect()
    rows = encode_values(values, state, on_bad_value="null").orderBy("value").collect()
    assert [(row.value, row.body is None, row.error is None) for row in rows] == [
        ("NEW", False, True),
        ("OLD", True, False),
    ]


def test_json(spark: Any, broker: BackgroundBroker) -> None:
    frame = frame_of(spark, broker, "json", b'{"n":1}')
    decoded = decode_values(frame, Json(), value_type=pa.struct([("n", pa.int64())]))
    assert decoded.select("value.n").collect() == [(1,)]
    assert bytes(encode_values(decoded, Json()).collect()[0].body) == b'{"n":1}'


def test_a_stream(spark: Any, broker: BackgroundBroker, tmp_path: Path) -> None:
    number = Avro('"long"')
    frame_of(spark, broker, "stream", number.serialize(1), b"")
    stream = (
        spark.readStream.format("reput")
        .options(nameServer=broker.address, subscribe="stream", startingOffsets="earliest")
        .load()
    )
    query = (
        decode_values(stream, number, on_bad_value="null")
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = spark.read.parquet(str(tmp_path / "out"))
    assert sorted((row.value or 0, row.error is None) for row in found.collect()) == [(0, False), (1, True)]


def test_protobuf(spark: Any, broker: BackgroundBroker) -> None:
    """Of a module that Spark's workers can import."""
    from google.protobuf.timestamp_pb2 import Timestamp
    from google.protobuf.type_pb2 import Field

    pair = Protobuf(Field)
    frame = frame_of(spark, broker, "pb", pair.serialize(Field(name="a", number=3)), b"\xff")
    decoded = decode_values(frame, pair, on_bad_value="null").where("error IS NULL")
    assert decoded.select("value.name", "value.number").collect() == [("a", 3)]
    assert bytes(encode_values(decoded.drop("body", "error"), pair).collect()[0].body) == pair.serialize(
        Field(name="a", number=3)
    )
    times = Protobuf(Timestamp)
    frame = frame_of(spark, broker, "times", times.serialize(Timestamp(seconds=1)))
    assert decode_values(frame, times).selectExpr("unix_seconds(value)").collect() == [(1,)]


def test_what_cannot_be_is_refused(spark: Any) -> None:
    frame = spark.createDataFrame([("x",)], "value string")
    with pytest.raises(ValueError, match="no binary column"):
        decode_values(frame, Avro('"int"'))
    with pytest.raises(ValueError, match="no column 'value'"):
        encode_values(frame.drop("value"), Avro('"int"'))
    with pytest.raises(ValueError, match="on_bad_value is 'skip'"):
        encode_values(frame, Avro('"int"'), on_bad_value="skip")  # type: ignore[arg-type]
