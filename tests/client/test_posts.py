"""`post`: single messages that are acknowledged later, with every API."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from reput_broker.background import BackgroundBroker
from reput_client import Message, PostsFailed, SendReceipt, blocking
from reput_client.errors import AckNotReached
from reput_client.produce.accumulator import Accumulator
from reput_client.produce.block import Terms
from reput_client.transport.routing import RouteTable
from reput_protocol.codes import AckLevel, RequestCode, ResponseCode
from reput_protocol.errors import InvalidMessage, TopicNotFound
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.record import decode_record
from support.faces import Face, scenario
from support.fakes import Answer, FakeBroker
from support.stored_messages import sent_part, stored

PUT = RequestCode.PUT_MESSAGE
BUSY = Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: later")


@pytest.fixture(params=["trio", "asyncio"])
def loop(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


async def outcome(face: Face, posted: Any) -> SendReceipt:
    """Wait for a posted message with this API."""
    receipt: SendReceipt = posted.result() if face.is_blocking else await posted
    return receipt


@scenario
async def test_what_is_stored_is_what_send_stores(face: Face, reput_broker: BackgroundBroker) -> None:
    cases: list[dict[str, Any]] = [
        {},
        {"tag": "paid"},
        {"tag": "größe", "keys": ["a", "b"], "properties": {"k": "v"}, "flag": -5},
        {"properties": {"é": "ü"}},
        {"tag": "paid", "unique_id": "my-own"},
    ]

    def message(topic: str, number: int) -> Message:
        return Message(topic, b"%d" % number * (number % 7), **cases[number % 5])

    address, topic = reput_broker.address, f"posts-{face.name}"
    async with face.Admin(address) as admin:
        await admin.create_topic(topic, queues=2)
    async with face.Producer(address, ack="page_cache") as producer:
        posted = [await producer.post(message(topic, number), queue_id=0) for number in range(1200)]
        await producer.flush()
        for number in range(5):
            await producer.send(message(topic, number), queue_id=1)
    receipts = [each.result() for each in posted]
    # In the order in which they were posted, with any flags.
    assert [receipt.queue_offset for receipt in receipts] == list(range(1200))
    found = await stored(face, address, topic, 0)
    assert len(found) == 1200
    for number, (got, receipt) in enumerate(zip(found, receipts, strict=True)):
        assert bytes(got.body) == b"%d" % number * (number % 7)
        assert got.message_id == receipt.message_id
        assert got.offset_message_id == receipt.offset_message_id
    for mine, other in zip(found, await stored(face, address, topic, 1), strict=False):
        part = sent_part(mine.record)
        part.queue_id = 1
        assert part == sent_part(other.record)


@scenario
async def test_messages_share_a_block_that_leaves_when_its_time_is_over(face: Face, broker: FakeBroker) -> None:

    async with face.Producer(broker.address, linger_s=0.05) as producer:
        posted = [await producer.post(Message("t", b"%d" % number, "x")) for number in range(40)]
        assert not any(each.done for each in posted)
        if not face.is_blocking:
            with pytest.raises(RuntimeError, match="await it"):
                posted[7].result()
        receipt = await outcome(face, posted[7])  # without a flush
        assert isinstance(receipt, SendReceipt)
        assert broker.count(PUT) == 1
        assert [each.result().queue_offset for each in posted] == list(range(40))


@scenario
async def test_a_block_that_is_due_grows_while_the_one_before_is_unanswered(face: Face, broker: FakeBroker) -> None:
    going_on = broker.hold_puts()
    async with face.Producer(broker.address, retries=1, linger_s=0.001) as producer:
        posted = []
        for number in range(20):
            posted.append(await producer.post(Message("t", b"%d" % number), queue_id=0))
            await face.sleep(0.01)
        going_on.set()
        assert [(await outcome(face, each)).queue_offset for each in posted] == list(range(20))
        assert broker.count(RequestCode.PUT_MESSAGE) <= 3


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
@scenario
async def test_without_tasks_what_is_due_leaves_with_the_next_post(face: Face, broker: FakeBroker) -> None:
    async with face.Producer(broker.address, linger_s=0.02) as producer:
        first = await producer.post(Message("t", b"1"))
        await face.sleep(0.1)
        assert broker.count(PUT) == 0  # as documented: no task sends it
        await producer.post(Message("t", b"2"))
        await face.until(lambda: broker.count(PUT) == 1)
        await face.sleep(0.05)
        await producer.post(Message("t", b"3"))
        assert first.done


@pytest.mark.parametrize("face", ["trio", "asyncio"], indirect=True)
@scenario
async def test_a_lone_post_leaves_by_itself_where_there_are_tasks(face: Face, broker: FakeBroker) -> None:
    async with face.Producer(broker.address) as producer:
        told: list[Any] = []
        posted = await producer.post(Message("t", b"1"), on_done=told.append)
        await face.until(lambda: bool(told))
        assert told[0] is posted
        assert posted.result().queue_offset == 0


@pytest.mark.parametrize("face", ["trio", "asyncio"], indirect=True)
@scenario
async def test_a_post_right_behind_the_last_answer_leaves_by_itself(face: Face, broker: FakeBroker) -> None:
    """The producer's task is ending then."""
    async with face.Producer(broker.address) as producer:

        async def until_done(posted: Any) -> None:
            await face.until(lambda: posted.done)

        for _ in range(3):
            await (await producer.post(Message("t", b"1")))
            posted = await producer.post(Message("t", b"2"))
            await until_done(posted)


@pytest.mark.parametrize("face", ["trio", "asyncio"], indirect=True)
@scenario
async def test_a_program_that_only_posts_is_answered_and_lets_others_run(face: Face, broker: FakeBroker) -> None:
    """It awaits only `post`, and never waits for room."""
    turns: list[bool] = []

    async def other() -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            turns.append(True)

    async with (
        face.Producer(broker.address, batch_bytes=10_000, buffer_bytes=1 << 30) as producer,
        anyio.create_task_group() as tasks,
    ):
        first = await producer.post(Message("t", bytes(500)))
        tasks.start_soon(other)
        turns_before = len(turns)
        for _ in range(40_000):
            if first.done and len(turns) > turns_before:
                break
            await producer.post(Message("t", bytes(500)))
        assert first.done
        assert len(turns) > turns_before
        await producer.flush()
        tasks.cancel_scope.cancel()


@scenario
async def test_a_full_block_leaves_and_the_next_goes_to_another_queue(face: Face, broker: FakeBroker) -> None:

    async with face.Producer(broker.address, linger_s=60.0, batch_bytes=4_000) as producer:
        posted = [await producer.post(Message("t", bytes(500))) for _ in range(24)]
        # The third goes to the first's queue, after its answer, which a caller without tasks has to read.
        await face.until(lambda: broker.count(PUT) >= (2 if face.is_blocking else 3))
        await producer.flush()
        queues = [each.result().queue_id for each in posted]
    assert set(queues) == {0, 1}
    assert sum(a != b for a, b in pairwise(queues)) == broker.count(PUT) - 1


@scenario
async def test_keys_and_queues_are_kept(face: Face, broker: FakeBroker) -> None:

    async with face.Producer(broker.address) as producer:
        by_key = [await producer.post(Message("t", b"x"), ordering_key=f"k{number % 3}") for number in range(30)]
        by_id = [await producer.post(Message("t", b"x"), queue_id=1) for _ in range(30)]
        await producer.flush()
        assert {each.result().queue_id for each in by_id} == {1}
        chosen: dict[int, int] = {}
        for number, each in enumerate(by_key):
            assert chosen.setdefault(number % 3, each.result().queue_id) == each.result().queue_id
        with pytest.raises(InvalidMessage, match="no writable queue 9"):
            await producer.post(Message("t", b"x"), queue_id=9)


@scenario
async def test_delayed_messages_keep_their_place(face: Face, broker: FakeBroker) -> None:

    async with face.Producer(broker.address, linger_s=60.0) as producer:
        posted = [
            await producer.post(Message("t", b"1"), queue_id=0),
            await producer.post(Message("t", b"2", delay_s=5.0), queue_id=0),
            await producer.post(Message("t", b"3"), queue_id=0),
        ]
        await producer.flush()
        codes = [header.code for header in broker.requests if header.code != 105]
        assert codes == [PUT, RequestCode.SEND_MESSAGE_V2, PUT]
        assert [body for _, body in broker.parked] == [b"2"]
        assert posted[1].result().message_id is not None


@scenario
async def test_a_delayed_message_is_copied_when_it_is_posted(face: Face, broker: FakeBroker) -> None:
    """It used to be read when its frame was made, which may be much later."""
    bodies: list[bytes] = []

    def put(header: Any, body: memoryview) -> Answer:
        bodies.append(bytes(body))
        return Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: later")

    broker.behave(RequestCode.SEND_MESSAGE_V2, put)
    async with face.Producer(broker.address, retries=1) as producer:
        body = bytearray(b"posted")
        posted = await producer.post(Message("t", body, delay_s=5.0), queue_id=0)
        body[:] = b"others"
        with pytest.raises(PostsFailed):
            await producer.flush()
        assert posted.error is not None
        assert bodies == [b"posted", b"posted"]


def test_many_topics_do_not_lose_the_size_of_a_record() -> None:
    """The cached size of a topic's record may be dropped between the route and the block of a message."""
    accumulator = Accumulator(RouteTable(), None, known_apart=False, block_bytes=1000, held_max=10_000)
    message = Message("first", b"x")
    text, size = accumulator.measure(message)
    for number in range(1100):
        accumulator.measure(Message(f"t{number}", b"x"))
    queue = MessageQueue("first", "b", 0)
    waits: Any = None
    terms = Terms(AckLevel.FLUSHED, 1.0, is_bulk=True)
    block = accumulator.begin(queue, terms, print, waits, None, None)
    accumulator.put(block, message, text, size)
    assert accumulator.take(message, terms, None) is not None
    assert accumulator.held == 2 * size


@scenario
async def test_what_the_broker_may_know_has_blocks_of_its_own(face: Face, broker: FakeBroker) -> None:

    options = {"deduplicate": True, "deduplicate_within_s": 3600.0}
    async with face.Producer(broker.address, **options) as producer:
        for number in range(8):
            unique_id = f"order-{number}" if number % 4 < 2 else None
            await producer.post(Message("t", b"x", unique_id=unique_id), queue_id=0)
        await producer.flush()
    puts = [header.ext for header in broker.requests if header.code == PUT]
    expected = [(2, "check"), (2, "mark")]
    assert [(put["count"], put["dedup"]) for put in puts] == 2 * expected
    assert {put["dedupWithin"] for put in puts} == {3_600_000}


@scenario
async def test_a_block_of_which_the_broker_has_a_part_is_sent_message_by_message(
    face: Face, reput_broker: BackgroundBroker
) -> None:
    topic = f"parts-{face.name}"
    messages = [Message(topic, b"%d" % number, unique_id=f"order-{number}") for number in range(4)]
    async with face.Producer(reput_broker.address, deduplicate=True) as producer:
        first = await producer.send(messages[1], queue_id=0)
        receipts = await face.post_all(producer, messages, queue_id=0)
        assert [receipt.queue_offset for receipt in receipts] == [1, 0, 2, 3]
        assert receipts[1] == first
        # The same ids twice in a block, as two callers of `send` may give them.
        assert await face.post_all(producer, messages * 2, queue_id=0) == receipts * 2


@scenario
async def test_messages_of_a_priority_share_blocks(face: Face, reput_broker: BackgroundBroker) -> None:
    """The client chooses their queue as the broker does for one that is sent alone."""
    topic = f"priorities-{face.name}"
    async with face.Admin(reput_broker.address) as admin:
        await admin.create_topic(topic, queues=3, message_type="PRIORITY")
    async with face.Producer(reput_broker.address) as producer:
        messages = [Message(topic, b"x", priority=number % 5) for number in range(20)]
        receipts = await face.post_all(producer, messages)
        alone = await producer.send(Message(topic, b"x", priority=1, ttl_s=60.0))
        ordered = await producer.send(Message(topic, b"x", priority=1), ordering_key="k")
    assert [receipt.queue_id for receipt in receipts] == [min(number % 5, 2) for number in range(20)]
    assert len({receipt.store_timestamp_ms for receipt in receipts}) <= 3
    async with face.PullConsumer(reput_broker.address, group="g") as consumer:
        for receipt in (receipts[4], alone):
            (message,) = (await consumer.pull(topic, receipt.queue_id, receipt.queue_offset, max_messages=1)).messages
            assert message.priority == (4 if receipt is receipts[4] else 1)
        result = await consumer.pull(topic, ordered.queue_id, ordered.queue_offset, max_messages=1)
        assert result.messages[0].priority is None


@scenario
async def test_callbacks_learn_receipts_and_errors_and_what_they_raise_harms_nobody(
    face: Face, broker: FakeBroker
) -> None:

    told: list[Any] = []

    async with face.Producer(broker.address, retries=0) as producer:

        def on_done(posted: Any) -> None:
            told.append(posted.error or posted.result())
            raise ValueError("its own failure")

        for _ in range(3):
            await producer.post(Message("t", b"good"), on_done=on_done)
        await producer.flush()
        broker.behave(PUT, BUSY)
        await producer.post(Message("t", b"bad"), on_done=on_done)
        await producer.flush()  # the callback has reported it
    assert [isinstance(each, SendReceipt) for each in told] == [True, True, True, False]
    assert told[3].retryable


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, GeneratorExit])
@scenario
async def test_what_a_callback_raises_does_not_end_the_task(
    error: type[BaseException], loop: Face, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """As `Future.result()` raises of a cancelled one."""

    def fail(_posted: Any) -> None:
        raise error

    async with loop.Producer(broker.address) as producer:
        await (await producer.post(Message("t", b"1"), on_done=fail))
        await (await producer.post(Message("t", b"2")))
    assert "has raised" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_callback_may_end_a_program_without_tasks(error: type[BaseException], broker: FakeBroker) -> None:
    def fail(_posted: Any) -> None:
        raise error

    with blocking.Producer(broker.address) as producer:
        posted = producer.post(Message("t", b"1"), on_done=fail)
        with pytest.raises(error):
            producer.flush()
        producer.flush()
        assert posted.error is None


def test_flush_waits_for_callbacks_that_another_thread_calls(broker: FakeBroker) -> None:
    calling, going_on = threading.Event(), threading.Event()
    called: list[str] = []

    def fast(_posted: Any) -> None:
        called.append("fast")

    def slow(_posted: Any) -> None:
        calling.set()
        going_on.wait(30.0)
        called.append("slow")

    with blocking.Producer(broker.address) as producer:
        thread = threading.Thread(target=lambda: producer.post(Message("t", b"1"), queue_id=0, on_done=slow).result())
        thread.start()
        calling.wait(30.0)
        producer.post(Message("t", b"2"), queue_id=1, on_done=fast)
        threading.Timer(0.2, going_on.set).start()
        producer.flush()
        assert called == ["slow", "fast"]
        thread.join()


@scenario
async def test_room_is_made_as_soon_as_only_open_blocks_are_left(face: Face, broker: FakeBroker) -> None:
    """They were checked only once, while another was in flight."""
    options = {"linger_s": 60.0, "timeout_s": 5.0, "batch_bytes": 10_000, "buffer_bytes": 20_000}
    async with face.Producer(broker.address, **options) as producer:
        await producer.post(Message("t", b""), queue_id=0)
        await producer.flush()  # fetches the route
        going_on = broker.hold_puts()
        for flag in (0, 1):  # the second begins another block
            await producer.post(Message("t", bytes(1000), flag=flag), queue_id=0)
        for queue_id in (0, 1):
            await producer.post(Message("t", bytes(8500), flag=1), queue_id=queue_id)

        async def post() -> None:
            await producer.post(Message("t", bytes(9000)), queue_id=1)

        async def answer() -> None:
            await face.until(lambda: broker.count(PUT) > 1)
            await face.sleep(0.05)
            going_on.set()

        await face.together(post, answer)


def test_callbacks_may_use_the_blocking_client(broker: FakeBroker) -> None:
    from reput_client import blocking

    with blocking.Producer(broker.address, batch_bytes=2_000) as producer:
        again: list[Any] = []
        inside: list[int] = []
        depths: list[int] = []

        def on_done(posted: Any) -> None:
            assert posted.result()
            inside.append(inside[-1] + 1 if inside else 1)
            if len(again) < 200:
                again.append(producer.post(Message("t", bytes(300)), on_done=on_done))
            depths.append(inside.pop())

        for _ in range(20):
            producer.post(Message("t", bytes(300)), on_done=on_done)
        while len(again) < 200:
            producer.flush()
        producer.flush()
        assert all(each.done for each in again)
        assert set(depths) == {1}  # callbacks are not nested


@scenario
async def test_a_failure_of_which_nobody_was_told_is_raised_by_flush_once(face: Face, broker: FakeBroker) -> None:

    broker.behave(PUT, BUSY)
    async with face.Producer(broker.address, retries=0) as producer:
        posted = [await producer.post(Message("t", b"x"), queue_id=0) for _ in range(3)]
        with pytest.raises(PostsFailed, match="3 posted messages failed") as caught:
            await producer.flush()
        assert caught.value.failed == posted
        await producer.flush()
        looked_at = await producer.post(Message("t", b"x"))
        with pytest.raises(type(posted[0].error)):
            await outcome(face, looked_at)
        await producer.flush()
    with pytest.raises(PostsFailed):
        async with face.Producer(broker.address, retries=0) as other:
            await other.post(Message("t", b"x"))


@scenario
async def test_a_refused_block_fails_alone(face: Face, broker: FakeBroker) -> None:
    def put(header: Any, body: memoryview) -> Answer:
        if b"poison" in bytes(body):
            return Answer(ResponseCode.MESSAGE_ILLEGAL, remark="MALFORMED: no")
        return broker.put(header, body)

    broker.behave(PUT, put)
    async with face.Producer(broker.address, batch_bytes=1_000) as producer:
        bodies = [b"poison" if number == 13 else b"%d" % number for number in range(50)]
        posted = [await producer.post(Message("t", body), queue_id=0) for body in bodies]
        with pytest.raises(PostsFailed) as caught:
            await producer.flush()
        failed = caught.value.failed
        assert posted[13] in failed
        assert 1 < len(failed) < 20
        kept = [number for number, each in enumerate(posted) if each not in failed]
        for number in kept:
            record = decode_record(broker.log["t", 0][posted[number].result().queue_offset])
            assert record.body == bodies[number]
            assert record.unique_key == posted[number].result().unique_id
        # In order, without the failed ones.
        assert [posted[number].result().queue_offset for number in kept] == list(range(len(kept)))


@scenario
async def test_a_level_that_was_not_reached_is_told_with_each_receipt(face: Face, broker: FakeBroker) -> None:
    def put(header: Any, body: memoryview) -> Answer:
        answer = broker.put(header, body)
        answer.code = ResponseCode.FLUSH_DISK_TIMEOUT
        answer.ext = {**answer.ext, "ack": "page_cache"}
        return answer

    broker.behave(PUT, put)
    async with face.Producer(broker.address, retries=0) as producer:
        posted = [await producer.post(Message("t", b"x"), queue_id=0) for _ in range(3)]
        with pytest.raises(PostsFailed):
            await producer.flush()
        errors = [each.error for each in posted]
        assert all(isinstance(error, AckNotReached) for error in errors)
        assert [error.receipt.queue_offset for error in errors] == [0, 1, 2]


@scenario
async def test_what_cannot_be_sent_is_said_at_once(face: Face, broker: FakeBroker) -> None:
    broker.unknown_topics |= {"nowhere", "TBW102"}

    async with face.Producer(broker.address) as producer:
        for _ in range(2):  # without and with an open block
            with pytest.raises(InvalidMessage, match="properties"):
                await producer.post(Message("t", b"x", properties={"k": "v" * 32_760}), queue_id=0)
            with pytest.raises(InvalidMessage, match="properties"):
                await producer.post(Message("t", b"x", tag="v" * 32_750), queue_id=0)
            with pytest.raises(InvalidMessage, match="half of a character"):
                await producer.post(Message("t", b"x", keys=["\ud800"]), queue_id=0)
            with pytest.raises(InvalidMessage, match="fit into a block"):
                await producer.post(Message("t", bytes(9 << 20)), queue_id=0)
            mutable = bytearray(b"before")
            posted = await producer.post(Message("t", mutable), queue_id=0)
            mutable[:] = b"after!"
        with pytest.raises(TopicNotFound):
            await producer.post(Message("nowhere", b"x"))
        await outcome(face, posted)
        assert [decode_record(data).body for data in broker.log["t", 0]] == [b"before", b"before"]


@scenario
async def test_several_share_a_producer(face: Face, broker: FakeBroker) -> None:

    async with face.Producer(broker.address, batch_bytes=2_000, buffer_bytes=8_000) as producer:

        async def work() -> None:
            posted = [await producer.post(Message("t", bytes(100))) for _ in range(200)]
            for each in posted[:5]:
                await outcome(face, each)
            await producer.flush()
            receipts = [each.result() for each in posted]
            assert len({(receipt.queue_id, receipt.queue_offset) for receipt in receipts}) == 200

        await face.together(work, work, work)
    assert sum(len(queue) for queue in broker.log.values()) == 600
