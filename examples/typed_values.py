"""Orders as Avro: sent and billed with their schema, those of another form set aside, and all of them as a table.

    pip install './client[avro,arrow]' duckdb
    python examples/typed_values.py

It needs a broker at 127.0.0.1:10911, or at the address in the variable BROKER. With the URL of a schema registry in the
variable REGISTRY, the schema is registered as `typed-orders-value`, and each body has its id, as with Kafka's clients.
"""

from __future__ import annotations

import os

import anyio
import duckdb

from reput_client import Avro, Consumer, Message, Producer, ReceivedMessage, SchemaRegistry
from reput_client.arrow import read_arrow

BROKER = os.environ.get("BROKER", "127.0.0.1:10911")
TOPIC = "typed-orders"
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "cents", "type": "int"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
ORDERS = [
    {"number": 1, "customer": "Ada", "cents": 1250},
    {"number": 2, "customer": "Alan", "cents": 300, "note": "by bicycle"},
    {"number": 3, "customer": "Ada", "cents": 750},
]


def serializer() -> Avro:
    """Return the serializer of both sides, with a registry if there is one."""
    url = os.environ.get("REGISTRY")
    if url is None:
        return Avro(SCHEMA)
    return Avro(SCHEMA, registry=SchemaRegistry(url), subject=f"{TOPIC}-value", register=True)


async def main() -> None:
    """Send, bill and print."""
    orders = serializer()
    await orders.prepare()
    async with Producer(BROKER, group="shop", serializer=orders.serialize) as producer:
        for order in ORDERS:
            await producer.send(Message(TOPIC, value=order))
        await producer.send(Message(TOPIC, b"\xff is not an order"))

    billed: set[int] = set()
    async with Consumer(
        BROKER, group="typed-billing", topic=TOPIC, deserializer=orders.deserialize, start="earliest"
    ) as consumer:

        async def bill(message: ReceivedMessage) -> None:
            await orders.prepare(message.body)  # asks the registry, without blocking the event loop
            order = message.value  # raises for the message that is no order, which becomes a dead letter
            print(f"order {order['number']}: {order['cents'] / 100:.2f} EUR from {order['customer']}")
            billed.add(order["number"])
            if len(billed) == len(ORDERS):
                consumer.stop()

        await consumer.run(bill)

    rows = read_arrow(BROKER, TOPIC, decode=orders, on_bad_value="null").read_all()
    tables = duckdb.connect()
    tables.register("orders", rows)
    print("customer, orders, EUR:")
    for row in tables.execute(
        "SELECT value.customer, count(*), sum(value.cents) / 100 FROM orders "
        "WHERE error IS NULL GROUP BY ALL ORDER BY 1"
    ).fetchall():
        print(*row, sep=", ")
    print("not orders:")
    for row in tables.execute("SELECT queueId, queueOffset, error FROM orders WHERE error IS NOT NULL").fetchall():
        print(*row, sep=", ")


if __name__ == "__main__":
    anyio.run(main)
