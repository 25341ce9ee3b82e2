"""`reput consume --decode`: bodies as JSON, and those that are not of the form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker
from reput_client import Avro, Json, Protobuf, SchemaRegistry
from reput_client.blocking import Message, Producer
from reput_protocol.exit_codes import ExitCode
from support.command import reput
from support.protobuf_shop import FILES, Line, Money, Order
from support.schema_registry import FakeRegistry, schema_registry

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "photo", "type": "bytes"},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
VALUE = {"number": 7, "photo": b"\0\1", "placed": datetime(2026, 1, 2, tzinfo=UTC)}
AS_JSON = {"number": 7, "photo": "AAE=", "placed": "2026-01-02T00:00:00Z"}
ORDER = Order(number=7, customer="Ada", total=Money(currency="EUR", cents=1250))
ORDER_AS_JSON = {"number": 7, "customer": "Ada", "total": {"currency": "EUR", "cents": "1250"}}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundBroker]:
    config = BrokerConfig.model_validate({"data_dir": tmp_path_factory.mktemp("decode"), "port": 0, "http_port": None})
    with BackgroundBroker(config) as broker:
        yield broker


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with schema_registry() as fake:
        yield fake


def consumed(broker: BackgroundBroker, topic: str, *bodies: bytes, decode: object, more: Any = ()) -> Any:
    with Producer(broker.address) as producer:
        for body in bodies:
            producer.send(Message(topic, body, tag="t"), ordering_key="one queue")
    return reput("consume", topic, "-e", "--decode", decode, *more, server=broker.address)


def lines(done: Any) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_avro_of_a_file(broker: BackgroundBroker, tmp_path: Path) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(SCHEMA))
    good = Avro(file).serialize(VALUE)
    first, second = lines(consumed(broker, "avro", good, b"\xff", decode=f"avro:{file}"))
    assert (first["value"], first["tag"], "body" in first) == (AS_JSON, "t", False)
    assert second["body_base64"] == "/w=="
    assert second["error"]
    assert "value" not in second
    shown = consumed(broker, "avro", decode=f"avro:{file}", more=("-O", "plain"))
    assert json.dumps(AS_JSON) in shown.stdout
    assert "(not decoded: " in shown.stdout
    as_text = consumed(broker, "avro", decode=f"avro:{file}", more=("-n", "1", "-f", "%v"))
    assert json.loads(as_text.stdout) == AS_JSON


def test_protobuf_of_a_descriptor_set(broker: BackgroundBroker, tmp_path: Path) -> None:
    file = tmp_path / "shop.desc"
    file.write_bytes(FILES.SerializeToString())
    bodies = (ORDER.SerializeToString(), b"\xff")
    first, second = lines(consumed(broker, "pb", *bodies, decode=f"protobuf:{file}:shop.Order"))
    assert first["value"] == ORDER_AS_JSON
    assert "DecodeError" in second["error"]


def test_json(broker: BackgroundBroker) -> None:
    first, second, third = lines(consumed(broker, "js", b'{"a":[1,null]}', b"{", b'"x"', decode="json"))
    assert first["value"] == {"a": [1, None]}
    assert (second["body"], bool(second["error"])) == ("{", True)
    assert third["value"] == "x"
    shown = reput("consume", "js", "-e", "-g", "readers", "--decode", "json", server=broker.address)
    assert [each.get("value") for each in lines(shown)] == [{"a": [1, None]}, None, "x"]


def test_messagepack(broker: BackgroundBroker) -> None:
    bodies = (b"\x81\xa1a\x93\x01\xc0\xc4\x01\xff", b"\x81\x07\xd4\x05\x01", b"\xc1")
    first, second, third = lines(consumed(broker, "mp", *bodies, decode="msgpack"))
    assert first["value"] == {"a": [1, None, "/w=="]}
    assert second["value"] == {"7": {"extension": 5, "data": "AQ=="}}
    assert third["error"]


def test_each_kind_by_a_registry(broker: BackgroundBroker, fake: FakeRegistry) -> None:
    registry = SchemaRegistry(fake.url)
    bodies = [
        Avro(SCHEMA, registry=registry, subject="a", register=True).serialize(VALUE),
        Protobuf(Order, registry=registry, subject="p", register=True).serialize(ORDER),
        Protobuf(Line, registry=registry, subject="p", register=True).serialize(Line(article="tea")),
        Json(dict[str, int], registry=registry, subject="j", register=True).serialize({"n": 1}),
        b"no frame",
        b"\0\0\0\0\x63",
        b"\0\0\0\0\x02\x02\x7e",
    ]
    found = lines(consumed(broker, "registered", *bodies, decode=f"registry:{fake.url}"))
    assert [each.get("value") for each in found] == [
        AS_JSON, ORDER_AS_JSON, {"article": "tea"}, {"n": 1}, None, None, None,
    ]  # fmt: skip
    assert "SchemaNotFound" in found[5]["error"]
    assert all(each["error"] for each in found[4:])


def test_a_registry_that_is_away_ends_the_command(broker: BackgroundBroker, fake: FakeRegistry) -> None:
    """Not a word is wrong with the message, which is not committed either."""
    fake.failure = (503, b"")
    body = b"\0\0\0\0\1\2"
    done = consumed(broker, "away", body, decode=f"registry:{fake.url}", more=("-g", "away-readers"))
    assert (done.returncode, done.stdout) == (ExitCode.CANNOT_CONNECT, "")
    assert "is not available: status 503" in done.stderr
    fake.failure = None
    fake.add("away", '"int"')
    again = consumed(broker, "away", decode=f"registry:{fake.url}", more=("-g", "away-readers"))
    assert [each["value"] for each in lines(again)] == [1]


def test_a_registry_with_users(
    broker: BackgroundBroker, fake: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.authorization = "Basic c2hvcDpvcGVuIHNlc2FtZQ=="
    fake.add("users", '"int"')
    denied = consumed(broker, "users", b"\0\0\0\0\1\2", decode=f"registry:{fake.url}")
    assert "status 401: Unauthorized" in denied.stderr
    monkeypatch.setenv("REPUT_REGISTRY_USER", "shop")
    half = consumed(broker, "users", decode=f"registry:{fake.url}")
    assert (half.returncode, "set both" in half.stderr) == (ExitCode.USAGE, True)
    (tmp_path / "secret").write_text("open sesame\n")
    monkeypatch.setenv("REPUT_REGISTRY_SECRET_FILE", str(tmp_path / "secret"))
    assert [each["value"] for each in lines(consumed(broker, "users", decode=f"registry:{fake.url}"))] == [1]


@pytest.mark.parametrize(
    ("decode", "words"),
    [
        ("xml", "write json, msgpack, avro:FILE"),
        ("avro:/no/such.avsc", "cannot be read"),
        ("protobuf:/no/such.desc:shop.Order", "No such file"),
        ("protobuf:FILE:shop.Nothing", "shop.Nothing"),
        ("protobuf:JUNK:shop.Order", "protoc --include_imports"),
        ("registry:localhost", "not the URL of a schema registry"),
    ],
)
def test_a_form_that_cannot_be_used_is_a_usage_error(
    broker: BackgroundBroker, tmp_path: Path, decode: str, words: str
) -> None:
    for name, content in (("FILE", FILES.SerializeToString()), ("JUNK", b"\xff\xff")):
        (tmp_path / name).write_bytes(content)
        decode = decode.replace(name, str(tmp_path / name))
    done = consumed(broker, "js", decode=decode)
    assert done.returncode == ExitCode.USAGE
    assert words in done.stderr
