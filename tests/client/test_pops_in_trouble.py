"""POP consumers whose broker refuses, is slow, or answers nonsense; with every API, against a scripted broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from reput_client import BrokerBusy, BrokerError, InvalidHandle, PartlyAcknowledged, PopConsumer
from reput_client.pop import handling
from reput_protocol.codes import ResponseCode
from reput_protocol.commands.pop import PopHandle
from reput_protocol.wire.header import Header
from support.faces import Face, scenario
from support.fake_pops import ACK, BATCH_ACK, CHANGE, NOTIFICATION, POP, POP_TIME, RESEND, SEND_BACK, Pops
from support.fakes import HANG_UP, Answer, FakeBroker

BUSY = Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: not now")
UNKNOWN = Answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="UNSUPPORTED_REQUEST: not here")
INVISIBLE_S = 30.0


@pytest.fixture
def pops() -> Iterator[Pops]:
    with FakeBroker(queues=1) as broker:
        yield Pops(broker)


@scenario
async def test_several_acknowledgements_are_one_request(face: Face, pops: Pops) -> None:
    pops.waiting = [b"0", b"1", b"2"]
    async with face.PopConsumer(pops.broker.address, group="g", topic="t", orderly=False) as consumer:
        messages = await consumer.receive(invisible_s=INVISIBLE_S)
        await messages[2].extend(INVISIBLE_S)
        pops.settled.clear()
        await consumer.ack(messages)
        await consumer.ack(messages)
    ((code, body),) = pops.settled
    assert (code, body.broker_name) == (BATCH_ACK, pops.broker.broker_name)
    first, second = body.acks
    assert (first.offsets(), first.start_offset, first.pop_time) == ([0, 1], 0, POP_TIME)
    assert (second.offsets(), second.start_offset) == ([2], 2)
    assert second.pop_time > POP_TIME, "the handle of the extension"


@scenario
async def test_a_broker_without_batches_gets_single_acknowledgements(face: Face, pops: Pops) -> None:
    pops.waiting = [b"0", b"1"]
    pops.answers = {BATCH_ACK: [UNKNOWN]}
    async with face.PopConsumer(pops.broker.address, group="g", topic="t", orderly=False) as consumer:
        await consumer.ack(await consumer.receive(invisible_s=INVISIBLE_S))
    assert [(code, ext["offset"]) for code, ext in pops.settled] == [(ACK, 0), (ACK, 1)]
    assert pops.settled[1][1]["extraInfo"] == f"0 {POP_TIME} 30000 3 0 {pops.broker.broker_name} 0 1"


@scenario
async def test_what_a_broker_refuses_for_now_can_be_acknowledged_again(face: Face, pops: Pops) -> None:
    pops.waiting = [b"0", b"1"]
    pops.answers = {BATCH_ACK: [BUSY]}
    async with face.PopConsumer(pops.broker.address, group="g", topic="t", orderly=False) as consumer:
        messages = await consumer.receive(invisible_s=INVISIBLE_S)
        with pytest.raises(PartlyAcknowledged, match="0 of 2 messages") as caught:
            await consumer.ack(messages)
        assert {index: type(error) for index, error in caught.value.errors.items()} == {0: BrokerBusy, 1: BrokerBusy}
        await consumer.ack(messages)
    assert pops.codes() == [BATCH_ACK]


@scenario
async def test_a_rejected_message_is_stored_before_it_is_acknowledged(face: Face, pops: Pops) -> None:
    """In the other order, a failure in between would lose it."""
    pops.waiting = [b"0"]
    refused = Answer(ResponseCode.SYSTEM_ERROR, remark="INTERNAL: no")
    pops.answers = {SEND_BACK: [refused], RESEND: [refused]}
    async with face.PopConsumer(pops.broker.address, group="g", topic="t", orderly=False) as consumer:
        (message,) = await consumer.receive(invisible_s=INVISIBLE_S)
        with pytest.raises(BrokerError, match="no"):
            await message.reject(reason="why")
        assert pops.settled == []
        await message.reject(reason="why")
    assert pops.codes() == [SEND_BACK, ACK]
    assert (pops.settled[0][1]["delayLevel"], pops.settled[0][1]["reason"]) == (-1, "why")


@scenario
async def test_an_acknowledgement_waits_for_a_change_of_the_time(face: Face, pops: Pops) -> None:
    """With the handle from before, the broker would redeliver the message for its new time."""
    pops.waiting = [b"0"]
    pops.free.clear()
    async with face.PopConsumer(pops.broker.address, group="g", topic="t", orderly=False) as consumer:
        (message,) = await consumer.receive(invisible_s=INVISIBLE_S)

        async def extend() -> None:
            await message.extend(INVISIBLE_S)

        async def acknowledge() -> None:
            await face.until(lambda: pops.changing == 1)
            await message.ack()

        async def release() -> None:
            await face.until(lambda: pops.changing == 1)
            await face.sleep(0.1)
            pops.free.set()

        await face.together(extend, acknowledge, release)
    assert pops.codes() == [CHANGE, ACK]
    assert PopHandle.parse(pops.settled[1][1]["extraInfo"]).pop_time > POP_TIME


@scenario
async def test_run_repeats_acknowledgements_and_extensions_that_fail(
    face: Face, pops: Pops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handling, "_RETRY_S", 0.05)
    pops.waiting = [b"0"]
    pops.answers = {CHANGE: [BUSY, HANG_UP], ACK: [BUSY, BUSY]}
    handled = []

    async def handle(message: Any) -> None:
        handled.append(message.body)
        await face.until(lambda: CHANGE in pops.codes())

    async with face.PopConsumer(pops.broker.address, group="g", topic="t", orderly=False) as consumer:

        async def run() -> None:
            await consumer.run(handle, invisible_s=3.0)

        async def stop() -> None:
            await face.until(lambda: ACK in pops.codes())
            consumer.stop()

        await face.together(run, stop)
    assert handled == [b"0"]
    assert pops.codes() == [CHANGE, ACK]


@scenario
async def test_a_refused_handle_is_an_error_with_the_brokers_reason(face: Face, pops: Pops) -> None:
    pops.waiting = [b"0"]
    pops.answers = {
        ACK: [Answer(ResponseCode.NO_MESSAGE, remark="OFFSET_OUT_OF_RANGE: message 0 has expired")],
        CHANGE: [Answer(ResponseCode.MESSAGE_ILLEGAL, remark="INVALID_ARGUMENT: not a handle")],
    }
    async with face.PopConsumer(pops.broker.address, group="g", topic="t", orderly=False) as consumer:
        (message,) = await consumer.receive(invisible_s=INVISIBLE_S)
        with pytest.raises(InvalidHandle, match="message 0 has expired"):
            await message.ack()
        with pytest.raises(InvalidHandle, match="not a handle"):
            await message.nack()


@scenario
async def test_messages_without_a_place_in_the_answer_are_left_out(
    face: Face, pops: Pops, caplog: pytest.LogCaptureFixture
) -> None:
    pops.waiting = [b"0"]
    ordinary = pops.pop

    def elsewhere(header: Header, body: memoryview) -> Answer:
        answer = ordinary(header, body)
        return Answer(answer.code, {**answer.ext, "startOffsetInfo": "0 7 0"}, answer.body)

    pops.broker.behave(POP, elsewhere)
    async with face.PopConsumer(pops.broker.address, group="g", topic="t", orderly=False) as consumer:
        assert await consumer.receive(wait_s=0.0) == []
    assert "popped message t/0 at offset 0 is damaged" in caplog.text


@scenario
async def test_a_broker_without_notifications_is_asked_at_intervals(face: Face, pops: Pops) -> None:
    pops.broker.behave(NOTIFICATION, UNKNOWN)
    async with face.PopConsumer(pops.broker.address, group="g", topic="t", orderly=False) as consumer:
        assert await consumer.receive(wait_s=1.0) == []
        assert 3 < pops.broker.count(POP) < 20
        pops.waiting = [b"0"]
        assert len(await consumer.receive(wait_s=1.0)) == 1


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_cancelled_wait_takes_no_message(pops: Pops, backend: str) -> None:
    async def main() -> None:
        async with PopConsumer(pops.broker.address, group="g", topic="t", orderly=False) as consumer:
            with anyio.move_on_after(0.3):
                await consumer.receive(wait_s=60.0)
            before = pops.broker.count(POP)
            pops.waiting = [b"0"]
            await anyio.sleep(0.3)
            assert pops.broker.count(POP) == before
            assert len(await consumer.receive()) == 1

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_cancelled_run_acknowledges_and_gives_back(pops: Pops, backend: str, concurrency: int) -> None:
    pops.waiting = [b"%d" % number for number in range(6)]
    handled: list[bytes] = []

    async def handle(message: Any) -> None:
        if message.body == b"3":
            await anyio.sleep(60.0)
        handled.append(message.body)

    async def main() -> None:
        async with PopConsumer(pops.broker.address, group="g", topic="t", orderly=False) as consumer:
            run = consumer.run(handle, concurrency=concurrency)
            if backend == "asyncio":  # its own way to cancel
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(run, 0.5)
            else:
                with anyio.move_on_after(0.5):
                    await run

    anyio.run(main, backend=backend)
    acknowledged: set[int] = set()
    given_back: set[int] = set()
    for code, what in pops.settled:
        if code == CHANGE:
            assert what["invisibleTime"] == 0
            given_back.add(what["offset"])
        elif code == ACK:
            acknowledged.add(what["offset"])
        else:
            acknowledged |= {offset for ack in what.acks for offset in ack.offsets()}
    assert acknowledged == {int(body) for body in handled}
    assert acknowledged | given_back == set(range(pops.popped))
    assert 3 in given_back
