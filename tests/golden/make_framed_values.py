"""Write `framed_values.json` with Confluent's serializers, for tests/unit/client/test_registered_values.py.

python -m venv build/peer && build/peer/bin/pip install 'confluent-kafka[avro,protobuf,json]==2.16.1'
PYTHONPATH=tests build/peer/bin/python tests/golden/make_framed_values.py
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from support.protobuf_shop import Line, Money, Order, Refund
from support.schema_registry import schema_registry

AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "customer", "type": ["null", "string"], "default": None},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "article", "type": "string"}, {"name": "count", "type": "int"}]}}},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}  # fmt: skip
JSON = {"title": "Order", "type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
PLACED = datetime(2026, 1, 2, 3, 4, 5, 6000, UTC)
VALUES = [
    {"number": 7, "customer": "Ada", "lines": [{"article": "tea", "count": 3}] * 2, "placed": PLACED},
    {"number": -(1 << 40), "customer": None, "lines": [], "placed": PLACED},
]
MESSAGES = (
    Order(
        number=7,
        customer="Ada",
        total=Money(currency="EUR", cents=1250),
        lines=[Order.Line(article="tea", count=2)],
        photo=b"\0\1",
    ),
    Line(article="tea", count=2),
    Refund(order=7),
)


def main() -> None:
    """Serialize all values, each kind with a registry of its own."""
    found: dict[str, Any] = {"made_by": f"confluent-kafka {confluent_kafka.__version__} for Python"}
    context = SerializationContext("orders", MessageField.VALUE)
    with schema_registry() as fake:
        serialize = AvroSerializer(SchemaRegistryClient({"url": fake.url}), json.dumps(AVRO))
        found["avro"] = {"schema": AVRO, "bodies": [serialize(value, context).hex() for value in VALUES]}
    with schema_registry() as fake:
        serialize = JSONSerializer(json.dumps(JSON), SchemaRegistryClient({"url": fake.url}))
        found["json"] = {"schema": JSON, "bodies": [serialize({"number": 7}, context).hex()]}
    found["protobuf"] = {}
    for message in MESSAGES:
        with schema_registry() as fake:
            client = SchemaRegistryClient({"url": fake.url})
            serialize = ProtobufSerializer(type(message), client, {"use.deprecated.format": False})
            found["protobuf"][message.DESCRIPTOR.name] = serialize(message, context).hex()
    text = json.dumps(found, indent=1) + "\n"
    (Path(__file__).parent / "framed_values.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
