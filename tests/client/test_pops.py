"""The POP consumer against a real broker: the same scenarios under trio, asyncio and the blocking API."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from reput_client import (
    GiveBack,
    InvalidHandle,
    Message,
    PartlyAcknowledged,
    RetryHere,
    StopRunning,
    TopicNotFound,
    blocking,
)
from reput_client.blocking.consumer import BlockingRun
from reput_client.errors import ClientClosed, RequestTimeout
from reput_protocol.commands.group import SubscriptionGroupConfig
from support.faces import Face, scenario

LONG_S = 60.0
SHORT_S = 1.5
EXTENDED_S = 2.5
ONCE = pytest.mark.parametrize("face", ["blocking"], indirect=True)
"""For what takes long, and is the same code for every API."""


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own; its group has the same name."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[-100:]


@pytest.mark.parametrize("face", ["trio", "asyncio"], indirect=True)
@pytest.mark.parametrize("concurrency", [1, 3])
@scenario
async def test_a_plain_function_ends_run_with_its_message_unhandled(
    face: Face, real_address: str, topic: str, concurrency: int
) -> None:
    await fill(face, real_address, topic, b"a")
    seen: list[bytes] = []

    def plain(message: Any) -> None:
        seen.append(message.body)

    async def handle(message: Any) -> None:
        plain(message)
        consumer.stop()

    async with face.PopConsumer(real_address, group=topic, topic=topic) as consumer:
        with pytest.raises((TypeError, ExceptionGroup)) as caught:
            await consumer.run(plain, concurrency=concurrency)
        (error,) = caught.value.exceptions if isinstance(caught.value, ExceptionGroup) else [caught.value]
        assert "is a plain function" in str(error)
        await consumer.run(lambda message: handle(message), concurrency=concurrency)
    assert seen == [b"a", b"a"]


async def fill(face: Face, real_address: str, topic: str, *bodies: bytes, queues: int = 1, **more: Any) -> None:
    """Create a topic, and store messages in its first queue."""
    async with face.Admin(real_address) as admin:
        await admin.create_topic(topic, queues=queues)
    async with face.Producer(real_address) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, **more), queue_id=0)


async def receive(consumer: Any, count: int, **options: Any) -> list[Any]:
    """Receive until there are so many messages."""
    found: list[Any] = []
    deadline = time.monotonic() + 20.0
    while len(found) < count and time.monotonic() < deadline:
        found += await consumer.receive(**{"wait_s": 5.0, **options})
    assert len(found) == count
    return found


async def run(face: Face, consumer: Any, handle: Any, until: Callable[[], bool], **options: Any) -> None:
    """Run a handler until `until` holds."""

    async def work() -> None:
        await consumer.run(handle, **options)

    async def stop() -> None:
        await face.until(until)
        consumer.stop()

    await face.together(work, stop)


# -- receiving and settling --------------------------------------------------------------------------------------------


@scenario
async def test_the_highest_priority_is_popped_first_also_of_redelivered_messages(
    face: Face, real_address: str, topic: str
) -> None:
    async with face.Admin(real_address) as admin:
        await admin.create_topic(topic, queues=4, message_type="PRIORITY")
    async with face.Producer(real_address) as producer:
        receipts = [await producer.send(Message(topic, b"%d" % n, priority=n)) for n in (0, 2, 9)]
        assert [receipt.queue_id for receipt in receipts] == [0, 2, 3]
        await producer.send_batch([Message(topic, b"1", priority=1)])
    async with face.PopConsumer(real_address, group=topic, topic=topic) as consumer:
        (first,) = await receive(consumer, 1, max_messages=1, invisible_s=SHORT_S)
        assert (first.body, first.priority) == (b"9", 9)
        (second,) = await receive(consumer, 1, max_messages=1, invisible_s=LONG_S)
        assert second.body == b"2"
        await face.sleep(SHORT_S + 2.0)
        (again,) = await receive(consumer, 1, max_messages=1, invisible_s=LONG_S)
        assert (again.body, again.delivery_attempt) == (b"9", 2)
        rest = await receive(consumer, 2, max_messages=1, invisible_s=LONG_S)
        assert [each.body for each in rest] == [b"1", b"0"]


@scenario
async def test_only_a_message_that_is_not_settled_comes_again(face: Face, real_address: str, topic: str) -> None:
    bodies = [b"ack", b"extend", b"extend and ack", b"reject", b"left"]
    await fill(face, real_address, topic, b"other tag", tag="BB")  # with the same hash
    await fill(face, real_address, topic, *bodies, tag="Aa", keys=["k"])
    async with face.PopConsumer(real_address, group=topic, topic=topic, tags="Aa") as consumer:
        popped = await consumer.receive(invisible_s=SHORT_S)
        assert [message.body for message in popped] == bodies
        first, kept, changed, rejected, left = popped
        assert (left.topic, left.queue_id, left.queue_offset, left.tag) == (topic, 0, 5, "Aa")
        assert left.delivery_attempt == 1
        await changed.extend(SHORT_S)
        before = kept._handle
        await kept.extend(LONG_S)
        assert kept._handle != before
        await first.ack()
        await first.ack()
        await changed.ack()
        await rejected.reject(reason="no such order")
        (again,) = await receive(consumer, 1)
        assert (again.body, again.topic, again.delivery_attempt) == (b"left", topic, 2)
        assert again.queue.topic == f"%RETRY%{topic}_{topic}"
        assert await consumer.receive(wait_s=0.5) == [], "the times of all others would be over too"
        for settle in (left.ack, left.nack, left.reject, lambda: left.extend(1.0)):
            with pytest.raises(InvalidHandle, match=r"time ended .* it is redelivered: handle it then") as caught:
                await settle()
        assert (caught.value.topic, caught.value.queue_id, caught.value.queue_offset) == (topic, 0, 5)
        with pytest.raises(PartlyAcknowledged, match="2 of 3 messages acknowledged; message 0 failed") as some:
            await consumer.ack([left, kept, again])
        assert list(some.value.errors) == [0]
        with pytest.raises(InvalidHandle, match="it is acknowledged"):
            await again.nack()
    async with face.PopConsumer(real_address, group=f"{topic}-2", topic=f"%DLQ%{topic}") as consumer:
        (dead,) = await receive(consumer, 1)
        assert (dead.body, dead.keys) == (b"reject", ("k",))
        assert dead.properties["RETRY_REASON"] == "no such order"
        await dead.ack()


@scenario
async def test_members_of_one_queue_get_different_messages(face: Face, real_address: str, topic: str) -> None:
    bodies = [b"%d" % number for number in range(60)]
    await fill(face, real_address, topic, *bodies)
    got: list[bytes] = []

    async def member() -> None:
        async with face.PopConsumer(real_address, group=topic, topic=topic) as consumer:
            while messages := await consumer.receive(7, invisible_s=LONG_S, wait_s=0.2):
                got.extend(message.body for message in messages)
                await consumer.ack(messages)

    await face.together(*[member] * 5)
    assert sorted(got) == sorted(bodies)


@scenario
async def test_a_message_given_back_comes_again_at_once_or_after_a_delay(
    face: Face, real_address: str, topic: str
) -> None:
    await fill(face, real_address, topic, b"a")
    async with face.PopConsumer(real_address, group=topic, topic=topic) as consumer:
        (message,) = await receive(consumer, 1, invisible_s=LONG_S)
        await message.nack()
        (message,) = await receive(consumer, 1, invisible_s=LONG_S)
        assert message.delivery_attempt == 2
        given_back_at = time.monotonic()
        await message.nack(0.5)
        (message,) = await receive(consumer, 1, invisible_s=LONG_S)
        assert message.delivery_attempt == 3
        assert time.monotonic() - given_back_at > 0.45
        await message.ack()


@scenario
async def test_a_batch_says_which_messages_are_not_acknowledged(face: Face, real_address: str, topic: str) -> None:
    await fill(face, real_address, topic, b"a", b"b", b"c")
    async with face.PopConsumer(real_address, group=topic, topic=topic) as consumer:
        messages = await consumer.receive(invisible_s=LONG_S)
        damaged = messages[1]._client if face.is_blocking else messages[1]
        damaged._handle = damaged._handle._replace(revive_queue_id=77)
        with pytest.raises(PartlyAcknowledged) as caught:
            await consumer.ack(messages)
        (error,) = caught.value.errors.items()
        assert error[0] == 1
        assert isinstance(error[1], InvalidHandle)
        assert "revive queue 77" in str(error[1])


@pytest.mark.parametrize("orderly", [False, True])
@scenario
async def test_a_message_given_back_untried_has_no_attempt(
    face: Face, real_address: str, topic: str, orderly: bool
) -> None:
    """However often, so that it is no dead letter either."""
    await fill(face, real_address, topic, b"x")
    async with face.PopConsumer(real_address, group=topic, topic=topic, orderly=orderly) as consumer:
        for _ in range(18):
            (message,) = await receive(consumer, 1)
            assert message.delivery_attempt == 1
            await message.nack(counts=False)
        (message,) = await receive(consumer, 1)
        await message.nack()
        (message,) = await receive(consumer, 1)
        assert message.delivery_attempt == 2
        await message.nack(counts=False)
        (message,) = await receive(consumer, 1)
        assert message.delivery_attempt == 2


# -- topics, filters, waiting ------------------------------------------------------------------------------------------


@ONCE
@scenario
async def test_a_wait_ends_with_a_message_of_any_topic(face: Face, real_address: str, topic: str) -> None:
    topics = [f"{topic}-{number}" for number in range(3)]
    for each in topics:
        await fill(face, real_address, each)
    got: list[Any] = []

    async def wait() -> None:
        async with face.PopConsumer(real_address, group=topic, topics=topics) as consumer:
            for _ in topics:
                got.extend(await consumer.receive(wait_s=20.0))
            await consumer.ack(got)

    async def send() -> None:
        for number, each in enumerate(topics):
            async with face.Producer(real_address) as producer:
                await producer.send(Message(each, b"x"))
            await face.until(lambda number=number: len(got) > number)  # type: ignore[misc]

    started_at = time.monotonic()
    await face.together(wait, send)
    assert [message.topic for message in got] == topics
    assert time.monotonic() - started_at < 3.0


@pytest.mark.parametrize("filters", [{"tags": "paid || refunded"}, {"sql": "TAGS = 'paid' OR TAGS = 'refunded'"}])
@scenario
async def test_filters(face: Face, real_address: str, topic: str, filters: dict[str, str]) -> None:
    await fill(face, real_address, topic)
    async with face.Producer(real_address) as producer:
        for tag in ("paid", "open", "refunded", None):
            await producer.send(Message(topic, (tag or "none").encode(), tag=tag), queue_id=0)
    async with face.PopConsumer(real_address, group=topic, topic=topic, **filters) as consumer:
        messages = await receive(consumer, 2)
        assert [message.body for message in messages] == [b"paid", b"refunded"]
        await consumer.ack(messages)


@ONCE
@scenario
async def test_a_missing_topic_is_waited_for(face: Face, real_address: str, topic: str) -> None:
    async with face.PopConsumer(real_address, group=topic, topic=topic, wait_for_topic=False) as consumer:
        with pytest.raises(TopicNotFound):
            await consumer.receive(wait_s=1.0)

    async def wait() -> None:
        async with face.PopConsumer(real_address, group=topic, topic=topic) as consumer:
            assert await consumer.receive(wait_s=0.1) == []
            (message,) = await consumer.receive(wait_s=10.0)
            await message.ack()

    async def create() -> None:
        await face.sleep(0.3)
        await fill(face, real_address, topic, b"a")

    await face.together(wait, create)


@scenario
async def test_a_late_group_begins_where_it_asks_to(face: Face, real_address: str, topic: str) -> None:
    await fill(face, real_address, topic, b"a", b"b")
    starts: dict[str, Any] = {"all": "earliest", "offset": 1, "time": datetime(2020, 1, 1, tzinfo=UTC), "new": "latest"}
    found: dict[str, list[bytes]] = {}
    for name, start in starts.items():
        async with face.PopConsumer(real_address, group=f"{topic}-{name}", topic=topic, start=start) as consumer:
            found[name] = [message.body for message in await consumer.receive(wait_s=0.0)]
    assert found == {"all": [b"a", b"b"], "offset": [b"b"], "time": [b"a", b"b"], "new": []}
    async with face.Producer(real_address) as producer:
        await producer.send(Message(topic, b"c"), queue_id=0)
    for name in starts:
        async with face.PopConsumer(real_address, group=f"{topic}-{name}", topic=topic) as consumer:
            assert [message.body for message in await consumer.receive()] == [b"c"], "the group has offsets"


@scenario
async def test_stop_ends_a_wait(face: Face, real_address: str, topic: str) -> None:
    await fill(face, real_address, topic)
    async with face.PopConsumer(real_address, group=topic, topic=topic) as consumer:

        async def wait() -> None:
            assert await consumer.receive(wait_s=60.0) == []

        async def stop() -> None:
            await face.sleep(0.3)
            consumer.stop()

        await face.together(wait, stop)
        assert consumer.stopped
        assert await consumer.receive(wait_s=60.0) == []
    assert consumer.closed
    with pytest.raises(ClientClosed):
        await consumer.receive()


def test_wrong_arguments(face: Face, real_address: str) -> None:
    for arguments in ({}, {"topic": "t", "topics": ["t"]}, {"topic": "t", "start": "now"}, {"topic": "a b"}):
        with pytest.raises(ValueError, match=r"topic|start"):
            face.PopConsumer(real_address, group="g", **arguments)


@scenario
async def test_wrong_times_and_counts(face: Face, real_address: str, topic: str) -> None:
    async def handle(message: Any) -> None: ...

    async with face.PopConsumer(real_address, group=topic, topic=topic) as consumer:
        for arguments in ({"invisible_s": 0.0}, {"invisible_s": math.inf}, {"max_messages": 0}, {"wait_s": -1.0}):
            with pytest.raises(ValueError, match=next(iter(arguments))):
                await consumer.receive(**arguments)
        for arguments in ({"invisible_s": 0.0}, {"concurrency": 0}):
            with pytest.raises(ValueError, match=next(iter(arguments))):
                await consumer.run(handle, **arguments)


# -- in order ----------------------------------------------------------------------------------------------------------


@scenario
async def test_in_order_a_queue_waits_for_its_acknowledgements(face: Face, real_address: str, topic: str) -> None:
    await fill(face, real_address, topic, b"a", b"b", b"c")
    async with (
        face.PopConsumer(real_address, group=topic, topic=topic, orderly=True) as one,
        face.PopConsumer(real_address, group=topic, topic=topic, orderly=True) as other,
    ):
        first, second = await one.receive(2, invisible_s=LONG_S)
        assert (first.body, second.body) == (b"a", b"b")
        assert await other.receive(wait_s=0.2) == []
        await first.ack()
        assert await other.receive(wait_s=0.2) == []
        await second.nack()
        again = await other.receive(1, wait_s=5.0, invisible_s=LONG_S)
        assert [(m.body, m.delivery_attempt) for m in again] == [(b"b", 2)]
        await again[0].extend(LONG_S)
        assert await one.receive(wait_s=0.2) == []
        await other.ack(again)
        (last,) = await one.receive(wait_s=5.0)
        assert last.body == b"c"
        await last.ack()


@scenario
async def test_the_setting_of_the_group_says_whether_it_is_in_order(face: Face, real_address: str, topic: str) -> None:
    async with face.Admin(real_address) as admin:
        await admin.put_group(SubscriptionGroupConfig(topic, consume_message_orderly=True))
    async with face.PopConsumer(real_address, group=topic, topic=topic) as consumer:
        assert consumer.orderly
    async with face.PopConsumer(real_address, group=topic, topic=topic, orderly=False) as consumer:
        assert not consumer.orderly


@scenario
async def test_run_in_order_repeats_a_message_before_those_after_it(face: Face, real_address: str, topic: str) -> None:
    await fill(face, real_address, topic, b"0", b"1", b"2", b"3")
    seen: list[bytes] = []

    async def handle(message: Any) -> None:
        seen.append(message.body)
        if message.body == b"1" and seen.count(b"1") < 3:
            raise ValueError

    policy = GiveBack(after_s=0.05)
    async with face.PopConsumer(real_address, group=topic, topic=topic, orderly=True, on_failure=policy) as consumer:
        await run(face, consumer, handle, lambda: len(seen) == 6, concurrency=3)
    assert seen == [b"0", b"1", b"1", b"1", b"2", b"3"]
    async with face.PopConsumer(real_address, group=topic, topic=topic, orderly=True) as consumer:
        assert await consumer.receive(wait_s=0.2) == [], "all are acknowledged"


# -- run ---------------------------------------------------------------------------------------------------------------


@scenario
async def test_run_acknowledges_what_its_handler_returns_from(face: Face, real_address: str, topic: str) -> None:
    bodies = [b"%d" % number for number in range(40)]
    await fill(face, real_address, topic, *bodies)
    invisible_s = 1.0  # extended as long as it is in hand
    wait_s = 1.3
    groups = {f"{topic}-{concurrency}": concurrency for concurrency in (1, 4)}
    for group, concurrency in groups.items():
        seen: list[bytes] = []

        async def handle(message: Any, seen: list[bytes] = seen) -> None:
            seen.append(message.body)

        async with face.PopConsumer(real_address, group=group, topic=topic) as consumer:
            await run(
                face,
                consumer,
                handle,
                lambda seen=seen: len(seen) == 40,  # type: ignore[misc]
                concurrency=concurrency,
                invisible_s=invisible_s,
            )
        assert sorted(seen) == sorted(bodies)
    for group in groups:
        async with face.PopConsumer(real_address, group=group, topic=topic) as consumer:
            assert await consumer.receive(wait_s=wait_s) == []
        wait_s = 0.0


@ONCE
@scenario
async def test_the_time_of_a_message_is_extended_while_its_handler_runs(
    face: Face, real_address: str, topic: str
) -> None:
    await fill(face, real_address, topic, b"a", b"b")
    seen: list[tuple[bytes, int]] = []

    async def handle(message: Any) -> None:
        seen.append((message.body, message.delivery_attempt))
        await face.sleep(1.5 * EXTENDED_S)

    async with face.PopConsumer(real_address, group=topic, topic=topic) as consumer:
        await run(face, consumer, handle, lambda: len(seen) == 2, concurrency=2, invisible_s=EXTENDED_S)
        assert sorted(seen) == [(b"a", 1), (b"b", 1)]
    async with face.PopConsumer(real_address, group=topic, topic=topic) as other:
        assert await other.receive(wait_s=0.0) == []


@ONCE
@scenario
async def test_a_message_whose_handler_raises_comes_again_after_a_delay(
    face: Face, real_address: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "reput_client")
    await fill(face, real_address, topic, b"bad", b"good")
    seen: list[tuple[bytes, int, float]] = []

    async def handle(message: Any) -> None:
        seen.append((message.body, message.delivery_attempt, time.monotonic()))
        if message.body == b"bad":
            raise LookupError("no such order")

    policy = GiveBack(delay_level=1, attempts_max=1)
    async with face.PopConsumer(real_address, group=topic, topic=topic, on_failure=policy) as consumer:
        await run(face, consumer, handle, lambda: len(seen) == 3)
    assert [one[:2] for one in seen] == [(b"bad", 1), (b"good", 1), (b"bad", 2)]
    assert seen[2][2] - seen[0][2] > 0.9
    assert "returned to the broker" in caplog.text
    async with face.PopConsumer(real_address, group=f"{topic}-2", topic=f"%DLQ%{topic}") as consumer:
        (dead,) = await receive(consumer, 1)
        assert dead.properties["RETRY_REASON"] == "LookupError: no such order"


@scenario
async def test_a_message_can_be_repeated_here(face: Face, real_address: str, topic: str) -> None:
    await fill(face, real_address, topic, b"a", b"b")
    seen: list[tuple[bytes, int]] = []

    async def handle(message: Any) -> None:
        seen.append((message.body, message.delivery_attempt))
        if seen.count((b"a", 1)) < 3 and message.body == b"a":
            raise ValueError

    policy = RetryHere(after_s=0.1)
    async with face.PopConsumer(real_address, group=topic, topic=topic, on_failure=policy) as consumer:
        await run(face, consumer, handle, lambda: len(seen) == 4)
    assert seen == [(b"a", 1), (b"b", 1), (b"a", 1), (b"a", 1)]


@pytest.mark.parametrize("concurrency", [1, 2])
@scenario
async def test_what_run_has_in_hand_when_it_ends_comes_again_at_once(
    face: Face, real_address: str, topic: str, concurrency: int
) -> None:
    await fill(face, real_address, topic, *[b"%d" % number for number in range(20)])
    seen: list[bytes] = []

    async def handle(message: Any) -> None:
        seen.append(message.body)
        if len(seen) == 5:
            raise KeyError("the end")

    policy = StopRunning()
    async with face.PopConsumer(real_address, group=topic, topic=topic, on_failure=policy) as consumer:
        with pytest.raises((KeyError, ExceptionGroup)):
            await consumer.run(handle, concurrency=concurrency)
        rest = await receive(consumer, 20 - len(seen) + 1, wait_s=5.0)
        assert seen[4] in {message.body for message in rest}


@scenario
async def test_a_handler_may_settle_its_message_itself(face: Face, real_address: str, topic: str) -> None:
    await fill(face, real_address, topic, b"ack", b"nack", b"reject")
    seen: list[tuple[bytes, int]] = []

    async def handle(message: Any) -> None:
        seen.append((message.body, message.delivery_attempt))
        if message.delivery_attempt == 1:
            await getattr(message, message.body.decode())()

    async with face.PopConsumer(real_address, group=topic, topic=topic) as consumer:
        await run(face, consumer, handle, lambda: len(seen) == 4)
    assert seen == [(b"ack", 1), (b"nack", 1), (b"reject", 1), (b"nack", 2)]


@scenario
async def test_closing_ends_run_and_gives_back(face: Face, real_address: str, topic: str) -> None:
    await fill(face, real_address, topic, b"a")
    started: list[bytes] = []
    consumer = face.PopConsumer(real_address, group=topic, topic=topic)

    async def work() -> None:
        async def handle(message: Any) -> None:
            started.append(message.body)
            await face.sleep(0.3)

        await consumer.run(handle)

    async def close() -> None:
        await face.until(lambda: bool(started))
        await consumer.aclose()

    async with consumer:
        await face.together(work, close)
    async with face.PopConsumer(real_address, group=topic, topic=topic) as other:
        (message,) = await receive(other, 1)
        assert message.delivery_attempt == 2


@pytest.fixture
def taking(real_address: str, topic: str) -> Iterator[tuple[Any, Any]]:
    """A consumer of two messages, and what takes them one by one."""
    with blocking.Admin(real_address) as admin:
        admin.create_topic(topic, queues=1)
    with blocking.Producer(real_address) as producer:
        producer.send_batch([Message(topic, b"a"), Message(topic, b"b")])
    with blocking.PopConsumer(real_address, group=topic, topic=topic) as consumer:
        yield consumer, BlockingRun(consumer, 2, LONG_S, ahead=False)


def test_what_a_failed_request_has_not_given_back_is_given_back_later(
    real_address: str, topic: str, taking: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, taken_by = taking
    assert taken_by.take().body == b"a"
    settling = consumer._client._settling
    change, failures = settling.change, [RequestTimeout("changing a time", 1.0)]

    async def fails_once(*args: Any, **options: Any) -> None:
        if failures:
            raise failures.pop()
        await change(*args, **options)

    monkeypatch.setattr(settling, "change", fails_once)
    taken_by.stop()
    taken_by.give_back_waiting()
    with blocking.PopConsumer(real_address, group=topic, topic=topic) as other:
        assert [message.body for message in other.receive(wait_s=10.0)] == [b"b"]
    assert not failures
    taken_by.finish()


def test_a_forked_child_ends_its_parents_run_at_once_and_gives_nothing_back(
    real_address: str, topic: str, taking: tuple[Any, Any]
) -> None:
    consumer, taken_by = taking
    assert taken_by.take().body == b"a"
    child = os.fork()
    if not child:
        signal.alarm(10)
        taken_by.finish()
        consumer.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with blocking.PopConsumer(real_address, group=topic, topic=topic) as other:
        assert other.receive(wait_s=0.5) == []
    taken_by.finish()
