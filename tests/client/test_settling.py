"""`ack`, `nack` and `reject` of received messages, with every API, at a scripted broker."""

from __future__ import annotations

import copy
import logging
import time
from typing import Any

import pytest

from reput_client import MessageQueue
from reput_client.errors import BrokerError, NotDelivered
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.wire.header import Header
from support.faces import Face, scenario
from support.fakes import Answer, FakeBroker

SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
QUEUE = MessageQueue("t", "fake", 0)


@pytest.fixture
def taken_back(broker: FakeBroker) -> list[dict[str, Any]]:
    """What was given back, by the header fields of each request."""
    found: list[dict[str, Any]] = []

    def take(header: Header, _: memoryview) -> Answer:
        found.append(dict(header.ext))
        return Answer()

    broker.behave(SEND_BACK, take)
    return found


@scenario
async def test_messages_are_acknowledged_in_any_order(face: Face, broker: FakeBroker) -> None:
    await face.fill(broker.address, 3)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        first, second, third = await consumer.receive_many(3, 5.0)
        third.ack()
        first.ack()
        assert consumer.positions()[QUEUE] == 1
        second.ack()
        second.ack()  # no effect
        assert consumer.positions()[QUEUE] == 3


@pytest.mark.parametrize(("delay_s", "level"), [(None, 0), (0, 1), (1, 1), (1.5, 2), (10, 3), (61, 6), (7200, 18)])
@scenario
async def test_the_broker_takes_a_message_that_is_not_acknowledged(
    face: Face, broker: FakeBroker, taken_back: list[dict[str, Any]], delay_s: float | None, level: int
) -> None:
    await face.fill(broker.address, 2)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        first, second = await consumer.receive_many(2, 5.0)
        await first.nack(delay_s, reason="the database is away")
        await first.nack(delay_s)  # no effect: it is not ours any more
        second.ack()
        assert consumer.positions()[QUEUE] == 2, "it counts as handled here"
    (sent,) = taken_back
    assert (sent["delayLevel"], sent["offset"]) == (level, first.physical_offset)
    assert sent["reason"] == "the database is away"


@scenario
async def test_a_rejected_message_is_a_dead_letter(
    face: Face, broker: FakeBroker, taken_back: list[dict[str, Any]]
) -> None:
    await face.fill(broker.address, 1)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        message = await consumer.take(5.0)
        await message.reject(reason="no such bill")
    (sent,) = taken_back
    assert (sent["delayLevel"], sent["reason"]) == (-1, "no such bill")
    assert broker.committed["g", "t", 0] == 1


@scenario
async def test_a_loop_settles_its_message_itself(
    face: Face, broker: FakeBroker, taken_back: list[dict[str, Any]]
) -> None:
    await face.fill(broker.address, 4)
    got: list[bytes] = []
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        async for message in consumer:
            got.append(message.body)
            if message.body == b"1":
                await message.nack(10)
            if message.body == b"2":
                message.ack()
                assert consumer.positions()[QUEUE] == 3
            if message.body == b"3":
                break
    assert got == [b"0", b"1", b"2", b"3"]
    assert [sent["delayLevel"] for sent in taken_back] == [3]
    assert broker.committed["g", "t", 0] == 4


@scenario
async def test_what_the_broker_refuses_stays_with_the_application(face: Face, broker: FakeBroker) -> None:
    await face.fill(broker.address, 1)
    refusal = Answer(ResponseCode.SYSTEM_ERROR, remark="not today")
    for code in (SEND_BACK, RequestCode.SEND_MESSAGE_V2):
        broker.behave(code, refusal)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        message = await consumer.take(5.0)
        with pytest.raises(BrokerError, match="not today"):
            await message.nack()
        assert consumer.positions()[QUEUE] == 0
        message.ack()
        assert consumer.positions()[QUEUE] == 1


@pytest.mark.parametrize("options", [{"orderly": True}, {"mode": "broadcasting"}], ids=str)
@scenario
async def test_what_the_broker_does_not_take_is_redelivered_here(
    face: Face,
    broker: FakeBroker,
    taken_back: list[dict[str, Any]],
    options: dict[str, Any],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REPUT_OFFSETS_DIR", str(tmp_path))
    await face.fill(broker.address, 1)
    async with face.Consumer(broker.address, group="g", topic="t", **options) as consumer:
        message = await consumer.take(5.0)
        since = time.monotonic()
        await message.nack(0.3)
        assert consumer.positions()[QUEUE] == 0
        again = await consumer.take(5.0)
        assert again.body == b"0"
        assert time.monotonic() - since >= 0.3
        again.ack()
        assert consumer.positions()[QUEUE] == 1
    assert taken_back == []


@scenario
async def test_a_broadcasting_member_has_no_dead_letters(
    face: Face,
    broker: FakeBroker,
    taken_back: list[dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REPUT_OFFSETS_DIR", str(tmp_path))
    caplog.set_level(logging.WARNING, "reput_client")
    await face.fill(broker.address, 1)
    async with face.Consumer(broker.address, group="g", topic="t", mode="broadcasting") as consumer:
        await (await consumer.take(5.0)).reject(reason="no such bill")
        assert consumer.positions()[QUEUE] == 1
    assert "rejected: no such bill" in caplog.text
    assert taken_back == []


@scenario
async def test_delays_that_no_broker_knows(face: Face, broker: FakeBroker) -> None:
    await face.fill(broker.address, 1)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        message = await consumer.take(5.0)
        for delay_s in (-1, 7201, float("nan")):
            with pytest.raises(ValueError, match="delay_s must be from 0 to 7200"):
                await message.nack(delay_s)


@scenario
async def test_a_message_of_no_consumer_cannot_be_settled(face: Face, broker: FakeBroker) -> None:
    await face.fill(broker.address, 1)
    async with face.PullConsumer(broker.address, group="g") as puller:
        (pulled,) = (await puller.pull("t", queue_id=0, offset=0)).messages
        for settle in (pulled.ack, pulled.nack, pulled.reject):
            with pytest.raises(NotDelivered, match="with a PullConsumer commit its offset"):
                settle()
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        message = await consumer.take(5.0)
        with pytest.raises(NotDelivered):
            copy.copy(message).ack()
