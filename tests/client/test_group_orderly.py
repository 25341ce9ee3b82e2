"""Consuming in order: locks, one message of a queue at a time, suspension; with every API."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from reput_client import Message
from reput_client.consume.group import handover
from reput_client.consume.group.failures import RetryHere
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.record.message import MessageQueue
from support.faces import Face, scenario
from support.fakes import Answer, FakeBroker

LOCK = RequestCode.LOCK_BATCH_MQ
FIRST = "0.0.0.0@0#0"


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(queues=4) as broker:
        yield broker


async def fill(face: Face, broker: FakeBroker, count: int) -> None:
    async with face.Producer(broker.address) as producer:
        for queue_id in range(broker.queues):
            await producer.send_batch([Message("t", b"%d" % n) for n in range(count)], queue_id=queue_id)


def own_queues(consumer: Any) -> list[int]:
    return [queue.queue_id for queue in consumer.assignment if queue.topic == "t"]


def lock_of(broker: FakeBroker, queue_id: int) -> str:
    return broker.groups.locks.get(("g", MessageQueue("t", "fake", queue_id)), ("", 0.0))[0]


@scenario
async def test_queues_are_locked_before_they_are_read_and_freed_at_the_end(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, 1)
    async with face.Consumer(broker.address, group="g", topic="t", orderly=True) as consumer:
        assert [lock_of(broker, q) for q in range(4)] == [consumer.client_id] * 4
        for _ in range(4):
            await consumer.receive(5.0)
    assert not broker.groups.locks
    codes = [header.code for header in broker.requests]
    assert codes.index(LOCK) < codes.index(RequestCode.QUERY_CONSUMER_OFFSET)
    assert codes.index(LOCK) < codes.index(RequestCode.PULL_MESSAGE)
    unlock = codes.index(RequestCode.UNLOCK_BATCH_MQ)
    assert RequestCode.UPDATE_CONSUMER_OFFSET not in codes[unlock:], "the next owner reads what is committed"


@scenario
async def test_of_each_queue_one_message_at_a_time(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, 3)
    async with face.Consumer(broker.address, group="g", topic="t", orderly=True) as consumer:
        first = [await consumer.take(5.0) for _ in range(4)]
        assert sorted(message.queue_id for message in first) == [0, 1, 2, 3]
        assert await consumer.take(0.1) is None, "each queue has one in flight"
        first[2].ack()
        second = await consumer.take(5.0)
        assert (second.queue_id, second.queue_offset) == (first[2].queue_id, 1)
        assert await consumer.take(0.1) is None


@scenario
async def test_handlers_side_by_side_keep_the_order_of_each_queue(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, 20)
    seen: dict[int, list[int]] = defaultdict(list)
    busy: set[int] = set()
    consumer = face.Consumer(broker.address, group="g", topic="t", orderly=True)
    await consumer.__aenter__()

    async def handle(message: Any) -> None:
        assert message.queue_id not in busy
        busy.add(message.queue_id)
        await face.sleep(0.001)
        seen[message.queue_id].append(message.queue_offset)
        busy.discard(message.queue_id)

    async def run() -> None:
        await consumer.run(handle, concurrency=8)

    async def stop() -> None:
        await face.until(lambda: sum(map(len, seen.values())) == 80)
        await consumer.aclose()

    await face.together(run, stop)
    assert seen == {queue_id: list(range(20)) for queue_id in range(4)}


@scenario
async def test_a_message_that_fails_suspends_its_queue_and_comes_first_again(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, 3)
    seen: list[tuple[int, int]] = []
    failures = 0
    consumer = face.Consumer(
        broker.address, group="g", topic="t", orderly=True, on_failure=RetryHere(0.05, attempts_max=5)
    )
    await consumer.__aenter__()

    async def handle(message: Any) -> None:
        nonlocal failures
        if (message.queue_id, message.queue_offset) == (1, 1) and failures < 3:
            failures += 1
            raise KeyError(failures)
        seen.append((message.queue_id, message.queue_offset))

    async def run() -> None:
        await consumer.run(handle)

    async def stop() -> None:
        await face.until(lambda: len(seen) == 12)
        await consumer.aclose()

    await face.together(run, stop)
    assert [offset for queue_id, offset in seen if queue_id == 1] == [0, 1, 2]
    assert failures == 3
    assert seen.index((1, 1)) > max(seen.index((q, 2)) for q in (0, 2, 3)), "the others went on"
    assert broker.committed["g", "t", 1] == 3


@scenario
async def test_a_handler_that_fails_too_often_ends_run(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, 1)
    attempts = []

    async def handle(message: Any) -> None:
        if message.queue_id == 2:
            attempts.append(message.queue_offset)
            raise KeyError("never")

    async with face.Consumer(
        broker.address, group="g", topic="t", orderly=True, on_failure=RetryHere(0.01, attempts_max=3)
    ) as consumer:
        with pytest.raises(KeyError, match="never"):
            await consumer.run(handle)
        await consumer.commit()
    assert attempts == [0, 0, 0]
    assert broker.committed["g", "t", 2] == 0


@scenario
async def test_another_member_waits_until_what_is_in_flight_is_done(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, 2)
    async with face.Consumer(broker.address, group="g", topic="t", orderly=True) as old:
        in_hand = [await old.take(5.0) for _ in range(4)]
        async with face.Consumer(broker.address, group="g", topic="t", orderly=True) as new:
            await face.until(lambda: own_queues(old) == [0, 1])
            assert own_queues(new) == [], "their messages are still being handled"
            for message in in_hand:
                message.ack()
            await face.until(lambda: own_queues(new) == [2, 3])
            got = [await new.receive(5.0) for _ in range(2)]
            assert sorted((m.queue_id, m.queue_offset) for m in got) == [(2, 1), (3, 1)]


@scenario
async def test_a_queue_whose_lock_went_to_another_is_left_alone(
    face: Face, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "RENEW_INTERVAL_S", 0.05)

    await fill(face, broker, 5)
    async with face.Consumer(broker.address, group="g", topic="t", orderly=True) as consumer:
        thief = broker.groups.add_stranger("other", FIRST)
        queue = MessageQueue("t", "fake", 1)
        owner = broker.groups.locks["g", queue]
        broker.groups.locks["g", queue] = (FIRST, owner[1])
        await face.until(lambda: own_queues(consumer) == [0, 2, 3])
        got = {(m.queue_id, m.queue_offset) for m in [await consumer.receive(5.0) for _ in range(15)]}
        assert {queue_id for queue_id, _ in got} == {0, 2, 3}
        broker.committed["g", "t", 1] = 3  # the other member has handled three
        del broker.groups.locks["g", queue]
        rest = [await consumer.receive(5.0) for _ in range(2)]
        assert [(m.queue_id, m.queue_offset) for m in rest] == [(1, 3), (1, 4)]
        broker.groups.gone(thief)


@scenario
async def test_without_a_confirmed_lock_nothing_is_handed_out(
    face: Face, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "RENEW_INTERVAL_S", 0.1)
    monkeypatch.setattr(handover, "TRUSTED_S", 0.3)

    await fill(face, broker, 50)
    async with face.Consumer(broker.address, group="g", topic="t", orderly=True) as consumer:
        assert await consumer.receive(5.0) is not None
        broker.behave(LOCK, Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: not now"))
        handed_out = 0
        while (await consumer.receive(0.6)) is not None:
            handed_out += 1
            await face.sleep(0.01)
            assert handed_out < 190
        broker.behave(LOCK, None)
        assert await consumer.receive(5.0) is not None


@scenario
async def test_a_queue_stays_locked_when_its_consumer_is_closed_while_a_message_is_in_hand(
    face: Face, broker: FakeBroker
) -> None:
    """Unregistering would free all locks of the member, so it does not."""

    await fill(face, broker, 1)
    consumer = face.Consumer(broker.address, group="g", topic="t", orderly=True)
    await consumer.__aenter__()
    messages = [await consumer.take(5.0) for _ in range(4)]
    for message in messages[1:]:
        message.ack()
    await consumer.aclose()
    locked = [queue.queue_id for _, queue in broker.groups.locks if queue.topic == "t"]
    assert locked == [messages[0].queue_id]
    assert RequestCode.UNREGISTER_CLIENT not in [header.code for header in broker.requests]
    assert [broker.committed.get(("g", "t", m.queue_id)) for m in messages] == [0, 1, 1, 1]


@scenario
async def test_a_loop_that_raises_frees_the_lock_of_its_message(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, 1)
    consumer = face.Consumer(broker.address, group="g", topic="t", orderly=True)
    await consumer.__aenter__()
    message = await consumer.receive(5.0)
    error = KeyError(message.queue_id)
    await consumer.__aexit__(KeyError, error, None)
    assert not broker.groups.locks
    assert broker.committed["g", "t", message.queue_id] == 0
    assert RequestCode.UNREGISTER_CLIENT in [header.code for header in broker.requests]


@scenario
async def test_what_a_handler_has_in_hand_is_not_handled_because_another_task_leaves_the_block(
    face: Face, broker: FakeBroker
) -> None:

    await fill(face, broker, 1)
    consumer = face.Consumer(broker.address, group="g", topic="t", orderly=True)
    in_hand: list[int] = []
    left: list[bool] = []

    async def handle(message: Any) -> None:
        in_hand.append(message.queue_id)
        await face.until(lambda: bool(left))

    async def leave() -> None:
        await face.until(lambda: bool(in_hand))
        await consumer.__aexit__(None, None, None)
        left.append(True)

    await consumer.__aenter__()
    await face.together(lambda: consumer.run(handle), leave)
    assert broker.committed["g", "t", in_hand[0]] == 0
    assert [queue.queue_id for _, queue in broker.groups.locks if queue.topic == "t"] == in_hand
