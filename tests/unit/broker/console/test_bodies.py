"""Bodies as values, by the option and by their look; and the conditions on them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reput_broker.console.reading import BodyCondition, filter_of
from reput_broker.console.source import Bodies, InvalidQuery, Query
from reput_client import Avro, Protobuf, SchemaRegistry
from reput_client.message_json import NOT_DECODED
from reput_client.received import ReceivedMessage
from reput_protocol.properties import encode_properties
from reput_protocol.record.record import Record, encode_record
from support.protobuf_shop import FILES, Order
from support.schema_registry import schema_registry

VALUE = {"order": {"items": [{"sku": "A-1", "n": 2}, {"sku": "B-2"}], "a name": "x", "total": 19.5, "paid": True}}
AVRO = {"type": "record", "name": "Order", "fields": [{"name": "number", "type": "long"}]}


def message(body: bytes, topic: str = "orders", **properties: str) -> ReceivedMessage:
    encoded = encode_properties(properties)
    return ReceivedMessage.of_record(bytes(encode_record(Record(topic, body, properties=encoded))))


def test_json_and_messagepack_are_known_by_their_look() -> None:
    bodies = Bodies(())
    assert bodies.decoded(message(b' {"a": 9007199254740993}'))[:2] == ("json", {"a": 9007199254740993})
    packed = msgspec.msgpack.encode({"a": b"\xff", 2: datetime.fromtimestamp(0, UTC)})
    assert bodies.decoded(message(packed))[:2] == ("msgpack", {"a": "/w==", "2": "1970-01-01T00:00:00Z"})
    for body in (b"", b"plain", b"{not json", b"7", b"\x81\xa1", packed + b"x", b"[" * 100_000):
        assert bodies.decoded(message(body)).value is NOT_DECODED
    assert bodies.preview(message(packed)) == '{"a": "/w==", "2": "1970-01-01T00:00:00Z"}'
    assert bodies.preview(message(b'{"a":  1}')) == '{"a":  1}'
    assert bodies.preview(message(b"\x1b[31m\xff")) == "\\x1b[31m\N{REPLACEMENT CHARACTER}"


def test_topics_have_the_form_that_the_option_gives_them(tmp_path: Path) -> None:
    schema, shop = tmp_path / "order.avsc", tmp_path / "shop.desc"
    schema.write_text(json.dumps(AVRO))
    shop.write_bytes(FILES.SerializeToString())
    bodies = Bodies((f"orders=avro:{schema}", f"shop-*=protobuf:{shop}:shop.Order", "gone=avro:/no/such.avsc"))
    avro = Avro(AVRO).serialize({"number": 7})
    assert bodies.decoded(message(avro)) == ("avro", {"number": 7}, None)
    assert bodies.decoded(message(Order(number=8).SerializeToString(), "shop-eu")).value == {"number": 8}
    # A dead letter has the body of the message that it was.
    assert bodies.decoded(message(avro, "%DLQ%billing", RETRY_TOPIC="orders")).value == {"number": 7}
    assert bodies.decoded(message(avro, "others")).trouble is None
    wrong = bodies.decoded(message(b"\xff\xff"))
    assert (wrong.value is NOT_DECODED, "it is not avro" in str(wrong.trouble)) == (True, True)
    assert "cannot be read" in str(bodies.decoded(message(avro, "gone")).trouble)


def test_a_registry_that_is_away_is_asked_again_after_a_while() -> None:
    now = 0.0
    with schema_registry() as fake:
        body = Avro(AVRO, registry=SchemaRegistry(fake.url), subject="s", register=True).serialize({"number": 1})
        bodies = Bodies((f"*=registry:{fake.url}",), clock=lambda: now)
        fake.failure = (503, b"")
        assert "not available" in str(bodies.decoded(message(body)).trouble)
        fake.failure = None
        assert "not available" in str(bodies.decoded(message(body)).trouble), "it is not asked for each message"
        now = 11.0
        assert bodies.decoded(message(body)) == ("registry", {"number": 1}, None)


def test_protobuf_by_a_registry_needs_no_class() -> None:
    with schema_registry() as fake:
        registry = SchemaRegistry(fake.url)
        body = Protobuf(Order, registry=registry, subject="p", register=True).serialize(Order(number=3))
        assert Bodies((f"*=registry:{fake.url}",)).decoded(message(body)).value == {"number": 3}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ('order.items[0].sku = "A-1"', True),
        ("$.order.items[0].sku = A-1", True),
        ('order.items[1].sku = "A-1"', False),
        ('order.items[*].sku = "B-2"', True),
        ("order.items.1.sku contains B", True),
        ('order["a name"] = x', True),
        ("order.total >= 19.5", True),
        ("order.total < 19.5", False),
        ('order.total > "1"', False),
        ("order.paid = true", True),
        ("order.paid = 1", False),
        ("order.*.0.n != 3", True),
        ("order.nothing", False),
        ("order.nothing != 3", False),
        ("order.items", True),
        ("order.items[9]", False),
    ],
)
def test_conditions_on_a_value(condition: str, holds: bool) -> None:
    assert BodyCondition.parse(condition).holds(VALUE) is holds


@pytest.mark.parametrize("text", ["", "=", "a b", "a =", "a[x]", "a..b", "a ~ 3", ".".join("a" * 40)])
def test_what_is_not_a_condition_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuery):
        BodyCondition.parse(text)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("asked", "matches"),
    [
        ({}, True),
        ({"tag": "paid || new"}, True),
        ({"tag": "refunded"}, False),
        ({"key": "o-2"}, True),
        ({"key": "o-"}, False),
        ({"sql": "amount > 5 AND TAGS = 'paid'"}, True),
        ({"sql": "amount > 50"}, False),
        ({"text": "aDa"}, True),
        ({"text": "nobody"}, False),
        ({"path": "customer = Ada", "tag": "paid"}, True),
        ({"path": "customer = Ada", "tag": "new"}, False),
    ],
)
async def test_a_message_is_shown_if_all_conditions_hold(asked: dict[str, Any], matches: bool) -> None:
    wanted = await filter_of(Query(asked), serves_sql=True)
    one = message(b'{"customer": "Ada"}', TAGS="paid", KEYS="o-1 o-2", amount="7")
    assert wanted.matches(one, Bodies(())) is matches


@pytest.mark.trio
async def test_the_text_of_a_value_is_searched_and_sql_may_be_off() -> None:
    wanted = await filter_of(Query({"text": "t\u00e9l\u00e9"}), serves_sql=False)
    assert wanted.matches(message(msgspec.msgpack.encode({"name": "T\u00c9L\u00c9"})), Bodies(()))
    with pytest.raises(InvalidQuery, match=r"filters\.sql"):
        await filter_of(Query({"sql": "a = 1"}), serves_sql=False)
