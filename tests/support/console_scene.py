"""A broker's worth of data for the console: topics, groups with lag, dead letters, delayed messages, hostile names."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import trio

from reput_client import Admin, Consumer, Message, Producer
from reput_client.blocking import PullConsumer
from reput_protocol.names import dlq_topic
from support.dead_letters import give_up

STORE = {
    "commit_log_file_size": "16MiB",
    "index_slots": 1000,
    "index_entries": 4000,
    "flush": "async",
    "disk_warning_ratio": 1.0,
    "disk_clean_forcibly_ratio": 1.0,
}

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
        await producer.send_batch([Message("payments", bytes(range(256)), keys=[f"p-{n}"]) for n in range(20)])
        for number in range(3):
            body = f"Dear customer,\nyour order {number} is still in the cart.".encode()
            await producer.send(Message("emails", body, keys=[f"mail-{number}"], delay_s=3600.0 * (number + 1)))
        await admin.create_schedule("nightly", "0 3 * * *", Message("emails", b"the newsletter"))
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
    body = {"order": number, "customer": f"c-{number % 7}", "total": 19.9 + number, "items": [{"sku": "A-1", "n": 2}]}
    tag = ("paid", "new", "refunded")[number % 3]
    return Message("orders", json.dumps(body).encode(), tag=tag, keys=[f"o-{number}"], properties={"region": "eu"})


_STACK = """java.lang.IllegalStateException: payment provider answered 502 Bad Gateway for customer c-3
    at com.example.billing.PaymentClient.charge(PaymentClient.java:211)
    at com.example.billing.OrderListener.consumeMessage(OrderListener.java:57)"""


@contextmanager
def busy(address: str) -> Iterator[None]:
    """Add what a broker in use has to the data of `fill`: long names and reasons, more groups, members online."""
    trio.run(_fill_more, address)
    give_up(
        address,
        "warehouse-stock-reservations",
        "inventory-reservations-europe-west",
        wanted=lambda message: message.keys[0] in {"r-3", "r-9", "r-12"},
        reason=_STACK,
    )
    is_over = threading.Event()
    reading = threading.Thread(target=lambda: trio.run(_consume_until, address, is_over))
    reading.start()
    try:
        yield
    finally:
        is_over.set()
        reading.join()


async def _fill_more(address: str) -> None:
    topic = "inventory-reservations-europe-west"
    async with Admin(address) as admin, Producer(address, group="warehouse") as producer:
        await admin.create_topic(topic, queues=4)
        for number in range(12):
            await admin.create_topic(f"events-{number:02}", queues=2)
        for number in range(40):
            value = {"sku": f"A-{number}", "reserved": number % 5, "place": {"hall": 3, "shelf": "B-17"}}
            await producer.send(
                Message(topic, msgspec.msgpack.encode(value), tag="reserve", keys=[f"r-{number}", f"A-{number}"])
            )
    with PullConsumer(address, group="warehouse-stock-reservations") as consumer:
        for queue_id in range(4):
            consumer.commit(topic, queue_id, 9)
    with PullConsumer(address, group="audit") as consumer:
        for queue in consumer.queues(topic):
            consumer.commit(topic, queue.queue_id, 10 - (queue.queue_id == 2))


async def _consume_until(address: str, is_over: threading.Event) -> None:
    async with trio.open_nursery() as nursery:
        for group, topic in (("clickstream", "clicks"), ("clickstream", "clicks"), ("mailer", "emails")):
            nursery.start_soon(_consume, address, group, topic)
        while not is_over.is_set():
            await trio.sleep(0.1)
        nursery.cancel_scope.cancel()


async def _consume(address: str, group: str, topic: str) -> None:
    async with Consumer(address, group=group, topic=topic) as consumer:
        async for _ in consumer:
            pass


def _give_up(address: str) -> None:
    keys = {(f"o-{number}",) for number in range(3)}
    give_up(
        address, "billing", "orders", wanted=lambda message: message.keys in keys, reason="card declined <b>today</b>"
    )
