"""Avro, Protobuf and JSON with schemas of files and of a registry."""

from __future__ import annotations

import json
import pickle
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reput_client import (
    TLS,
    Avro,
    Credentials,
    Json,
    Protobuf,
    RegistryRefused,
    RegistryUnavailable,
    SchemaNotFound,
    SchemaRegistry,
)
from reput_client.serialize.registry import decode_indexes, encode_indexes, frame
from support.broker_process import free_port
from support.protobuf_shop import FILES, Line, Money, Order, Refund
from support.schema_registry import FakeRegistry, schema_registry
from support.tls_files import make_tls_files

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "framed_values.json").read_text())
"""Bodies of Confluent's serializers, by golden/make_framed_values.py."""
SCHEMA = GOLDEN["avro"]["schema"]
PLACED = datetime(2026, 1, 2, 3, 4, 5, 6000, UTC)
VALUES = [
    {"number": 7, "customer": "Ada", "lines": [{"article": "tea", "count": 3}] * 2, "placed": PLACED},
    {"number": -(1 << 40), "customer": None, "lines": [], "placed": PLACED},
]
PROTOBUF = {
    "Order": Order(
        number=7,
        customer="Ada",
        total=Money(currency="EUR", cents=1250),
        lines=[Order.Line(article="tea", count=2)],
        photo=b"\0\1",
    ),
    "Line": Line(article="tea", count=2),
    "Refund": Refund(order=7),
}
SUBJECT = "orders-value"
RECURSIVE = {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link"]}]}


class Struct(msgspec.Struct):
    number: int


@pytest.fixture(scope="module")
def server() -> Iterator[FakeRegistry]:
    with schema_registry() as fake:
        yield fake


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with schema_registry() as fake:
        yield fake


def payload(hexadecimal: str) -> bytes:
    return bytes.fromhex(hexadecimal)


# -- the same bytes as Confluent's serializers -------------------------------------------------------------------------


def test_avro_has_confluents_bytes(fake: FakeRegistry) -> None:
    bodies = [payload(each) for each in GOLDEN["avro"]["bodies"]]
    fake.add(SUBJECT, json.dumps(SCHEMA))
    orders = Avro(SCHEMA, registry=SchemaRegistry(fake.url), subject=SUBJECT)
    assert [orders.serialize(value) for value in VALUES] == bodies
    assert [orders.deserialize(body) for body in bodies] == VALUES


def test_json_has_confluents_bytes(fake: FakeRegistry) -> None:
    fake.add(SUBJECT, json.dumps(GOLDEN["json"]["schema"]), "JSON")
    latest: Json[Any] = Json(registry=SchemaRegistry(fake.url), subject=SUBJECT)
    body = payload(GOLDEN["json"]["bodies"][0])
    assert latest.serialize({"number": 7}) == body
    assert Json(Struct, registry=SchemaRegistry(fake.url)).deserialize(body) == Struct(7)


@pytest.mark.parametrize("name", PROTOBUF)
def test_protobuf_has_confluents_bytes(fake: FakeRegistry, name: str) -> None:
    """A first message, a nested one, and the second one of its file."""
    body = payload(GOLDEN["protobuf"][name])
    value = PROTOBUF[name]
    pair = Protobuf(type(value), registry=SchemaRegistry(fake.url), subject=SUBJECT, register=True)
    assert pair.deserialize(body) == value
    assert not fake.requests, "the class is enough"
    assert pair.serialize(value) == body
    assert sum("money" in each for each in fake.requests) == 2, "the imported file is registered"
    again = Protobuf(type(value), registry=SchemaRegistry(fake.url), subject=SUBJECT)
    assert again.serialize(value) == pair.serialize(value)


# -- schemas of files ------------------------------------------------------------------------------------------------


def test_without_a_registry_a_body_is_the_payload(tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(SCHEMA))
    for schema in (file, str(file), SCHEMA, json.dumps(SCHEMA)):
        orders = Avro(schema)
        for value, framed in zip(VALUES, GOLDEN["avro"]["bodies"], strict=True):
            assert orders.serialize(value) == payload(framed)[5:]
            assert pickle.loads(pickle.dumps(orders)).deserialize(orders.serialize(value)) == value
    pair = Protobuf(Order)
    assert pair.deserialize(pair.serialize(PROTOBUF["Order"])) == PROTOBUF["Order"]
    with pytest.raises(TypeError, match="expected Order, got Refund"):
        pair.serialize(Refund())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Avro(), "give a schema"),
        (lambda: Avro("no/such/file.avsc"), r"schema file no/such/file.avsc cannot be read"),
        (lambda: Avro('{"type": '), "the schema cannot be read"),
        (lambda: Avro({"type": "record"}), "the schema is invalid"),
        (lambda: Avro({"type": "array", "items": "null"}), "array of items without bytes"),
        (lambda: Avro('"string"', subject=SUBJECT), "subject= belongs to registry="),
        (lambda: Json(register=True), "register=True needs subject="),
        (lambda: Json(registry=SchemaRegistry("http://h"), subject=SUBJECT, register=True), "register=True needs kind"),
        (lambda: SchemaRegistry("registry:8081"), "not the URL of a schema registry"),
        (lambda: SchemaRegistry("http://u:p@h"), "give credentials="),
        (lambda: SchemaRegistry("http://far", credentials=Credentials("u", "p")), "sent unencrypted to far"),
    ],
)
def test_contradictions_are_found_at_once(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_a_missing_library_names_the_extra() -> None:
    program = (
        "import sys\n"
        "for name in ('fastavro', 'google.protobuf.descriptor'): sys.modules[name] = None\n"
        "import reput_client\n"
        "reput_client.Json\n"
        "for name, extra in (('Avro', 'avro'), ('Protobuf', 'protobuf')):\n"
        "    try: getattr(reput_client, name)\n"
        "    except ModuleNotFoundError as error: assert f'reput-client[{extra}]' in str(error), error\n"
        "    else: raise AssertionError(name)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# -- the registry ------------------------------------------------------------------------------------------------------


def test_a_schema_is_registered_only_if_asked(fake: FakeRegistry) -> None:
    registry = SchemaRegistry(fake.url)
    with pytest.raises(SchemaNotFound, match=r"this schema under subject 'orders-value'.*register=True"):
        Avro(SCHEMA, registry=registry, subject=SUBJECT).serialize(VALUES[0])
    with pytest.raises(ValueError, match="without subject="):
        Avro(SCHEMA, registry=registry).serialize(VALUES[0])
    body = Avro(SCHEMA, registry=registry, subject=SUBJECT, register=True).serialize(VALUES[0])
    assert Avro(SCHEMA, registry=registry, subject=SUBJECT).serialize(VALUES[0]) == body
    Json(Struct, registry=registry, subject="json", register=True).serialize(Struct(1))
    assert json.loads(registry.version("json").schema.text)["$defs"]["Struct"]["required"] == ["number"]


def test_the_registry_is_asked_once(fake: FakeRegistry) -> None:
    fake.add(SUBJECT, json.dumps(SCHEMA))
    orders = Avro(registry=SchemaRegistry(fake.url), subject=SUBJECT)
    bodies = [orders.serialize(value) for value in VALUES * 3]
    assert [orders.deserialize(body) for body in bodies] == VALUES * 3
    assert fake.requests == ["GET /subjects/orders-value/versions/latest", "GET /schemas/ids/1"]
    other = pickle.loads(pickle.dumps(orders))
    assert other.deserialize(bodies[0]) == VALUES[0]


def test_prepare_asks_in_advance(fake: FakeRegistry) -> None:
    fake.add(SUBJECT, json.dumps(SCHEMA))
    registry = SchemaRegistry(fake.url)
    writes, reads = Avro(SCHEMA, registry=registry, subject=SUBJECT), Avro(registry=registry)
    anyio.run(writes.prepare)
    fake.failure = (503, b"")
    body = writes.serialize(VALUES[0])
    with pytest.raises(RegistryUnavailable):
        anyio.run(reads.prepare, body)
    fake.failure = None
    anyio.run(reads.prepare, body, b"", b"no frame", frame(9, b""))
    fake.failure = (503, b"")
    assert reads.deserialize(body) == VALUES[0]
    anyio.run(Avro('"string"').prepare)
    Avro('"string"').look_up()


def test_a_schema_can_be_registered_in_advance(fake: FakeRegistry) -> None:
    orders = Avro(SCHEMA, registry=SchemaRegistry(fake.url), subject=SUBJECT, register=True)
    orders.look_up()
    fake.failure = (503, b"")
    assert orders.serialize(VALUES[0])


def test_the_cache_is_bounded(fake: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reput_client.serialize.avro._SCHEMAS_MAX", 2)
    reads = Avro(registry=SchemaRegistry(fake.url))
    for size in (1, 2, 3):
        schema_id = fake.add(SUBJECT, json.dumps({"type": "fixed", "name": "F", "size": size}))
        assert reads.deserialize(frame(schema_id, b"x" * size)) == b"x" * size
        assert len(reads._writers) <= 2


def test_an_older_schema_is_resolved_to_the_programs(fake: FakeRegistry) -> None:
    old: dict[str, Any] = {"type": "record", "name": "Order", "fields": [{"name": "number", "type": "int"}]}
    new = {**old, "fields": [*old["fields"], {"name": "note", "type": "string", "default": "none"}]}
    registry = SchemaRegistry(fake.url)
    body = Avro(old, registry=registry, subject=SUBJECT, register=True).serialize({"number": 1})
    assert Avro(new, registry=registry).deserialize(body) == {"number": 1, "note": "none"}
    stricter = {**old, "fields": [{"name": "must", "type": "string"}]}
    with pytest.raises(Exception, match="must"):
        Avro(stricter, registry=registry).deserialize(body)


def test_references_are_followed(fake: FakeRegistry) -> None:
    money = {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}
    order = {"type": "record", "name": "shop.Order", "fields": [{"name": "total", "type": "shop.Money"}]}
    fake.add("money", json.dumps(money))
    reference = {"name": "shop.Money", "subject": "money", "version": 1}
    fake.add(SUBJECT, json.dumps(order), references=[reference])
    orders = Avro(registry=SchemaRegistry(fake.url), subject=SUBJECT)
    assert orders.deserialize(orders.serialize({"total": {"cents": 5}})) == {"total": {"cents": 5}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (["shop.Money", "shop.Note"], {"text": "x"}),  # several types in one topic
        ("shop.Money", {"cents": 5}),
        ({"type": "array", "items": "shop.Money"}, [{"cents": 5}, {"cents": 6}]),
        ({"type": "map", "values": ["null", "shop.Note"]}, {"a": {"text": "x"}, "b": None}),
    ],
    ids=str,
)
def test_references_are_followed_from_what_is_not_a_record(fake: FakeRegistry, schema: Any, value: Any) -> None:
    """Values could not be written or read: there was no such type."""
    for name, field in (("Money", {"name": "cents", "type": "long"}), ("Note", {"name": "text", "type": "string"})):
        fake.add(name, json.dumps({"type": "record", "name": f"shop.{name}", "fields": [field]}))
    references = [{"name": f"shop.{name}", "subject": name, "version": 1} for name in ("Money", "Note")]
    fake.add(SUBJECT, json.dumps(schema), references=references)
    values = Avro(registry=SchemaRegistry(fake.url), subject=SUBJECT)
    assert values.deserialize(values.serialize(value)) == value


@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        ((503, b"busy"), RegistryUnavailable, "status 503"),
        ((429, b"{}"), RegistryUnavailable, "status 429"),
        ((200, b"<html>"), RegistryUnavailable, "not JSON"),
        ((200, b"{}"), RegistryUnavailable, "no schema"),
        ((200, b"[" * 100_000), RegistryUnavailable, "not JSON"),
        ((404, b"<html>"), RegistryRefused, "status 404"),
        ((401, b'{"error_code":401,"message":"Unauthorized"}'), RegistryRefused, "status 401: Unauthorized"),
        ((404, b'{"error_code":40403,"message":"Schema not found"}'), SchemaNotFound, "schema 1"),
    ],
)
def test_failures_of_the_registry_are_told_apart(
    fake: FakeRegistry, failure: tuple[int, bytes], kind: type[Exception], words: str
) -> None:
    fake.failure = failure
    with pytest.raises(kind, match=words) as caught:
        Avro(registry=SchemaRegistry(fake.url)).deserialize(frame(1, b""))
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
    assert getattr(caught.value, "retryable") is (kind is RegistryUnavailable)  # noqa: B009


def test_an_incompatible_schema_and_a_registry_that_is_away(fake: FakeRegistry) -> None:
    fake.incompatible.add(SUBJECT)
    with pytest.raises(RegistryRefused, match="incompatible") as caught:
        Avro(SCHEMA, registry=SchemaRegistry(fake.url), subject=SUBJECT, register=True).serialize(VALUES[0])
    assert caught.value.status == 409
    away = SchemaRegistry(f"http://127.0.0.1:{free_port()}", timeout_s=5.0)
    with pytest.raises(RegistryUnavailable, match="check the URL"):
        Avro(registry=away).deserialize(frame(1, b""))
    with pytest.raises(RegistryUnavailable, match=r"ca .* cannot be read"):
        SchemaRegistry("https://127.0.0.1:1", tls=TLS(ca="/no/ca.pem")).schema(1)


def test_credentials_and_tls(tmp_path: Path) -> None:
    files = make_tls_files(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.broker)
    with schema_registry(context) as fake:
        fake.authorization = "Basic c2hvcDpvcGVuIHNlc2FtZQ=="
        fake.add(SUBJECT, '"string"')
        user = Credentials("shop", "open sesame")
        good = SchemaRegistry(fake.url, credentials=user, tls=TLS(ca=files.ca))
        assert good.schema(1).text == '"string"'
        with pytest.raises(RegistryRefused, match="401"):
            SchemaRegistry(fake.url, tls=TLS(ca=files.ca)).schema(1)
        with pytest.raises(RegistryUnavailable, match="certificate"):
            SchemaRegistry(fake.url, credentials=user, tls=TLS(ca=files.other_ca)).schema(1)


# -- properties --------------------------------------------------------------------------------------------------------

orders = st.fixed_dictionaries(
    {
        "number": st.integers(-(1 << 63), (1 << 63) - 1),
        "customer": st.none() | st.text(),
        "lines": st.lists(
            st.fixed_dictionaries({"article": st.text(), "count": st.integers(-(1 << 31), (1 << 31) - 1)})
        ),
        "placed": st.just(PLACED),
    }
)


@given(orders)
def test_avro_returns_what_it_was_given(server: FakeRegistry, value: dict[str, Any]) -> None:
    registry = SchemaRegistry(server.url)
    for pair in (Avro(SCHEMA), Avro(SCHEMA, registry=registry, subject=SUBJECT, register=True)):
        assert pair.deserialize(pair.serialize(value)) == value


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.text(), st.lists(st.text()), st.binary())
def test_protobuf_returns_what_it_was_given(number: int, name: str, articles: list[str], photo: bytes) -> None:
    lines = [Line(article=each) for each in articles]
    value = Order(number=number, customer=name, lines=lines, photo=photo)
    assert Protobuf(Order).deserialize(Protobuf(Order).serialize(value)) == value


@given(st.lists(st.integers(0, (1 << 31) - 1), min_size=1, max_size=32), st.binary())
def test_message_indexes_return(indexes: list[int], rest: bytes) -> None:
    body = frame(1, rest, encode_indexes(indexes))
    assert decode_indexes(body) == (indexes, len(body) - len(rest))


@given(st.binary(max_size=200), st.integers(0, 6))
def test_malformed_bodies_raise(server: FakeRegistry, junk: bytes, known: int) -> None:
    """Any bytes have a value, or raise an ordinary exception; none is taken for a failure of the registry."""
    server.add("recursive", json.dumps(RECURSIVE))
    registry = SchemaRegistry(server.url)
    pairs: list[Any] = [Avro(SCHEMA, registry=registry), Protobuf(Order, registry=registry), Json(registry=registry)]
    for pair in (*pairs, Avro(SCHEMA), Avro(RECURSIVE), Protobuf(Order), Avro(registry=registry)):
        for body in (junk, frame(known, junk)):
            try:
                pair.deserialize(body)
            except (RegistryUnavailable, RegistryRefused) as error:
                raise AssertionError(body) from error
            except Exception:
                continue


def test_a_deep_body_does_not_end_the_process() -> None:
    """Compiled code would overflow the stack at some thousand levels."""
    links = Avro(RECURSIVE)
    assert links.deserialize(links.serialize({"next": {"next": None}})) == {"next": {"next": None}}
    with pytest.raises(RecursionError):
        links.deserialize(b"\2" * 1_000_000 + b"\0")
    deep: dict[str, Any] = {"next": None}
    for _ in range(100_000):
        deep = {"next": deep}
    with pytest.raises(ValueError, match="more than 100 levels"):
        links.serialize(deep)


@pytest.mark.parametrize("kind", [{"type": "bytes"}, {"type": "fixed", "name": "F", "size": 16}])
def test_a_decimal_number_of_many_digits_is_refused_at_once(kind: dict[str, Any]) -> None:
    """fastavro would take 20 seconds for it, and round it."""
    decimals = Avro({**kind, "logicalType": "decimal", "precision": 9, "scale": 2})
    for value in ("1.25", "-9999999.99", "0.00"):
        assert decimals.deserialize(decimals.serialize(Decimal(value))) == Decimal(value)
    raw = Avro(kind)
    for size in (5, 300_000) if kind["type"] == "bytes" else (16,):
        body = raw.serialize(b"\x7f" * size)
        with pytest.raises(ValueError, match="more than 9 digits"):
            decimals.deserialize(body)
    optional = Avro(["null", "long", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}])
    assert [optional.deserialize(optional.serialize(v)) for v in (None, 7, Decimal("1.25"))] == [
        None,
        7,
        Decimal("1.25"),
    ]
    with pytest.raises(ValueError, match="precision"):
        Avro({"type": "bytes", "logicalType": "decimal"})


def test_what_follows_a_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="the value ends at byte 2 of 3"):
        Avro('"string"').deserialize(b"\2ab")


def test_the_files_are_what_protoc_would_write() -> None:
    assert [file.name for file in FILES.file] == ["shop/money.proto", "shop/orders.proto"]
