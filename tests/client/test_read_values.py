"""The values of a topic as typed columns of Arrow, Polars and DuckDB."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker
from reput_client import Avro, Json, Message, NotDeserialized, Protobuf, RegistryUnavailable, SchemaRegistry
from reput_client.arrow import read_arrow, scan_polars
from reput_client.arrow.value_form import ValueForm
from reput_client.arrow.values import TypedColumns, form_of, reader_of, values_of
from reput_client.blocking import Producer
from support.protobuf_shop import Line, Money, Order
from support.schema_registry import schema_registry

PLACED = datetime(2026, 1, 2, 3, 4, 5, 6000, UTC)
NUMBER = uuid.UUID(int=7)
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 2}},
        {"name": "notes", "type": {"type": "map", "values": "string"}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "article", "type": "string"}, {"name": "state", "type": "State"}]}}},
    ],
}  # fmt: skip
VALUE = {
    "number": 7,
    "customer": None,
    "total": Decimal("12.50"),
    "placed": PLACED,
    "day": date(2026, 1, 2),
    "id": NUMBER,
    "state": "PAID",
    "code": b"de",
    "notes": {"a": "b"},
    "lines": [{"article": "tea", "state": "NEW"}],
}
READ = {**VALUE, "id": str(NUMBER), "notes": [("a", "b")]}


@dataclass
class Data:
    number: int
    placed: datetime


class Model(BaseModel):
    number: int
    placed: datetime


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundBroker]:
    config = BrokerConfig.model_validate({"data_dir": tmp_path_factory.mktemp("values"), "port": 0, "http_port": None})
    with BackgroundBroker(config) as broker:
        yield broker


def store(broker: BackgroundBroker, topic: str, *bodies: bytes) -> str:
    with Producer(broker.address) as producer:
        producer.send_batch([Message(topic, body, tag="t") for body in bodies], queue_id=0)
    return broker.address


def test_avro(broker: BackgroundBroker, topic: str) -> None:
    orders = Avro(SCHEMA)
    address = store(broker, topic, *[orders.serialize(VALUE)] * 3)
    for source in (address, broker.data_dir):
        table = read_arrow(source, topic, decode=orders, batch_rows=2).read_all()
        assert table["value"].to_pylist() == [READ] * 3
        assert "error" not in table.schema.names
        assert "body" not in table.schema.names
        assert table["tags"].to_pylist() == ["t"] * 3
    chosen = read_arrow(address, topic, columns=["value", "body"], decode=orders)
    assert chosen.schema.names == ["value", "body"]
    found = duckdb.sql("SELECT sum(value.number), any_value(value['lines'][1].article) FROM chosen")
    assert found is not None
    assert found.fetchall() == [(21, "tea")]


def test_what_is_not_of_the_form(broker: BackgroundBroker, topic: str) -> None:
    orders = Avro({"type": "record", "name": "O", "fields": [{"name": "n", "type": "long"}]})
    address = store(broker, topic, orders.serialize({"n": 1}), b"\xff", orders.serialize({"n": 2}))
    with pytest.raises(NotDeserialized) as caught:
        read_arrow(address, topic, columns=["value"], decode=orders).read_all()
    assert (caught.value.topic, caught.value.queue_id, caught.value.queue_offset) == (topic, 0, 1)
    table = read_arrow(address, topic, decode=orders, on_bad_value="null").read_all()
    assert table["value"].to_pylist() == [{"n": 1}, None, {"n": 2}]
    assert [bool(error) for error in table["error"].to_pylist()] == [False, True, False]
    only = read_arrow(address, topic, columns=["queueOffset"], decode=orders).read_all()
    assert only.to_pydict() == {"queueOffset": [0, 1, 2]}, "nothing is decoded"


def test_values_that_are_not_of_the_type(broker: BackgroundBroker, topic: str) -> None:
    address = store(broker, topic, b'{"n":1}', b'{"n":"x"}', b"[]", b"[", b'{"n":36893488147419103232}', b"{}")
    kind = pa.struct([("n", pa.int64())])
    given: Any = {"decode": Json(), "value_type": kind}
    table = read_arrow(address, topic, on_bad_value="null", **given).read_all()
    assert table["value"].to_pylist() == [{"n": 1}, None, None, None, None, {"n": None}]
    assert [bool(error) for error in table["error"].to_pylist()] == [False, True, True, True, True, False]
    with pytest.raises(NotDeserialized, match=r"got `str` - at `\$.n`") as caught:
        read_arrow(address, topic, end={0: 3}, **given).read_all()
    assert caught.value.queue_offset == 1


LINE = pa.struct([("n", pa.int64())])


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (LINE, ['{"n":1}', '{"more":1}', "{}", "null"], ["[]", '[["n",1]]', '"n"', '{"n":[]}']),
        (pa.struct([("line", LINE)]), ['{"line":{"n":1}}', '{"line":null}'], ['{"line":[]}', '{"line":{"n":1.5}}']),
        (pa.list_(pa.string()), ['["ab",null]', "[]"], ['"ab"', "{}", "[1]"]),
        (pa.map_(pa.string(), LINE), ['{"a":{"n":1}}', "{}"], ["[]", '{"a":[]}']),
        (pa.int64(), ["1"], ["1.5", "1.0", "1e2", "true", '"1"', str(1 << 64)]),
        (pa.timestamp("us", "UTC"), ["1"], ["1.5", "true", '"2026-01-02T03:04:05Z"']),
        (pa.date32(), ["1"], ["1.5", "true"]),
        (pa.time64("us"), ["1"], ["1.5"]),
        (pa.duration("s"), ["1"], ["1.5"]),
        (pa.float64(), ["1.5", "1"], ["true", '"1"', str((1 << 53) + 1)]),
        (pa.decimal128(9, 2), ["1"], ["1.5", "true"]),
        (pa.bool_(), ["true"], ["1"]),
        (pa.dictionary(pa.int8(), pa.string()), ['"a"'], ["1"]),
        (pa.binary(2), ['"ab"'], ['"abc"', "7"]),
    ],
    ids=str,
)
def test_json_is_checked_before_arrow_would_coerce_it(kind: pa.DataType, good: list[str], bad: list[str]) -> None:
    """A row that Arrow takes only without the row next to it once ended the reading, and 1.5 became the integer 1."""
    form = pickle.loads(pickle.dumps(form_of(Json(), kind)))  # as Spark sends it
    bodies = [text.encode() for text in (*good, *bad, good[0])]
    values, errors = values_of(pa.array(bodies, pa.binary()), Json().deserialize, form)
    values.validate(full=True)
    assert sorted(errors) == [*range(len(good), len(good) + len(bad))]
    assert [value is None for value in values.to_pylist()] == [
        row in errors or body == b"null" for row, body in enumerate(bodies)
    ]


def test_rows_that_arrow_rejects_are_found_one_by_one() -> None:
    """Arrow takes an empty list for a struct, but not next to a dictionary."""
    rows: dict[bytes, Any] = {b"a": {"n": 1}, b"b": [], b"c": {"n": "x"}}
    bodies = pa.array([b"a", b"b", b"a", b"c", b"a", b"a", b"c"], pa.binary())
    values, errors = values_of(bodies, rows.__getitem__, ValueForm(LINE))
    assert values.field("n").to_pylist() == [1, None, 1, None, 1, 1, None]
    assert set(errors) >= {3, 6}


@pytest.mark.parametrize("kind", [Data, Model])
def test_json(broker: BackgroundBroker, topic: str, kind: type[Any]) -> None:
    pair: Json[Any] = Json(kind)
    address = store(broker, topic, pair.serialize(kind(number=7, placed=PLACED)))
    as_arrow = pa.struct([("number", pa.int64()), ("placed", pa.timestamp("us", "UTC"))])
    table = read_arrow(address, topic, decode=pair, value_type=as_arrow).read_all()
    assert table["value"].to_pylist() == [{"number": 7, "placed": PLACED}]


def test_protobuf(broker: BackgroundBroker, topic: str) -> None:
    order = Order(number=7, total=Money(cents=1250), lines=[Line(article="tea", count=2)], photo=b"\0\1")
    pair = Protobuf(Order)
    address = store(broker, topic, pair.serialize(order), pair.serialize(Order()), b"\xff")
    table = read_arrow(address, topic, decode=pair, on_bad_value="null").read_all()
    assert table["value"].to_pylist() == [
        {
            "number": 7,
            "customer": "",
            "total": {"currency": "", "cents": 1250},
            "lines": [{"article": "tea", "count": 2}],
            "photo": b"\0\1",
        },
        {"number": 0, "customer": "", "total": None, "lines": [], "photo": b""},
        None,
    ]
    assert "DecodeError" in table["error"][2].as_py()


def test_times_of_protobuf(broker: BackgroundBroker, topic: str) -> None:
    pair = Protobuf(Timestamp)
    address = store(broker, topic, pair.serialize(Timestamp(seconds=1)), pair.serialize(Timestamp(seconds=1 << 60)))
    values = read_arrow(address, topic, decode=pair, on_bad_value="null").read_all()["value"].to_pylist()
    assert values == [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), None]


@pytest.mark.parametrize(
    "around",
    [
        lambda kind: ["null", kind],
        lambda kind: {"type": "array", "items": kind},
        lambda kind: {"type": "map", "values": kind},
    ],
    ids=["union", "array", "map"],
)
def test_a_named_type_is_used_twice_in_what_is_not_a_record(around: Callable[[Any], Any]) -> None:
    """It raised KeyError."""
    state = {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}
    fields = [{"name": "before", "type": state}, {"name": "after", "type": "State"}]
    states = pa.struct([("before", pa.string()), ("after", pa.string())])
    kind = form_of(Avro(around({"type": "record", "name": "Change", "fields": fields})), None).kind
    assert kind in (states, pa.list_(states), pa.map_(pa.string(), states))


@given(st.lists(st.binary(max_size=60)))
def test_any_bodies_become_values_or_errors(bodies: list[bytes]) -> None:
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(bodies, pa.binary()),
            pa.array([""] * len(bodies)),
            pa.array([0] * len(bodies), pa.int32()),
            pa.array(range(len(bodies)), pa.int64()),
        ],
        names=["body", "topic", "queueId", "queueOffset"],
    )
    kinds: list[tuple[Any, Any]] = [(Avro(SCHEMA), None), (Protobuf(Order), None), (Json(), pa.list_(pa.int8()))]
    for decoder, kind in kinds:
        (made,) = TypedColumns(["value", "error"], decoder, kind, "null").batches([rows])
        made.validate(full=True)
        for value, error in zip(*(column.to_pylist() for column in made.columns), strict=True):
            assert error is None or value is None


def test_polars_decodes_only_what_a_query_uses(broker: BackgroundBroker, topic: str) -> None:
    orders = Avro(SCHEMA)
    address = store(broker, topic, orders.serialize(VALUE), b"\xff")
    frame = scan_polars(address, topic, columns=["queueOffset", "body", "value"], decode=orders)
    assert frame.collect_schema().names() == ["queueOffset", "body", "value"]
    assert frame.select("queueOffset", "body").collect().height == 2
    with pytest.raises(NotDeserialized, match="offset 1 cannot be deserialized"):
        frame.select("value").collect()
    good = scan_polars(address, topic, decode=orders, on_bad_value="null").filter(pl.col("error").is_null())
    assert good.select(pl.col("value").struct.field("number")).collect().to_dicts() == [{"number": 7}]
    assert good.collect_schema().names() == read_arrow(address, topic, decode=orders, on_bad_value="null").schema.names
    assert good.collect()["value"].struct.field("number").to_list() == [7]


def test_a_registry(broker: BackgroundBroker, topic: str) -> None:
    with schema_registry() as fake:
        registry = SchemaRegistry(fake.url)
        orders = Avro(SCHEMA, registry=registry, subject="orders-value", register=True)
        address = store(broker, topic, orders.serialize(VALUE), b"\0\0\0\0\x63")
        latest = Avro(registry=registry, subject="orders-value")
        table = read_arrow(address, topic, decode=latest, on_bad_value="null").read_all()
        assert table["value"].to_pylist() == [READ, None]
        assert "SchemaNotFound" in table["error"][1].as_py()
        other = Avro(SCHEMA, registry=SchemaRegistry(fake.url))
        fake.failure = (503, b"")
        with pytest.raises(RegistryUnavailable):
            read_arrow(address, topic, decode=other, on_bad_value="null").read_all()


def test_older_bodies_are_resolved_to_the_latest_schema_of_a_registry(broker: BackgroundBroker, topic: str) -> None:
    """The type was the latest schema's, the values were as written: its defaults and aliases became nulls."""
    first = [{"name": "n", "type": "int"}, {"name": "old", "type": "string"}]
    second = [
        {"name": "n", "type": "long"},
        {"name": "currency", "type": "string", "default": "EUR"},
        {"name": "customer", "type": "string", "aliases": ["old"]},
    ]
    with schema_registry() as fake:
        registry = SchemaRegistry(fake.url)
        writers = [
            Avro({"type": "record", "name": "O", "fields": fields}, registry=registry, subject="o", register=True)
            for fields in (first, second)
        ]
        bodies = [
            writers[0].serialize({"n": 1, "old": "x"}),
            writers[1].serialize({"n": 2, "currency": "USD", "customer": "y"}),
        ]
        latest = Avro(registry=registry, subject="o")
        table = read_arrow(store(broker, topic, *bodies), topic, decode=latest).read_all()
        wanted = [{"n": 1, "currency": "EUR", "customer": "x"}, {"n": 2, "currency": "USD", "customer": "y"}]
        assert table["value"].to_pylist() == wanted
        sent = pickle.loads(pickle.dumps(reader_of(latest)))  # as Spark sends it
        assert [sent.deserialize(body) for body in bodies] == wanted
        assert latest.deserialize(bodies[0]) == {"n": 1, "old": "x"}, "as written"


@pytest.mark.parametrize(
    ("decode", "more", "words"),
    [
        (Avro(["int", "string"]), {}, "a union of several types"),
        (Avro({"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]}), {}, "L is recursive"),
        (Avro(registry=SchemaRegistry("http://127.0.0.1:1")), {}, "without subject="),
        (Protobuf(Struct), {}, "google.protobuf.Struct is recursive"),
        (Json(), {}, "Json needs value_type="),
        (Json(), {"value_type": pa.sparse_union([])}, "values cannot be converted to"),
        (Avro('"int"'), {"value_type": pa.int32()}, "value_type= is for Json"),
        (Avro('"int"'), {"on_bad_value": "skip"}, "on_bad_value is 'skip'"),
        (Avro('"int"'), {"columns": ["error"]}, "there is no column 'error'"),
        (Avro('"int"'), {"columns": ["value", "value"]}, "names a column twice"),
    ],
)
def test_what_has_no_columns_is_refused(
    broker: BackgroundBroker, topic: str, decode: Any, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        read_arrow(broker.address, topic, decode=decode, **more)
