"""Messages with values: serializers of producers and deserializers of consumers, with every API."""

from __future__ import annotations

import json
import logging
import pickle
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from reput_client import (
    Avro,
    GiveBack,
    InvalidMessage,
    Json,
    Message,
    NotDeserialized,
    OnFailure,
    PartlySent,
    ReceivedMessage,
    RegistryUnavailable,
    RetryHere,
    SchemaNotFound,
    SchemaRegistry,
    StopRunning,
    TransactionState,
)
from reput_protocol.codes import MessageSysFlag
from reput_protocol.names import dlq_topic
from reput_protocol.properties import RETRY_REASON
from reput_protocol.record.record import Record, encode_record
from support.faces import Face, scenario
from support.schema_registry import schema_registry

POISON = b"{not json"


class Struct(msgspec.Struct):
    number: int


@dataclass
class Data:
    number: int


class Model(BaseModel):
    number: int


class Calls:
    """Parses JSON, and counts how often."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, body: bytes) -> Any:
        self.count += 1
        return json.loads(body)


async def fill(face: Face, real_address: str, topic: str, *bodies: bytes) -> None:
    async with face.Admin(real_address) as admin:
        await admin.create_topic(topic, queues=1)
    async with face.Producer(real_address) as producer:
        for body in bodies:
            await producer.send(Message(topic, body))


async def dead_letters(face: Face, real_address: str, group: str) -> list[Any]:
    async with face.PullConsumer(real_address, group="reads") as consumer:
        return list((await consumer.pull(dlq_topic(group), 0, 0)).messages)


# -- sending -----------------------------------------------------------------------------------------------------------


@scenario
async def test_every_way_to_send_takes_values(face: Face, real_address: str, topic: str) -> None:
    await fill(face, real_address, topic)

    async def check(message: Any) -> TransactionState:
        return TransactionState.COMMIT

    async def local(message: Message) -> TransactionState:
        assert message.value == {"n": 5}
        assert message.body == b'{"n":5}'
        return TransactionState.COMMIT

    serializer = Json().serialize
    async with face.Producer(real_address, serializer=serializer) as producer:
        message = Message(topic, value={"n": 0}, tag="a", keys=["k"], properties={"p": "q"})
        await producer.send(message)
        await producer.send(message)  # it was not changed
        await producer.send_batch([Message(topic, value={"n": 1}), Message(topic, b"bytes stay")])
        await face.post_all(producer, [Message(topic, value={"n": 2})])
        await producer.send_oneway(Message(topic, value=None))
        await producer.send(Message(topic, value={"n": 4}), ordering_key="k")
        await producer.send_many(topic, values=({"m": n} for n in range(3)), batch=2)
    async with face.TransactionProducer(real_address, group=topic, check=check, serializer=serializer) as transactions:
        await transactions.send_in_transaction(Message(topic, value={"n": 5}), local)
    expected = [
        b'{"n":0}',
        b'{"n":0}',
        b'{"n":1}',
        b"bytes stay",
        b'{"n":2}',
        b"null",
        b'{"n":4}',
        b'{"m":0}',
        b'{"m":1}',
        b'{"m":2}',
        b'{"n":5}',
    ]
    async with face.Consumer(real_address, group=topic, topic=topic) as consumer:
        found = [await consumer.receive(20.0) for _ in expected]
    assert [each.body for each in found] == expected
    assert [each.value for each in found] == expected, "without a deserializer the value is the body"
    assert (found[0].tag, found[0].keys) == ("a", ("k",))


@scenario
async def test_what_is_no_message_is_named(face: Face, real_address: str) -> None:
    async with face.Producer(real_address) as producer:
        for send in (producer.send, producer.post, producer.send_oneway):
            with pytest.raises(InvalidMessage, match=r"a Message, not str; pass Message\(topic, body\)"):
                await send("orders")


@scenario
async def test_what_cannot_be_serialized_is_not_sent(face: Face, real_address: str, topic: str) -> None:
    class Odd(Exception):
        pass

    def serializer(value: Any) -> Any:
        if value == "odd":
            raise Odd("no bytes for this")
        return value

    await fill(face, real_address, topic)
    async with face.Producer(real_address, serializer=serializer) as producer:
        for send in (producer.send, producer.post, producer.send_oneway, lambda m: producer.send_batch([m])):
            with pytest.raises(InvalidMessage, match="Odd: no bytes for this") as caught:
                await send(Message(topic, value="odd"))
            assert isinstance(caught.value.__cause__, Odd)
            with pytest.raises(InvalidMessage, match="body must be bytes"):
                await send(Message(topic, value=7))
        with pytest.raises(PartlySent) as partly:
            await producer.send_many(topic, values=[b"0", b"1", "odd", b"3"], batch=3)
        assert [receipt is not None for receipt in partly.value.receipts] == [True, True, False]
        assert isinstance(partly.value.errors[2].__cause__, Odd)
        for neither in ({}, {"bodies": [b"x"], "values": [b"x"]}):
            with pytest.raises(ValueError, match="either bodies or values="):
                await producer.send_many(topic, **neither)
        await producer.send(Message(topic, value=b"the producer is usable"))
    async with face.Producer(real_address) as producer:
        with pytest.raises(InvalidMessage, match="no serializer="):
            await producer.send(Message(topic, value=7))
    async with face.Consumer(real_address, group=topic, topic=topic) as consumer:
        found = [(await consumer.receive(20.0)).body for _ in range(3)]
    assert found == [b"0", b"1", b"the producer is usable"]


def test_a_message_has_a_body_or_a_value() -> None:
    for arguments in ({}, {"body": None}, {"body": b"x", "value": 1}, {"body": "x", "value": 1}):
        with pytest.raises(InvalidMessage):
            Message("t", **arguments)
    assert Message("t", b"").body == b""
    assert Message("t", value=None).value is None
    for message in (Message("t", value=7), Message("t", b"x", tag="a")):
        for again in (copy(message), deepcopy(message), pickle.loads(pickle.dumps(message))):
            assert again == message
            assert again.body is message.body or again.body == b"x"


# -- receiving ---------------------------------------------------------------------------------------------------------


@scenario
async def test_a_value_is_deserialized_once_and_when_it_is_accessed(face: Face, real_address: str, topic: str) -> None:
    await fill(face, real_address, topic, b'{"n":1}', POISON, b'{"n":2}')
    calls = Calls()
    async with face.Consumer(real_address, group=topic, topic=topic, deserializer=calls) as consumer:
        first = await consumer.receive(20.0)
        assert calls.count == 0
        assert first.value == {"n": 1}
        assert first.value is first.value
        assert calls.count == 1
        poison = await consumer.receive(20.0)
        with pytest.raises(NotDeserialized, match="JSONDecodeError") as caught:
            _ = poison.value
        error = caught.value
        assert (error.topic, error.queue_id, error.queue_offset, error.retryable) == (topic, 0, 1, False)
        assert isinstance(error.__cause__, json.JSONDecodeError)
        assert poison.body == POISON
        assert pickle.loads(pickle.dumps(error)).queue_offset == 1
        assert (await consumer.receive(20.0)).value == {"n": 2}, "the consumer continues"
    async with face.PullConsumer(real_address, group=topic, deserializer=json.loads) as puller:
        for read_ahead in (True, False):
            pulled = await puller.pull(topic, 0, 0, max_messages=1, read_ahead=read_ahead)
            assert pulled.messages[0].value == {"n": 1}
        message = pulled.messages[0]
        for again in (copy(message), pickle.loads(pickle.dumps(message))):
            assert again.value == {"n": 1}, "a copy deserializes, too"
    async with face.PopConsumer(real_address, group=f"{topic}-pop", topic=topic, deserializer=json.loads) as popper:
        popped = await popper.receive(wait_s=15.0)
        assert popped[0].value == {"n": 1}
        with pytest.raises(NotDeserialized):
            _ = popped[1].value


@scenario
async def test_a_redelivered_message_has_a_value(face: Face, real_address: str, topic: str) -> None:
    await fill(face, real_address, topic, b'{"n":1}')
    seen: list[Any] = []

    async def handle(message: Any) -> None:
        seen.append((message.value, message.reconsume_times))
        if len(seen) == 1:
            raise LookupError("not yet")
        consumer.stop()

    async with face.Consumer(
        real_address, group=topic, topic=topic, deserializer=json.loads, on_failure=GiveBack(delay_level=1)
    ) as consumer:
        await consumer.run(handle)
    assert seen == [({"n": 1}, 0), ({"n": 1}, 1)]


# -- what cannot be deserialized ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["one by one", "concurrently", "orderly", "pop", "orderly pop"])
@scenario
async def test_it_is_a_dead_letter_at_the_first_attempt(face: Face, real_address: str, topic: str, how: str) -> None:
    """It can never be handled, so the 16 redeliveries, over hours, would be in vain."""
    await fill(face, real_address, topic, b"1", POISON, b"2")
    attempts: list[bytes] = []
    values: list[int] = []

    async def handle(message: Any) -> None:
        attempts.append(message.body)
        try:
            values.append(message.value)
        except NotDeserialized as error:
            if how == "concurrently":
                raise ExceptionGroup("as of a task group", [error]) from None
            raise
        if len(values) == 2:
            consumer.stop()

    kind = face.PopConsumer if "pop" in how else face.Consumer
    async with kind(
        real_address, group=topic, topic=topic, deserializer=json.loads, orderly="orderly" in how
    ) as consumer:
        await consumer.run(handle, concurrency=2 if how == "concurrently" else 1)
    assert sorted(values) == [1, 2]
    assert attempts.count(POISON) == 1
    (letter,) = await dead_letters(face, real_address, topic)
    assert letter.body == POISON
    expected = "ExceptionGroup: as of a" if how == "concurrently" else "NotDeserialized: message "
    assert letter.get_property(RETRY_REASON).startswith(expected)


@pytest.mark.parametrize("how", ["one by one", "orderly", "pop"])
@scenario
async def test_what_cannot_be_decompressed_is_a_dead_letter_at_the_first_attempt(
    face: Face, real_address: str, topic: str, how: str
) -> None:
    await fill(face, real_address, topic, b"1")
    lz4 = Record(topic, b"packed by LZ4", sys_flag=MessageSysFlag.COMPRESSED | 1 << 8)
    async with face.Producer(real_address) as producer:
        await producer.forward(ReceivedMessage.of_record(bytes(encode_record(lz4))), topic)
        await producer.send(Message(topic, b"2"))
    attempts: list[int] = []
    bodies: list[bytes] = []

    async def handle(message: Any) -> None:
        attempts.append(message.queue_offset)
        bodies.append(message.body)
        if len(bodies) == 2:
            consumer.stop()

    kind = face.PopConsumer if how == "pop" else face.Consumer
    async with kind(real_address, group=topic, topic=topic, orderly=how == "orderly") as consumer:
        await consumer.run(handle)
    assert bodies == [b"1", b"2"]
    assert attempts == [0, 1, 2]
    (letter,) = await dead_letters(face, real_address, topic)
    assert letter.raw_body == b"packed by LZ4"
    assert letter.get_property(RETRY_REASON).startswith(f"UnsupportedCompression: message {topic}/0 at offset 1 ")


@scenario
async def test_who_broadcasts_logs_and_skips_it(
    face: Face,
    real_address: str,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REPUT_OFFSETS_DIR", str(tmp_path))
    await fill(face, real_address, topic, POISON, b"2")

    async def handle(message: Any) -> None:
        assert message.value == 2
        consumer.stop()

    async with face.Consumer(
        real_address, group=topic, topic=topic, deserializer=json.loads, mode="broadcasting"
    ) as consumer:
        await consumer.run(handle)
    assert [r for r in caplog.records if r.levelno == logging.ERROR and "skipped" in r.message]


@pytest.mark.parametrize("policy", [RetryHere(0.01), StopRunning()], ids=lambda policy: type(policy).__name__)
@scenario
async def test_other_policies_end_run_and_keep_it(face: Face, real_address: str, topic: str, policy: OnFailure) -> None:
    await fill(face, real_address, topic, POISON, b"2")
    attempts = 0

    async def handle(message: Any) -> None:
        nonlocal attempts
        attempts += 1
        _ = message.value

    async with face.Consumer(
        real_address, group=topic, topic=topic, deserializer=json.loads, on_failure=policy
    ) as consumer:
        with pytest.raises(NotDeserialized):
            await consumer.run(handle)
    assert attempts == 1
    async with face.Consumer(real_address, group=topic, topic=topic) as consumer:
        assert (await consumer.receive(20.0)).body == POISON, "it is redelivered"


@scenario
async def test_another_message_that_cannot_be_deserialized_is_an_ordinary_failure(
    face: Face, real_address: str, topic: str
) -> None:
    """The handler may read other messages; the one in its hands may be handled next time."""
    await fill(face, real_address, topic, b"1")
    seen: list[Any] = []

    async def handle(message: Any) -> None:
        seen.append(message.value)
        if len(seen) == 1:
            raise NotDeserialized("elsewhere", 0, message.queue_offset, "ValueError: no")
        consumer.stop()

    async with face.Consumer(
        real_address, group=topic, topic=topic, deserializer=json.loads, on_failure=GiveBack(delay_level=1)
    ) as consumer:
        await consumer.run(handle)
    assert seen == [1, 1]


# -- with a schema registry --------------------------------------------------------------------------------------------


@scenario
async def test_a_registry_that_is_away_makes_no_dead_letter(face: Face, real_address: str, topic: str) -> None:
    """The message is redelivered, and read once the registry is back; an unknown schema is the message's own fault."""
    unknown = b"\0\0\0\0\x63\2"
    with schema_registry() as fake:
        fake.failure = (503, b"")
        registry = SchemaRegistry(fake.url)
        orders = Avro('"int"', registry=registry, subject="orders-value", register=True)
        await fill(face, real_address, topic)
        async with face.Producer(real_address, serializer=orders.serialize) as producer:
            for send in (producer.send, producer.post, lambda m: producer.send_batch([m])):
                with pytest.raises(RegistryUnavailable):
                    await send(Message(topic, value=7))
            with pytest.raises(RegistryUnavailable):
                await producer.send_many(topic, values=[7])
            fake.failure = None
            await producer.send(Message(topic, value=7))
            await producer.send(Message(topic, unknown))
        missing = Avro('"int"', registry=registry, subject="others-value")
        async with face.Producer(real_address, serializer=missing.serialize) as producer:
            with pytest.raises(SchemaNotFound):
                await producer.send(Message(topic, value=7))
        fake.failure = (503, b"")
        seen: list[Any] = []

        async def handle(message: Any) -> None:
            if message.body == unknown:
                fake.failure = None
            try:
                seen.append(message.value)
            except RegistryUnavailable:
                seen.append("away")
                raise
            consumer.stop()

        reads = Avro(registry=SchemaRegistry(fake.url))
        async with face.Consumer(
            real_address, group=topic, topic=topic, deserializer=reads.deserialize, on_failure=GiveBack(delay_level=1)
        ) as consumer:
            await consumer.run(handle)
    assert seen == ["away", 7]
    (letter,) = await dead_letters(face, real_address, topic)
    assert letter.body == unknown
    assert "SchemaNotFound" in letter.get_property(RETRY_REASON)


# -- Json --------------------------------------------------------------------------------------------------------------


@given(st.integers(-(2**53), 2**53))
def test_json_returns_what_it_was_given(number: int) -> None:
    for kind in (Struct, Data, Model):
        pair: Json[Any] = Json(kind)
        value = kind(number=number)
        for each in (pair, pickle.loads(pickle.dumps(pair))):
            assert each.deserialize(each.serialize(value)) == value
    assert Json(list[Data]).deserialize(b'[{"number":1}]') == [Data(1)]
    assert Json().deserialize(Json().serialize({"a": [number, None]})) == {"a": [number, None]}


@pytest.mark.parametrize("kind", [Struct, Data, Model])
@pytest.mark.parametrize("body", [b"", b"{", b"{}", b'{"number":"x"}', b"\xff"])
def test_json_checks_bodies(kind: type[Any], body: bytes) -> None:
    with pytest.raises(Exception, match=r"\w"):
        Json(kind).deserialize(body)
