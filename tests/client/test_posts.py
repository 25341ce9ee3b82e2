"""`post`: messages that are handed over and acknowledged later, through every face."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from faces import FACES, Face
from fakes import HANG_UP, SILENCE, Answer, FakeBroker
from reput_broker.background import BackgroundBroker
from reput_client import Message, SendReceipt
from reput_client.errors import (
    ClientClosed,
    ConnectFailed,
    PostsFailed,
    RequestTimeout,
    SendOutcomeUnknown,
)
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.errors import InvalidMessage, InvalidName, MessageRefused
from reput_protocol.record import decode_record
from stored_messages import sent_part, stored

PUT = RequestCode.PUT_MESSAGE
BUSY = Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: later")


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


def test_what_is_stored_is_what_send_stores(face: Face, reput_broker: BackgroundBroker) -> None:
    cases: list[dict[str, Any]] = [
        {},
        {"tag": "paid"},
        {"tag": "größe", "keys": ["a", "b"], "properties": {"k": "v"}, "flag": -5},
        {"properties": {"é": "ü"}},
    ]

    async def scenario() -> None:
        address = reput_broker.address
        topic = f"posts-{face.name}"
        async with face.Admin(address) as admin:
            await admin.create_topic(topic, queues=2)
        async with face.Producer(address, ack="page_cache") as producer:
            posted = []
            for number in range(600):
                body = b"%d" % number * (number % 5)
                posted.append(await producer.post(topic, body, queue_id=0, **cases[number % 4]))
            await producer.flush()
            for number in range(600):
                body = b"%d" % number * (number % 5)
                if number % 50 < 4:
                    await producer.send(Message(topic, body, **cases[number % 4]), queue_id=1)
        receipts = [each.receipt for each in posted]
        found, other = await stored(face, address, topic, 0), await stored(face, address, topic, 1)
        assert len(found) == 600
        by_offset = {message.queue_offset: message for message in found}
        in_order = [by_offset[receipt.queue_offset] for receipt in receipts]
        for number, message in enumerate(other):
            posted_part = sent_part(in_order[number // 4 * 50 + number % 4].record)
            posted_part.queue_id = 1
            assert posted_part == sent_part(message.record)
        for number, (message, receipt) in enumerate(zip(in_order, receipts, strict=True)):
            assert bytes(message.body) == b"%d" % number * (number % 5)
            assert message.message_id == receipt.message_id
            assert message.offset_message_id == receipt.offset_message_id
        # Messages of one flag keep their order.
        offsets = [receipt.queue_offset for receipt in receipts]
        assert offsets[2::4] == sorted(offsets[2::4])
        assert offsets[1::4] == sorted(offsets[1::4])

    face.run(scenario)


def test_messages_share_blocks_and_leave_when_their_time_is_over(face: Face, broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with face.Producer(broker.address, linger_s=0.05) as producer:
            posted = [await producer.post("t", b"%d" % number, tag="x") for number in range(40)]
            assert not any(each.done for each in posted)
            receipt = await producer.result(posted[7])  # nobody has flushed
            assert isinstance(receipt, SendReceipt)
            assert broker.count(PUT) == 1
            assert [each.receipt.queue_offset for each in posted] == list(range(40))

    face.run(scenario)


def test_a_full_group_leaves_at_once_and_the_next_goes_to_another_queue(
    face: Face, broker: FakeBroker
) -> None:
    async def scenario() -> None:
        async with face.Producer(broker.address, linger_s=60.0, batch_bytes=4_000) as producer:
            posted = [await producer.post("t", bytes(500)) for _ in range(24)]
            await face.until(lambda: broker.count(PUT) >= 3)
            await producer.flush()
            queues = [each.receipt.queue_id for each in posted]
        assert set(queues) == {0, 1}
        assert sum(a != b for a, b in pairwise(queues)) == broker.count(PUT) - 1

    face.run(scenario)


def test_keys_and_queues_are_kept(face: Face, broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with face.Producer(broker.address) as producer:
            by_key = [await producer.post("t", b"x", key=f"k{number % 3}") for number in range(30)]
            by_id = [await producer.post("t", b"x", queue_id=1) for _ in range(30)]
            await producer.flush()
            assert {each.receipt.queue_id for each in by_id} == {1}
            chosen = {}
            for number, each in enumerate(by_key):
                assert chosen.setdefault(number % 3, each.receipt.queue_id) == each.receipt.queue_id
            with pytest.raises(InvalidMessage, match="no writable queue 9"):
                await producer.post("t", b"x", queue_id=9)

    face.run(scenario)


def test_callbacks_learn_receipts_and_errors_and_may_use_the_client(face: Face, broker: FakeBroker) -> None:
    async def scenario() -> None:
        told: list[Any] = []

        async with face.Producer(broker.address) as producer:

            def callback(posted: Any) -> None:
                told.append(posted.error or posted.receipt)
                assert producer.group == "reput-producer"
                raise ValueError("a callback's own failure harms nobody")

            await producer.post("t", b"good", callback=callback)
            await producer.flush()
            broker.behave(PUT, BUSY)
            await producer.post("t", b"bad", callback=callback)
            await producer.flush()  # who has a callback has been told
        assert isinstance(told[0], SendReceipt)
        assert told[1].retryable

    face.run(scenario)


def test_a_failure_that_nobody_looks_at_is_raised_by_flush_once(face: Face, broker: FakeBroker) -> None:
    async def scenario() -> None:
        broker.behave(PUT, BUSY)
        async with face.Producer(broker.address) as producer:
            posted = [await producer.post("t", b"x", queue_id=0) for _ in range(3)]
            with pytest.raises(PostsFailed, match="3 posted messages failed") as caught:
                await producer.flush()
            assert caught.value.failed == posted
            await producer.flush()
            looked_at = await producer.post("t", b"x")
            with pytest.raises(type(posted[0].error)):  # type: ignore[arg-type]
                await producer.result(looked_at)
            await producer.flush()
            with pytest.raises(PostsFailed):
                async with face.Producer(broker.address) as other:
                    await other.post("t", b"x")

    face.run(scenario)


def test_a_message_that_is_refused_harms_no_other(face: Face, broker: FakeBroker) -> None:
    def put(header: Any, body: memoryview) -> Answer:
        if b"poison" in bytes(body):
            return Answer(ResponseCode.MESSAGE_ILLEGAL, remark="MALFORMED: no")
        return broker.put(header, body)

    async def scenario() -> None:
        broker.behave(PUT, put)
        async with face.Producer(broker.address) as producer:
            bodies = [b"poison" if number == 13 else b"%d" % number for number in range(50)]
            posted = [await producer.post("t", body, queue_id=0) for body in bodies]
            with pytest.raises(PostsFailed) as caught:
                await producer.flush()
            assert caught.value.failed == [posted[13]]
            assert isinstance(posted[13].error, MessageRefused)
            for number, each in enumerate(posted):
                if number != 13:
                    record = decode_record(broker.log["t", 0][each.receipt.queue_offset])
                    assert record.body == bodies[number]
                    assert record.unique_key == each.receipt.unique_id

    face.run(scenario)


def test_a_lost_connection_leaves_no_message_without_an_outcome(face: Face, broker: FakeBroker) -> None:
    async def scenario() -> None:
        broker.behave(PUT, HANG_UP)
        async with face.Producer(broker.address, timeout_s=2.0) as producer:
            posted = [await producer.post("t", b"x", queue_id=0) for _ in range(3)]
            with pytest.raises(PostsFailed):
                await producer.flush()
            errors = [each.error for each in posted]
            assert all(isinstance(error, SendOutcomeUnknown) for error in errors)
            assert len({error.message_ids[0] for error in errors}) == 3  # type: ignore[union-attr]
            broker.behave(PUT, None)
            await producer.result(await producer.post("t", b"again"))

    face.run(scenario)


def test_what_has_not_left_waits_for_the_broker_to_come_back(face: Face, broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with face.Producer(broker.address, linger_s=0.01) as producer:
            await producer.result(await producer.post("t", b"first", queue_id=0))
            broker.stop()
            posted = [await producer.post("t", b"%d" % number, queue_id=0) for number in range(5)]
            await face.sleep(0.05)
            broker.restart()
            results = [await producer.result(each) for each in posted]
            assert [result.queue_offset for result in results] == [1, 2, 3, 4, 5]

    face.run(scenario)


def test_what_nobody_answers_fails_in_time(face: Face, broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with face.Producer(broker.address, timeout_s=0.2) as producer:
            await producer.result(await producer.post("t", b"x"))
            broker.behave(PUT, SILENCE)
            with pytest.raises(SendOutcomeUnknown, match="no answer within"):
                await producer.result(await producer.post("t", b"x"))
            broker.stop()
            with pytest.raises((ConnectFailed, SendOutcomeUnknown)):
                await producer.result(await producer.post("t", b"x"))
            broker.restart()

    face.run(scenario)


def test_a_repeated_post_is_not_given_up_for_a_busy_broker(face: Face, broker: FakeBroker) -> None:
    answers = [BUSY, HANG_UP]

    def put(header: Any, body: memoryview) -> Answer:
        return answers.pop() if answers else broker.put(header, body)

    async def scenario() -> None:
        broker.behave(PUT, put)
        async with face.Producer(broker.address, retries=3) as producer:
            receipt = await producer.result(await producer.post("t", b"x"))
            assert receipt.queue_offset == 0

    face.run(scenario)


def test_who_posts_more_than_may_be_held_waits(face: Face, broker: FakeBroker) -> None:
    going_on = threading.Event()

    def put(header: Any, body: memoryview) -> Answer:
        going_on.wait(30.0)
        return broker.put(header, body)

    async def scenario() -> None:
        broker.behave(PUT, put)
        posted: list[Any] = []
        async with face.Producer(broker.address, batch_bytes=10_000, buffer_bytes=20_000) as producer:

            async def fill() -> None:
                for _ in range(100):
                    one = await producer.post("t", bytes(1_000))
                    posted.append(one)

            async def watch() -> None:
                await face.until(lambda: len(posted) >= 17)
                await face.sleep(0.05)
                assert len(posted) < 20
                going_on.set()

            await face.together(fill, watch)
            await producer.flush()
        assert all(each.receipt for each in posted)

    face.run(scenario)


def test_a_producer_that_nobody_answers_lets_nobody_wait_for_ever(face: Face, broker: FakeBroker) -> None:
    async def scenario() -> None:
        broker.behave(PUT, SILENCE)
        options = {"batch_bytes": 10_000, "buffer_bytes": 20_000, "timeout_s": 0.2}
        async with face.Producer(broker.address, **options) as producer:
            with suppress(RequestTimeout):  # or room is made in time, by giving up what was posted before
                for _ in range(30):
                    await producer.post("t", bytes(1_000))
            with pytest.raises(PostsFailed):
                await producer.flush()

    face.run(scenario)


def test_a_closed_producer_fails_what_has_not_left(face: Face, broker: FakeBroker) -> None:
    async def scenario() -> None:
        producer = face.Producer(broker.address, linger_s=60.0)
        await producer.__aenter__()
        posted = await producer.post("t", b"x")
        await producer.aclose()
        assert isinstance(posted.error, ClientClosed)
        with pytest.raises(ClientClosed):
            await producer.post("t", b"x")
        assert not broker.log

    face.run(scenario)


def test_what_cannot_be_sent_is_said_at_once(face: Face, broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with face.Producer(broker.address) as producer:
            with pytest.raises(InvalidName):
                await producer.post("no such name!", b"x")
            with pytest.raises(InvalidMessage, match="body is a str"):
                await producer.post("t", "x")
            with pytest.raises(InvalidMessage):
                await producer.post("t", b"x", tag="\x01")
            with pytest.raises(InvalidMessage, match="properties"):
                await producer.post("t", b"x", properties={"k": "v" * 40_000})
            with pytest.raises(InvalidMessage, match="travel at once"):
                await producer.post("t", bytes(9 << 20))
            mutable = bytearray(b"before")
            posted = await producer.post("t", mutable, queue_id=0)
            with pytest.raises(InvalidMessage, match="body is a str"):
                await producer.post("t", "x", queue_id=0)
            mutable[:] = b"after!"
            await producer.result(posted)
            assert decode_record(broker.log["t", 0][0]).body == b"before"

    face.run(scenario)


def test_several_share_a_producer(face: Face, broker: FakeBroker) -> None:
    async def scenario() -> None:
        async with face.Producer(broker.address, batch_bytes=2_000, buffer_bytes=8_000) as producer:

            async def work() -> None:
                posted = [await producer.post("t", bytes(100)) for _ in range(200)]
                await producer.flush()
                assert len({(e.receipt.queue_id, e.receipt.queue_offset) for e in posted}) == 200

            await face.together(work, work, work)
        assert sum(len(queue) for queue in broker.log.values()) == 600

    face.run(scenario)
