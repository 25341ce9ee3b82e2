"""Uses of the client's public names that must type-check; `mypy --strict` reads this file, nothing runs it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_type

from reput_client import (
    Ack,
    AckLevel,
    Admin,
    Avro,
    ColumnsResult,
    Consumer,
    Json,
    LocalFileOffsetStore,
    Message,
    MessageQueue,
    PopConsumer,
    PoppedMessage,
    Posted,
    Producer,
    PullConsumer,
    PullResult,
    PullStatus,
    ReadOffsetType,
    ReceivedMessage,
    RemoteOffsetStore,
    SchemaRegistry,
    SendReceipt,
    TopicConfig,
    TopicRoute,
    TransactionProducer,
    TransactionReceipt,
    TransactionState,
    blocking,
)

ADDRESS = "127.0.0.1:10911"
ORDERS = Json(dict[str, int])
REGISTERED = Json(
    dict[str, int], registry=SchemaRegistry("http://127.0.0.1:8081"), subject="orders-value", register=True
)


async def produce() -> None:
    async with Producer(ADDRESS, group="shop") as producer:
        assert_type(producer, Producer)
        receipt = await producer.send(
            Message("orders", b"...", tag="paid", keys=["o-42"], properties={"k": "v"}), ack="flushed"
        )
        assert_type(receipt, SendReceipt)
        assert_type(receipt.message_id, str)
        assert_type(receipt.offset_message_id, str)
        assert_type(receipt.queue_offset, int)
        assert_type(receipt.stored_at, datetime | None)
        level: Ack = AckLevel.FLUSHED
        await producer.send(Message("orders", b"x"), ack=level)
        await producer.send(Message("orders", b"x", delay_level=3))
        await producer.send(Message("orders", b"x", delay_s=60.0))
        assert_type(Message("orders", b"x", deliver_at=datetime.now(UTC)).is_delayed, bool)
        receipts = await producer.send_batch([Message("orders", bytearray(b"1")), Message("orders", memoryview(b"2"))])
        assert_type(receipts, list[SendReceipt])
        many = await producer.send_many("orders", [b"1", bytearray(b"2")], tag="paid", keys=[["o-1"], []])
        assert_type(many, Sequence[SendReceipt])
        assert_type(many[0], SendReceipt)
        posted = await producer.post(Message("orders", b"x"), ack="flushed", ordering_key="k", on_done=print)
        assert_type(posted, Posted)
        assert_type(await posted, SendReceipt)
        await producer.flush()
        reply = await producer.request(Message("work", b"x"), timeout_s=3.0)
        assert_type(reply, ReceivedMessage)
        assert_type(reply.wants_reply, bool)
        await producer.reply(reply, b"x", tag="t")


async def registered_values() -> None:
    assert_type(REGISTERED.serialize({"n": 1}), bytes)
    assert_type(REGISTERED.deserialize(b""), dict[str, int])
    await REGISTERED.prepare(b"")
    async with Producer(ADDRESS, serializer=Avro("order.avsc").serialize) as producer:
        await producer.send(Message("orders", value={"n": 1}))


async def values() -> None:
    async with Producer(ADDRESS, serializer=ORDERS.serialize) as producer:
        await producer.send(Message("orders", value={"n": 1}, tag="paid"))
    async with Consumer(ADDRESS, group="g", topic="orders", deserializer=ORDERS.deserialize) as consumer:
        assert_type(consumer, Consumer[dict[str, int]])
        async for message in consumer:
            assert_type(message.value, dict[str, int])
            assert_type(message.body, bytes)
        assert_type(await consumer.receive_many(8, 1.0), list[ReceivedMessage[dict[str, int]]])

        async def handle(message: ReceivedMessage) -> None:
            await message.reject()

        await consumer.run(handle)
    async with PopConsumer(ADDRESS, group="g", topic="orders", deserializer=len) as popping:
        assert_type((await popping.receive())[0].value, int)
    async with PullConsumer(ADDRESS, group="g", deserializer=len) as pulling:
        assert_type((await pulling.pull("orders", 0, 0)).messages[0].value, int)
    with blocking.Consumer(ADDRESS, group="g", topic="orders", deserializer=len) as blocked:
        for each in blocked:
            assert_type(each.value, int)
        assert_type(blocked.take(1.0), ReceivedMessage[int] | None)
    with blocking.PullConsumer(ADDRESS, group="g", deserializer=len) as blocked_pulls:
        assert_type(blocked_pulls.pull("orders", 0, 0).messages[0].value, int)


async def pay(message: Message) -> TransactionState:
    assert_type(message.unique_id, str | None)
    return TransactionState.COMMIT


async def was_paid(message: ReceivedMessage) -> TransactionState:
    return TransactionState.COMMIT if message.message_id else TransactionState.ROLLBACK


async def produce_in_transactions() -> None:
    async with TransactionProducer(ADDRESS, group="shop", check=was_paid, checks_at_once=4) as producer:
        assert_type(producer, TransactionProducer)
        receipt = await producer.send_in_transaction(Message("orders", b"x"), pay, check_after_s=60.0, ordering_key="k")
        assert_type(receipt, TransactionReceipt)
        assert_type(receipt.is_committed, bool)
        assert_type(receipt.half, SendReceipt)
        assert_type(await producer.send(Message("orders", b"x")), SendReceipt)


def produce_in_blocking_transactions() -> None:
    with blocking.TransactionProducer(ADDRESS, group="shop", check=lambda _: TransactionState.UNKNOWN) as producer:
        receipt = producer.send_in_transaction(Message("orders", b"x"), lambda _: TransactionState.COMMIT)
        assert_type(receipt, TransactionReceipt)


async def forward(message: ReceivedMessage, producer: Producer) -> None:
    assert_type(await producer.forward(message, "orders-again", properties={"k": "v"}), SendReceipt)


async def consume() -> None:
    async with Consumer(
        ADDRESS, group="billing", topic="orders", tags="paid || refunded", start="earliest"
    ) as consumer:
        async for message in consumer:
            assert_type(message, ReceivedMessage)
            assert_type(message.body, bytes)
            assert_type(message.born_at, datetime)
            assert_type(message.tag, str | None)
            assert_type(message.keys, tuple[str, ...])
            assert_type(message.properties, dict[str, str])
        assert_type(await consumer.receive(timeout_s=1.0), ReceivedMessage | None)

        async def handle(message: ReceivedMessage) -> int:
            return len(message.body)

        await consumer.run(handle, concurrency=4, handle_signals=False)
        await consumer.commit()
        messages = await consumer.receive_many(100, timeout_s=1.0)
        assert_type(messages, list[ReceivedMessage])
        assert_type(messages[0].ack(), None)
        assert_type(await messages[0].nack(), None)
        await messages[0].nack(10.0, reason="later")
        await messages[0].reject(reason="no such bill")
        queue = consumer.assignment[0]
        consumer.seek(queue, 7)
        await consumer.seek_to_time(datetime.now(UTC), queue)
        await consumer.seek_to_time(1_700_000_000_000)
        await consumer.seek_to_beginning(queue)
        await consumer.seek_to_end()
        consumer.pause(*consumer.assignment)
        consumer.resume(queue)
        assert_type(consumer.paused, list[MessageQueue])
        assert_type(await consumer.lag(), dict[MessageQueue, int])
        await consumer.commit({queue: 7})

    async def assigned(queues: list[MessageQueue]) -> None:
        del queues

    Consumer(
        [ADDRESS],
        on_assigned=assigned,
        on_revoked=lambda queues: print(len(queues)),
        group="g",
        topic="t",
        start=datetime.now(UTC),
        offset_store=LocalFileOffsetStore(Path("offsets")),
    )


async def pull() -> None:
    async with PullConsumer(ADDRESS, group="g") as consumer:
        result = await consumer.pull("orders", queue_id=0, offset=0, max_messages=32, wait_s=15.0)
        assert_type(result, PullResult)
        assert_type(await consumer.pull_columns("orders", queue_id=0, offset=0), ColumnsResult)
        assert_type(result.status, PullStatus)
        assert_type(result.messages[0], ReceivedMessage)
        assert_type(result.messages[:2], list[ReceivedMessage])
        await consumer.commit("orders", 0, result.next_begin_offset)
        assert_type(await consumer.committed("orders", 0), int | None)
        assert_type(await consumer.queues("orders"), list[MessageQueue])
        store = RemoteOffsetStore(consumer)
        assert_type(await store.read(MessageQueue("orders", "broker-a", 0), ReadOffsetType.READ_FROM_STORE), int)


async def pop() -> None:
    async with PopConsumer(ADDRESS, group="billing", topic="orders", tags="paid", orderly=False) as consumer:
        messages = await consumer.receive(8, invisible_s=60.0, wait_s=1.0)
        assert_type(messages, list[PoppedMessage])
        assert_type(messages[0].delivery_attempt, int)
        await messages[0].nack(10.0)
        await messages[1].extend(invisible_s=60.0)
        await consumer.ack(messages[2:])

        async def handle(message: PoppedMessage) -> None:
            await message.reject(reason="no such order")

        await consumer.run(handle, concurrency=8, invisible_s=30.0)
    with blocking.PopConsumer(ADDRESS, group="billing", topics={"orders": "paid"}) as popping:
        assert_type(popping.receive(), list[blocking.PoppedMessage])
        popping.receive()[0].ack()
        popping.run(lambda message: message.nack(), concurrency=2)


async def administer() -> None:
    async with Admin(ADDRESS) as admin:
        await admin.create_topic("orders", queues=4, perm=6)
        assert_type(await admin.list_topics(), list[str])
        assert_type(await admin.topic_config("orders"), TopicConfig)
        assert_type(await admin.route("orders"), TopicRoute)
        assert_type(await admin.broker_status(), dict[str, str])
        assert_type(await admin.view_message("7F00000100002A9F00000000000000DE"), ReceivedMessage)


def block() -> None:
    with blocking.Producer(ADDRESS, group="shop") as producer:
        assert_type(producer, blocking.Producer)
        assert_type(producer.send(blocking.Message("orders", b"x")), SendReceipt)
        assert_type(producer.send_batch([Message("orders", b"x")]), list[SendReceipt])
        assert_type(producer.post(Message("orders", b"x")), blocking.Posted)
        assert_type(producer.post(Message("orders", b"x")).result(), SendReceipt)
        producer.flush()
        assert_type(producer.send_many("orders", (b"x" for _ in range(3)), tag="t"), Sequence[SendReceipt])
    with blocking.Consumer(ADDRESS, group="billing", topic="orders") as consumer:
        for message in consumer:
            assert_type(message, ReceivedMessage)
        consumer.run(print, concurrency=2, handle_signals=False)
        messages = consumer.receive_many(100, 1.0)
        assert_type(messages, list[ReceivedMessage])
        messages[0].nack(10.0)
        messages[0].reject()
        queue = consumer.assignment[0]
        consumer.seek(queue, 7)
        consumer.seek_to_time(datetime.now(UTC), queue)
        consumer.seek_to_end(queue)
        consumer.pause(queue)
        assert_type(consumer.paused, list[MessageQueue])
        assert_type(consumer.lag(), dict[MessageQueue, int])
    with blocking.PullConsumer(ADDRESS, group="g") as pull_consumer:
        assert_type(pull_consumer.pull("orders", queue_id=0, offset=0), PullResult)
        assert_type(pull_consumer.pull_columns("orders", queue_id=0, offset=0), ColumnsResult)
        store = blocking.RemoteOffsetStore(pull_consumer)
        store.persist_all(pull_consumer.queues("orders"))
        assert_type(consumer.receive(1.0), ReceivedMessage | None)
        assert_type(consumer.positions(), dict[MessageQueue, int])
    with blocking.Admin(ADDRESS) as admin:
        assert_type(admin.max_offset("orders", 0), int)
        assert_type(admin.topic_config("orders"), TopicConfig)
    local = blocking.LocalFileOffsetStore("offsets.json")
    consumer.commit({queue: 7})
    blocking.Consumer(ADDRESS, on_revoked=print, group="billing", topic="orders", offset_store=local)
