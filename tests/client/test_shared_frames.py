"""Concurrent sends share frames; each is answered as if it had been sent alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest

from reput_broker.background import BackgroundBroker
from reput_client import Message
from reput_client.errors import AckNotReached, SendOutcomeUnknown
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.errors import BrokerError, HeaderFieldError, MessageRefused
from reput_protocol.record.record import decode_record
from reput_protocol.wire.header import Header
from support.faces import Face, scenario
from support.fakes import SILENCE, Answer, FakeBroker

TASKS = 40


@pytest.fixture(params=["asyncio", "trio"])
def loop_face(request: pytest.FixtureRequest) -> Face:
    """Threads of the blocking API usually write separately."""
    return Face(request.param)


async def send_each(face: Face, producer: Any, messages: list[Message], **options: Any) -> list[Any]:
    """Send all at once, twice; return the second round's receipts and errors in order."""
    found: list[Any] = [None] * len(messages)

    async def one(index: int) -> None:
        try:
            found[index] = await producer.send(messages[index], **options)
        except Exception as error:
            found[index] = error

    for _ in range(2):
        await face.together(*(partial(one, index) for index in range(len(messages))))
    return found


def messages(topic: str, sizes: list[int]) -> list[Message]:
    return [
        Message(topic, bytes([number]) * size, tag=f"t{number}", keys=[f"k{number}"])
        for number, size in enumerate(sizes)
    ]


@scenario
async def test_each_message_is_stored_once_where_its_receipt_says(face: Face, reput_broker: BackgroundBroker) -> None:

    sent = messages("shared", [number * 7 for number in range(TASKS)])
    async with face.Admin(reput_broker.address) as admin:
        await admin.create_topic("shared", queues=3)
    async with face.Producer(reput_broker.address, ack="page_cache") as producer:
        receipts = await send_each(face, producer, sent)
    async with (
        face.PullConsumer(reput_broker.address, group="g") as consumer,
        face.Admin(reput_broker.address) as admin,
    ):
        assert sum([await consumer.max_offset("shared", queue_id) for queue_id in range(3)]) == 2 * TASKS
        for message, receipt in zip(sent, receipts, strict=True):
            result = await consumer.pull("shared", receipt.queue_id, receipt.queue_offset, max_messages=1, wait_s=5.0)
            (stored,) = result.messages
            assert bytes(stored.body) == message.body
            assert stored.tag == message.tag
            assert stored.message_id == receipt.message_id
            assert stored.physical_offset == receipt.physical_offset
            assert stored.store_timestamp_ms == receipt.store_timestamp_ms
            assert receipt.ack == "page_cache"


@scenario
async def test_tasks_that_send_at_once_share_frames(loop_face: Face) -> None:
    with FakeBroker(queues=1) as broker:
        async with loop_face.Producer(broker.address, ack="page_cache") as producer:
            await producer.send(Message("shared", b"first"))
            await send_each(loop_face, producer, messages("shared", [10] * TASKS))
        assert broker.count(RequestCode.PUT_MESSAGE) < TASKS // 4
        assert len(broker.log["shared", 0]) == 1 + 2 * TASKS


@scenario
async def test_with_a_block_that_is_due_the_others_leave_too(loop_face: Face) -> None:
    with FakeBroker(queues=3) as broker:
        async with loop_face.Producer(broker.address, ack="page_cache", linger_s=60.0) as producer:
            with anyio.fail_after(30.0):
                async with anyio.create_task_group() as tasks:
                    for queue_id in range(2):
                        tasks.start_soon(partial(producer.send, Message("shared", b"x"), queue_id=queue_id))
                    while len(producer._gathering._accumulator.open) < 2:
                        await anyio.sleep(0.001)
                    producer._gathering.linger_s = 0.0
                    await producer.send(Message("shared", b"x"), queue_id=2)
        assert [len(broker.log["shared", queue_id]) for queue_id in range(3)] == [1, 1, 1]


@scenario
async def test_sends_of_a_divided_frame_return_while_another_caller_waits_for_its_own(loop_face: Face) -> None:
    """The caller that drives the sends waits for a silent queue; the others only sleep until they are told."""
    with FakeBroker(queues=2) as broker:

        def divided(header: Header, body: memoryview) -> Answer:
            if header.ext["queueId"] == 1:
                return SILENCE
            if int(str(header.ext["count"])) > 1:
                return Answer(ResponseCode.MESSAGE_ILLEGAL, remark="TOO_LARGE: one of them")
            return broker.put(header, body)

        broker.behave(RequestCode.PUT_MESSAGE, divided)
        receipts: list[Any] = []
        async with loop_face.Producer(broker.address, ack="page_cache", timeout_s=60.0, linger_s=0.05) as producer:

            async def send() -> None:
                receipts.append(await producer.send(Message("shared", b"x"), queue_id=0))

            with anyio.fail_after(5.0):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(partial(producer.send_batch, [Message("shared", b"0")], queue_id=1))
                    while not broker.count(RequestCode.PUT_MESSAGE):
                        await anyio.sleep(0.01)
                    async with anyio.create_task_group() as sends:
                        for _ in range(3):
                            sends.start_soon(send)
                    tasks.cancel_scope.cancel()
        assert broker.count(RequestCode.PUT_MESSAGE) == 1 + 1 + 3, "they were in one frame"
        assert sorted(receipt.queue_offset for receipt in receipts) == [0, 1, 2]


@pytest.fixture
def strict_broker(new_reput_broker: Callable[..., BackgroundBroker]) -> BackgroundBroker:
    return new_reput_broker(store={"message_size_max": 1000})


@pytest.mark.parametrize("linger_s", [0.0, 0.01])
@scenario
async def test_a_message_that_the_broker_refuses_takes_no_other_with_it(
    loop_face: Face, strict_broker: BackgroundBroker, linger_s: float
) -> None:
    sizes = [10] * TASKS
    sizes[17] = 1001
    async with loop_face.Producer(strict_broker.address, ack="page_cache", linger_s=linger_s) as producer:
        await producer.send(Message("shared", b"first"), queue_id=0)
        found = await send_each(loop_face, producer, messages("shared", sizes), queue_id=0)
    assert isinstance(found[17], MessageRefused)
    assert "1001 bytes" in str(found[17])
    places = [receipt.queue_offset for index, receipt in enumerate(found) if index != 17]
    assert len(set(places)) == TASKS - 1
    async with loop_face.PullConsumer(strict_broker.address, group="g") as consumer:
        assert await consumer.max_offset("shared", 0) == 1 + 2 * (TASKS - 1)


@scenario
async def test_a_refusal_that_is_not_about_a_message_is_told_to_all(loop_face: Face) -> None:
    with FakeBroker(queues=1) as broker:
        broker.behave(RequestCode.PUT_MESSAGE, Answer(ResponseCode.SYSTEM_BUSY, remark="too much to do"))

        async with loop_face.Producer(broker.address, ack="page_cache", retries=0) as producer:
            found = await send_each(loop_face, producer, messages("shared", [10] * TASKS))
        assert all(isinstance(error, BrokerError) and "too much to do" in str(error) for error in found)
        assert len({id(error) for error in found}) == TASKS, "nobody shares an exception"


@scenario
async def test_an_ack_level_that_is_not_reached_is_told_to_all_with_their_own_receipts(loop_face: Face) -> None:
    with FakeBroker(queues=1) as broker:

        def late(header: Header, body: memoryview) -> Answer:
            answer = broker.put(header, body)
            return Answer(ResponseCode.FLUSH_DISK_TIMEOUT, answer.ext, remark="the disk is slow")

        broker.behave(RequestCode.PUT_MESSAGE, late)

        async with loop_face.Producer(broker.address, ack="flushed", retries=0) as producer:
            found = await send_each(loop_face, producer, messages("shared", [10] * TASKS))
        assert all(isinstance(error, AckNotReached) for error in found)
        places = sorted(error.receipts[0].queue_offset for error in found)
        assert places == list(range(TASKS, 2 * TASKS))
        assert all(len(error.receipts) == 1 for error in found)


@scenario
async def test_a_send_that_is_cancelled_leaves_the_others_of_its_frame_alone(loop_face: Face) -> None:
    with FakeBroker(queues=1) as broker:
        receipts: list[Any] = []
        async with loop_face.Producer(broker.address, ack="page_cache") as producer:
            await producer.send(Message("shared", b"first"))

            async def one(index: int) -> None:
                with anyio.CancelScope() as scope:
                    if index % 3 == 0:
                        tasks.start_soon(cancel, scope)
                    receipts.append(await producer.send(Message("shared", b"x")))

            async def cancel(scope: anyio.CancelScope) -> None:
                scope.cancel()

            async with anyio.create_task_group() as tasks:
                for index in range(TASKS):
                    tasks.start_soon(one, index)
            await producer.send(Message("shared", b"last"))
        assert len(receipts) >= TASKS - (TASKS + 2) // 3
        places = [receipt.queue_offset for receipt in receipts]
        assert len(set(places)) == len(places)
        assert len(broker.log["shared", 0]) <= TASKS + 2


@scenario
async def test_a_lingering_send_that_is_cancelled_is_taken_out_of_its_block(loop_face: Face) -> None:
    with FakeBroker(queues=1) as broker:
        places: dict[int, int] = {}
        async with loop_face.Producer(broker.address, ack="page_cache", linger_s=0.2) as producer:

            async def one(cancelled: set[int], number: int) -> None:
                message = Message("shared", b"%d" % number, unique_id=f"id-{number}" if number == 3 else None)
                with anyio.move_on_after(0.02 if number in cancelled else 30):
                    receipt = await producer.send(message)
                    places[number] = receipt.queue_offset
                    assert number != 3 or receipt.message_id == "id-3"

            for cancelled in ({0, 2}, {0, 1, 2, 3, 4}):
                await loop_face.together(*(partial(one, cancelled, number) for number in range(5)))
            assert await producer.send(Message("shared", b"last"))
        stored = [decode_record(record).body for record in broker.log["shared", 0]]
        assert sorted(places) == [1, 3, 4]
        assert [stored[place] for place in places.values()] == [b"%d" % number for number in places]
        assert stored[3:] == [b"last"]


@scenario
async def test_without_an_answer_nobody_knows(loop_face: Face) -> None:
    with FakeBroker(queues=1) as broker:
        async with loop_face.Producer(broker.address, ack="page_cache", timeout_s=0.3) as producer:
            await producer.send(Message("shared", b"first"))
            broker.behave(RequestCode.PUT_MESSAGE, SILENCE)
            found = await send_each(loop_face, producer, messages("shared", [10] * TASKS))
            assert all(isinstance(error, SendOutcomeUnknown) for error in found)
            assert all(len(error.message_ids) == 1 for error in found)
            broker.behave(RequestCode.PUT_MESSAGE, None)
            broker.drop_connections()
            await anyio.sleep(0.1)
            await producer.send(Message("shared", b"last"))  # checks the connection before use


@pytest.mark.parametrize("code", [ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT])
@scenario
async def test_an_answer_without_sense_is_told_to_all_and_costs_no_connection(
    loop_face: Face, code: ResponseCode
) -> None:
    with FakeBroker(queues=1) as broker:
        broker.behave(RequestCode.PUT_MESSAGE, Answer(code, {"queueOffset": 5}))

        async with loop_face.Producer(broker.address, ack="page_cache", timeout_s=1e6) as producer:
            found = await send_each(loop_face, producer, messages("shared", [10] * TASKS))
        assert all(isinstance(error, HeaderFieldError) for error in found)
        assert broker.accepted == 1


@pytest.mark.parametrize("face", ["asyncio"], indirect=True)
@scenario
async def test_puts_into_one_queue_keep_their_order_at_different_ack_levels(
    face: Face, reput_broker: BackgroundBroker
) -> None:
    async with face.Producer(reput_broker.address) as producer:
        await producer.send(Message("levels", b"first"), queue_id=0)
        order: list[int] = []
        offsets: dict[int, int] = {}

        async def one(number: int) -> None:
            order.append(number)
            ack = "flushed" if number % 3 == 0 else "page_cache"
            receipt = await producer.send(Message("levels", b"x"), queue_id=0, ack=ack)
            offsets[number] = receipt.queue_offset

        async with anyio.create_task_group() as tasks:
            for number in range(TASKS):
                tasks.start_soon(one, number)
        assert sorted(order, key=offsets.__getitem__) == order


@scenario
async def test_a_oneway_send_waits_for_nobody_elses_answer(loop_face: Face) -> None:
    """Its frame is written by a task that first lets others go, while it waits for the sockets."""
    with FakeBroker(queues=1) as broker:

        def withhold(header: Header, body: memoryview) -> Answer:
            return SILENCE if bytes(body[88:92]) == b"slow" else broker.put(header, body)

        waits: list[float] = []
        async with loop_face.Producer(broker.address, ack="page_cache", timeout_s=5.0, retries=0) as producer:
            await producer.send(Message("shared", b"first"))
            broker.behave(RequestCode.PUT_MESSAGE, withhold)
            for _ in range(6):
                await _race(producer, waits)
        assert max(waits) < 2.0


@scenario
async def test_a_batch_waits_for_nobody_elses_answer(loop_face: Face) -> None:
    """The caller that drives the sends sleeps until an answer comes; a batch leaves meanwhile."""
    with FakeBroker(queues=2) as broker:

        def withhold(header: Header, body: memoryview) -> Answer:
            return SILENCE if bytes(body[88:92]) == b"slow" else broker.put(header, body)

        broker.behave(RequestCode.PUT_MESSAGE, withhold)
        async with loop_face.Producer(broker.address, ack="page_cache", timeout_s=60.0) as producer:
            with anyio.fail_after(4.0):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(partial(producer.send, Message("shared", b"slow"), queue_id=0))
                    while not broker.count(RequestCode.PUT_MESSAGE):
                        await anyio.sleep(0.01)
                    await producer.send_batch([Message("shared", b"fast")], queue_id=1)
                    tasks.cancel_scope.cancel()


async def _race(producer: Any, waits: list[float]) -> None:
    async def slow() -> None:
        with anyio.move_on_after(0.3):
            await producer.send(Message("shared", b"fast"))
            await producer.send(Message("shared", b"slow"))

    async def oneway() -> None:
        await producer.send(Message("shared", b"fast"))
        started_at = anyio.current_time()
        await producer.send_oneway(Message("shared", b"oneway"))
        waits.append(anyio.current_time() - started_at)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(slow)
        tasks.start_soon(oneway)
