"""A broker's worth of data for the console: topics, groups with lag, dead letters, delayed messages, hostile names."""

from __future__ import annotations

import json

import trio

from reput_client import Admin, Consumer, Message, Producer
from reput_protocol.names import dlq_topic
from support.dead_letters import give_up

HOSTILE_BODY = (
    b"<script>document.title='taken'</script>\x1b[31mred \xe2\x80\xae\xe2\x80\x8b<img src=x onerror=alert(1)>"
)
HOSTILE_KEY = "<img/src=x/onerror=document.title='taken'>"
HOSTILE_PROPERTIES = {"<b>bold</b>": "\"><script>document.title='taken'</script>"}
ORDERS = 60


async def fill(address: str) -> None:
    """Put the data into the broker at `address`."""
    async with Admin(address) as admin, Producer(address, group="shop") as producer:
        for topic, queues in (("orders", 8), ("payments", 4), ("emails", 2)):
            await admin.create_topic(topic, queues=queues)
        await admin.create_topic(dlq_topic("billing"), queues=1)
        for number in range(ORDERS):
            await producer.send(_order(number))
        await producer.send(
            Message("orders", HOSTILE_BODY, tag="new", keys=[HOSTILE_KEY], properties=HOSTILE_PROPERTIES)
        )
        await producer.send_batch(
            [Message("payments", bytes(range(256)), keys=[f"p-{n}"]) for n in range(20)]
        )
        for number in range(3):
            body = f"Dear customer,\nyour order {number} is still in the cart.".encode()
            await producer.send(
                Message("emails", body, keys=[f"mail-{number}"], delay_s=3600.0 * (number + 1))
            )
        await trio.to_thread.run_sync(_give_up, address)
        await producer.send(Message(dlq_topic("billing"), b'{"order": 7}', keys=["o-7"]))  # has no origin
    async with Consumer(address, group="billing", topic="orders", start="earliest") as consumer:
        count = 0
        with trio.fail_after(20):
            async for _ in consumer:
                count += 1
                if count == ORDERS // 2:
                    break


def _order(number: int) -> Message:
    body = {
        "order": number,
        "customer": f"c-{number % 7}",
        "total": 19.9 + number,
        "items": [{"sku": "A-1", "n": 2}],
    }
    tag = ("paid", "new", "refunded")[number % 3]
    return Message(
        "orders", json.dumps(body).encode(), tag=tag, keys=[f"o-{number}"], properties={"region": "eu"}
    )


def _give_up(address: str) -> None:
    keys = {(f"o-{number}",) for number in range(3)}
    give_up(
        address,
        "billing",
        "orders",
        wanted=lambda message: message.keys in keys,
        reason="card declined <b>today</b>",
    )
