"""Typical mistakes with the client; `mypy --strict` reads this file, nothing runs it.

Each marked line is an error of that kind, and no other line is.
"""

# ruff: noqa: B018, F401, I001

from __future__ import annotations

from datetime import timedelta

from msgspec import Struct

import reput_client
from reput_client import (
    Admin,
    Consumer,
    Decision,
    Failure,
    Json,
    LocalFileOffsetStore,
    Message,
    OnFailure,
    Producer,
    PullConsumer,
    ReceivedMessage,
    RemoteOffsetStore,
    ReputError,
    SendReceipt,
    TransactionProducer,
    TransactionState,
    blocking,
)
from reput_client import Prodcuer  # type: ignore[attr-defined]
from reput_client.blocking import Cosnumer  # type: ignore[attr-defined]

ADDRESS = "127.0.0.1:10911"


class Order(Struct):
    number: int


def parse(body: bytes) -> Order:
    return Order(len(body))


def parse_text(text: str) -> Order:
    return Order(len(text))


def text_of(order: Order) -> str:
    return str(order.number)


async def of_orders(message: ReceivedMessage[Order]) -> None: ...


async def of_numbers(message: ReceivedMessage[int]) -> None: ...


async def values(producer: Producer) -> None:
    Producer(ADDRESS, serializer=text_of)  # type: ignore[arg-type]
    Producer(ADDRESS, serializer=Json(Order))  # type: ignore[arg-type]
    Producer(ADDRESS, value_serializer=Json(Order).serialize)  # type: ignore[call-arg]
    Consumer(ADDRESS, group="g", topic="t", deserializer=parse_text)  # type: ignore[arg-type]
    Consumer(ADDRESS, group="g", topic="t", deserializer=Json(Order))  # type: ignore[arg-type]
    blocking.Consumer(ADDRESS, group="g", topic="t", deserializer=parse_text)  # type: ignore[arg-type]
    Message("orders", Order(1))  # type: ignore[arg-type]
    Json(Order).serialize(7)  # type: ignore[arg-type]
    await producer.send_many("orders", [Order(1)])  # type: ignore[list-item]
    consumer = Consumer(ADDRESS, group="g", topic="t", deserializer=parse)
    await consumer.run(of_orders)
    await consumer.run(of_numbers)  # type: ignore[arg-type]
    async for message in consumer:
        message.value.nubmer  # type: ignore[attr-defined]
        message.value = Order(2)  # type: ignore[misc]
    numbers = blocking.PopConsumer(ADDRESS, group="g", topic="t", deserializer=int)
    numbers.receive()[0].value.number  # type: ignore[attr-defined]
    await Consumer[int](ADDRESS, group="g", topic="t", deserializer=parse).receive()  # type: ignore[arg-type]


async def misspelt_words(producer: Producer, consumer: PullConsumer, admin: Admin, level: str) -> None:
    message = Message("orders", b"x")
    Producer(ADDRESS, ack="flushd")  # type: ignore[arg-type]
    await producer.send(message, ack="flushd")  # type: ignore[arg-type]
    await producer.send(message, ack="FLUSHED")  # type: ignore[arg-type]
    await producer.send(message, ack=level)  # type: ignore[arg-type]
    await producer.send_batch([message], ack="sync")  # type: ignore[arg-type]
    await producer.send_many("orders", [b"x"], ack="replicate")  # type: ignore[arg-type]
    await producer.post(message, ack="page-cache")  # type: ignore[arg-type]
    Consumer(ADDRESS, group="g", topic="t", start="earlest")  # type: ignore[arg-type]
    Consumer(ADDRESS, group="g", topic="t", mode="broadcast")  # type: ignore[arg-type]
    await consumer.offset_by_time("orders", 0, 0, "upper")  # type: ignore[arg-type]
    await admin.set_intake("read-only")  # type: ignore[arg-type]
    Producer(ADDRESS, grup="shop")  # type: ignore[call-arg]
    await producer.send(message, akc="flushed")  # type: ignore[call-arg]
    Message("orders", b"x", tags="paid")  # type: ignore[call-arg]
    reput_client.Producre(ADDRESS)  # type: ignore[attr-defined]


async def wrong_types(producer: Producer, consumer: Consumer) -> None:
    Message("orders", "text")  # type: ignore[arg-type]
    Message("orders", b"x", keys=[1])  # type: ignore[list-item]
    Message("orders", b"x", properties={"n": 1})  # type: ignore[dict-item]
    Message("orders", b"x", delay_s=timedelta(seconds=1))  # type: ignore[arg-type]
    Message("orders", b"x", deliver_at=1_700_000_000)  # type: ignore[arg-type]
    Producer(ADDRESS, linger_s="5ms")  # type: ignore[arg-type]
    Producer(ADDRESS, tls="ca.pem")  # type: ignore[arg-type]
    Producer(ADDRESS, credentials=("alice", "secret"))  # type: ignore[arg-type]
    PullConsumer(ADDRESS)  # type: ignore[call-arg]
    Consumer(ADDRESS, group="g", topic="t", on_failure="retry")  # type: ignore[arg-type]
    await producer.send(b"x")  # type: ignore[arg-type]
    await producer.send(Message("orders", b"x"), "flushed")  # type: ignore[call-arg]
    await producer.send_batch([b"x"])  # type: ignore[list-item]
    await producer.send_batch(Message("orders", b"x"))  # type: ignore[arg-type]
    await consumer.receive("1")  # type: ignore[arg-type]
    await consumer.run(print)  # type: ignore[arg-type]


async def results(producer: Producer, consumer: PullConsumer, message: ReceivedMessage) -> None:
    producer.send(Message("orders", b"x"))  # type: ignore[unused-coroutine]
    receipt: SendReceipt = producer.send(Message("orders", b"x"))  # type: ignore[assignment]
    receipt.offset  # type: ignore[attr-defined]
    (await consumer.committed("orders", 0)) + 1  # type: ignore[operator]
    message.tag.upper()  # type: ignore[union-attr]
    message.payload  # type: ignore[attr-defined]
    message.body.upper().encode()  # type: ignore[attr-defined]
    message.body = b"x"  # type: ignore[misc]
    async for pulled in consumer:  # type: ignore[attr-defined]
        del pulled


def internals(producer: Producer, consumer: Consumer, error: ReputError) -> None:
    producer.after_fork()  # type: ignore[attr-defined]
    producer.runtime  # type: ignore[attr-defined]
    consumer.handlers  # type: ignore[attr-defined]
    error.retriable  # type: ignore[attr-defined]


class Forgives(OnFailure):
    def decide(self, failure: Failure) -> Decision:  # type: ignore[override]
        raise failure.error


async def checks_the_database(message: ReceivedMessage) -> TransactionState:
    return TransactionState.COMMIT


def says_yes(message: ReceivedMessage) -> bool:
    return True


def both_apis(pull_consumer: blocking.PullConsumer) -> None:
    TransactionProducer(ADDRESS, group="shop", check=says_yes)  # type: ignore[arg-type]
    blocking.TransactionProducer(ADDRESS, group="shop", check=checks_the_database)  # type: ignore[arg-type]
    local = LocalFileOffsetStore("offsets.json")
    blocking.Consumer(ADDRESS, group="g", topic="t", offset_store=local)  # type: ignore[arg-type]
    RemoteOffsetStore(pull_consumer)  # type: ignore[arg-type]
    with Producer(ADDRESS) as producer:  # type: ignore[attr-defined]
        del producer


def in_the_synchronous_api(producer: blocking.Producer, consumer: blocking.Consumer, admin: blocking.Admin) -> None:
    blocking.Producer(ADDRESS, grup="shop")  # type: ignore[call-arg]
    blocking.Producer(ADDRESS, linger_s="1")  # type: ignore[arg-type]
    blocking.Producer(ADDRESS, runtime=None)  # type: ignore[call-arg]
    blocking.PullConsumer(ADDRESS)  # type: ignore[call-arg]
    producer.send(Message("orders", b"x"), akc="flushed")  # type: ignore[call-arg]
    producer.send(b"x")  # type: ignore[arg-type]
    producer.send(Message("orders", b"x"), "flushed")  # type: ignore[call-arg]
    producer.send_batch([b"x"])  # type: ignore[list-item]
    producer.send_many("orders", [b"x"], tag=1)  # type: ignore[arg-type]
    producer.post(Message("orders", b"x"), on_done=1)  # type: ignore[arg-type]
    consumer.receive("1")  # type: ignore[arg-type]
    consumer.take().ack()  # type: ignore[union-attr]
    admin.create_topic("orders", queue=4)  # type: ignore[call-arg]
    producer.send(Message("orders", b"x"), ack="flushd")  # type: ignore[arg-type]
    consumer.stopped()  # type: ignore[operator]
