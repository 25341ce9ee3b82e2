"""A member that seeks, pauses queues and takes several messages at a time, with every API, at a scripted broker."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from reput_client import Message, MessageQueue, RetryHere
from reput_client.errors import QueueNotAssigned
from reput_protocol.codes import RequestCode
from reput_protocol.wire.header import Header
from support.faces import Face, finish, scenario
from support.fakes import Answer, FakeBroker

Q0, Q1 = MessageQueue("t", "fake", 0), MessageQueue("t", "fake", 1)


async def fill(face: Face, broker: FakeBroker, *counts: int) -> None:
    """Put so many numbered messages into the queues."""
    async with face.Producer(broker.address) as producer:
        for queue_id, count in enumerate(counts):
            bodies = [b"%d-%d" % (queue_id, number) for number in range(count)]
            await producer.send_batch([Message("t", body) for body in bodies], queue_id=queue_id)


async def receive(consumer: Any, count: int) -> list[bytes]:
    return [(await consumer.receive(5.0)).body for _ in range(count)]


# -- several messages at a time --------------------------------------------------------------------------------


@scenario
async def test_what_has_arrived_is_received_together(face: Face, broker: FakeBroker) -> None:
    await fill(face, broker, 5)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        assert [m.body for m in await consumer.receive_many(3, 5.0)] == [b"0-0", b"0-1", b"0-2"]
        rest = await consumer.receive_many(100, 5.0)
        assert [m.body for m in rest] == [b"0-3", b"0-4"]
        assert await consumer.receive_many(100, 0.05) == []
        assert consumer.positions()[Q0] == 0, "none counts as handled before the application says so"
        with pytest.raises(ValueError, match="max_messages must be at least 1"):
            await consumer.receive_many(0, 1.0)
        consumer.stop()
        assert await consumer.receive_many(100, 5.0) == []


@scenario
async def test_in_order_a_queue_gives_one_message_at_a_time(face: Face, broker: FakeBroker) -> None:
    await fill(face, broker, 3, 3)
    async with face.Consumer(broker.address, group="g", topic="t", orderly=True) as consumer:
        got: list[bytes] = []
        while len(got) < 6:
            messages = await consumer.receive_many(100, 5.0)
            assert len({message.queue for message in messages}) == len(messages)
            for message in messages:
                got.append(message.body)
                message.ack()
    assert sorted(got) == [b"%d-%d" % (q, n) for q in range(2) for n in range(3)]


# -- seeking ---------------------------------------------------------------------------------------------------


@scenario
async def test_a_member_that_seeks_back_gets_the_messages_again_and_lowers_the_offset(
    face: Face, broker: FakeBroker
) -> None:
    await fill(face, broker, 5)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        assert await receive(consumer, 5) == [b"0-%d" % n for n in range(5)]
        await consumer.commit()
        assert broker.committed["g", "t", 0] == 5
        consumer.seek(Q0, 2)
        await face.until(lambda: broker.committed["g", "t", 0] == 2)
        assert await receive(consumer, 3) == [b"0-2", b"0-3", b"0-4"]
    assert broker.committed["g", "t", 0] == 5


@scenario
async def test_a_message_in_flight_does_not_count_after_a_seek_before_it(face: Face, broker: FakeBroker) -> None:
    await fill(face, broker, 4)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        taken = await consumer.receive_many(4, 5.0)
        consumer.seek(Q0, 2)
        for message in taken:
            message.ack()
        await consumer.commit()
        assert consumer.positions()[Q0] == broker.committed["g", "t", 0] == 2
        assert await receive(consumer, 2) == [b"0-2", b"0-3"]


@scenario
async def test_a_seek_forward_leaves_the_messages_between_out_and_keeps_those_in_flight(
    face: Face, broker: FakeBroker
) -> None:
    await fill(face, broker, 6)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        first = await consumer.take(5.0)
        consumer.seek(Q0, 4)
        later = await consumer.take(5.0)
        assert (first.body, later.body) == (b"0-0", b"0-4")
        later.ack()
        await consumer.commit()
        assert broker.committed["g", "t", 0] == 0, "the first one is not handled"
        first.ack()
        await consumer.commit()
        assert broker.committed["g", "t", 0] == 5


@scenario
async def test_a_loop_that_seeks_to_its_message_gets_it_again(face: Face, broker: FakeBroker) -> None:
    await fill(face, broker, 3)
    got: list[bytes] = []
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        async for message in consumer:
            got.append(message.body)
            if got == [b"0-0", b"0-1"]:
                consumer.seek(message.queue, message.queue_offset)
            if message.body == b"0-2":
                break
    assert got == [b"0-0", b"0-1", b"0-1", b"0-2"]
    assert broker.committed["g", "t", 0] == 3


@pytest.mark.parametrize("orderly", [False, True])
@scenario
async def test_the_ends_of_all_queues(face: Face, broker: FakeBroker, *, orderly: bool) -> None:
    await fill(face, broker, 3, 2)
    broker.store("%RETRY%g", b"again", RETRY_TOPIC="t")
    async with face.Consumer(broker.address, group="g", topic="t", orderly=orderly) as consumer:
        await consumer.seek_to_end()
        positions = consumer.positions()
        assert (positions[Q0], positions[Q1]) == (3, 2)
        retry = MessageQueue("%RETRY%g", "fake", 0)
        assert positions[retry] == 0, "messages that were given back are not skipped"
        assert await receive(consumer, 1) == [b"again"]
        await consumer.seek_to_beginning()
        assert sorted(await receive(consumer, 5)) == [b"0-0", b"0-1", b"0-2", b"1-0", b"1-1"]
        await consumer.seek_to_end(Q0)
        await consumer.seek_to_beginning(Q1)
        assert await receive(consumer, 2) == [b"1-0", b"1-1"]


@scenario
async def test_a_moment_is_looked_up_by_the_broker(face: Face, broker: FakeBroker) -> None:
    await fill(face, broker, 5)
    asked: list[tuple[Any, Any]] = []

    def search(header: Header, _: memoryview) -> Answer:
        asked.append((header.ext["queueId"], header.ext["timestamp"]))
        return Answer(ext={"offset": 3})

    broker.behave(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        await consumer.seek_to_time(datetime(2026, 1, 1, tzinfo=UTC), Q0)
        assert await receive(consumer, 2) == [b"0-3", b"0-4"]
        await consumer.seek_to_time(1_000)
    assert asked == [(0, 1_767_225_600_000), (0, 1_000), (1, 1_000)]


@scenario
async def test_a_seek_survives_a_lost_connection(face: Face, broker: FakeBroker) -> None:
    """The committed offset, still beyond the new position, is not another member's progress."""
    await fill(face, broker, 4)
    async with face.Consumer(broker.address, group="g", topic="t", commit_interval_s=60.0) as consumer:
        assert len(await receive(consumer, 4)) == 4
        await consumer.commit()
        broker.behave(RequestCode.UPDATE_CONSUMER_OFFSET, Answer(code=1, remark="not now"))
        consumer.seek(Q0, 1)
        broker.drop_connections()
        assert await receive(consumer, 3) == [b"0-1", b"0-2", b"0-3"]
        broker.behave(RequestCode.UPDATE_CONSUMER_OFFSET, None)


@scenario
async def test_another_member_continues_where_one_has_sought_to(face: Face, broker: FakeBroker) -> None:
    await fill(face, broker, 4)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        assert len(await receive(consumer, 4)) == 4
        consumer.seek(Q0, 1)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        assert await receive(consumer, 3) == [b"0-1", b"0-2", b"0-3"]


@scenario
async def test_the_lag_of_each_queue(face: Face, broker: FakeBroker) -> None:
    await fill(face, broker, 5, 2)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        lag = await consumer.lag()
        assert set(lag) == set(consumer.assignment)
        assert (lag[Q0], lag[Q1]) == (5, 2)
        consumer.pause(Q1)
        for message in (await consumer.receive_many(100, 5.0))[:3]:
            message.ack()
        assert (await consumer.lag())[Q0] == 2
        await consumer.seek_to_end()
        assert (await consumer.lag())[Q1] == 0


@scenario
async def test_a_queue_that_is_not_assigned_is_named(face: Face, broker: FakeBroker) -> None:
    await fill(face, broker, 1)
    other = MessageQueue("t", "fake", 7)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        for name, args in (("seek", (other, 0)), ("pause", (Q0, other)), ("resume", (other,))):
            with pytest.raises(QueueNotAssigned, match=r"not assigned to this member.*Consumer\.assignment"):
                getattr(consumer, name)(*args)
        for name, more in (("seek_to_time", (0,)), ("seek_to_beginning", ()), ("seek_to_end", ())):
            with pytest.raises(QueueNotAssigned):
                await getattr(consumer, name)(*more, other)
        assert consumer.paused == []
        with pytest.raises(ValueError, match="offsets start at 0"):
            consumer.seek(Q0, -1)


# -- pausing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orderly", [False, True])
@scenario
async def test_a_paused_queue_delivers_nothing_until_it_is_resumed(
    face: Face, broker: FakeBroker, *, orderly: bool
) -> None:
    await fill(face, broker, 3, 3)
    async with face.Consumer(broker.address, group="g", topic="t", orderly=orderly) as consumer:
        consumer.pause(Q0)
        assert consumer.paused == [Q0]
        assert await receive(consumer, 3) == [b"1-0", b"1-1", b"1-2"]
        assert await consumer.receive(0.1) is None
        assert Q0 in consumer.assignment
        consumer.resume(Q0)
        assert consumer.paused == []
        assert await receive(consumer, 3) == [b"0-0", b"0-1", b"0-2"]
    assert broker.committed["g", "t", 0] == 3


@scenario
async def test_what_was_prefetched_of_a_paused_queue_is_delivered_later_once(face: Face, broker: FakeBroker) -> None:
    await fill(face, broker, 50)
    got: list[bytes] = []
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        async for message in consumer:
            got.append(message.body)
            if len(got) == 10:
                consumer.pause()
                assert len(consumer.paused) == len(consumer.assignment)
                assert await consumer.receive(0.1) is None
                assert consumer.positions()[Q0] == 10, "the message before counts as handled"
                consumer.resume()
            if len(got) == 50:
                break
    assert got == [b"0-%d" % n for n in range(50)]


@pytest.mark.parametrize("orderly", [False, True])
@scenario
async def test_a_message_that_failed_waits_until_its_queue_is_resumed(
    face: Face, broker: FakeBroker, *, orderly: bool
) -> None:
    await fill(face, broker, 1)
    async with face.Consumer(
        broker.address, group="g", topic="t", orderly=orderly, on_failure=RetryHere(0.0)
    ) as consumer:
        message = await consumer.take(5.0)
        consumer.pause(Q0)
        await consumer.failed(message, ValueError("not yet"))
        assert await consumer.take(0.2) is None
        consumer.resume(Q0)
        assert (await consumer.take(5.0)).body == b"0-0"


@scenario
async def test_messages_in_flight_of_a_paused_queue_are_committed(face: Face, broker: FakeBroker) -> None:
    await fill(face, broker, 2)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        message = await consumer.take(5.0)
        consumer.pause(Q0)
        message.ack()
        await consumer.commit()
        assert broker.committed["g", "t", 0] == 1


# -- commits and changes of the assignment ---------------------------------------------------------------------


@scenario
async def test_offsets_of_the_applications_choice_are_committed(face: Face, broker: FakeBroker) -> None:
    await fill(face, broker, 5, 2)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        messages: list[Any] = []
        while len(messages) < 7:
            messages += await consumer.receive_many(7, 5.0)
        await consumer.commit({Q0: 3})
        assert (broker.committed["g", "t", 0], broker.committed["g", "t", 1]) == (3, 0)
        await consumer.commit({Q0: 3, Q1: 2})
        assert consumer.positions()[Q1] == broker.committed["g", "t", 1] == 2
        for wrong in (2, 6):
            with pytest.raises(ValueError, match=f"cannot commit offset {wrong} .*use seek"):
                await consumer.commit({Q1: 2, Q0: wrong})
        with pytest.raises(QueueNotAssigned):
            await consumer.commit({Q0: 5, MessageQueue("t", "fake", 7): 1})
        assert consumer.positions()[Q0] == 3, "a wrong call changes nothing"
        messages[0].ack()  # no effect
    assert broker.committed["g", "t", 0] == 3


@scenario
async def test_a_loop_commits_before_its_message_is_done(face: Face, broker: FakeBroker) -> None:
    await fill(face, broker, 5)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        assert await receive(consumer, 3) == [b"0-0", b"0-1", b"0-2"]
        await consumer.commit({Q0: 2})
        assert broker.committed["g", "t", 0] == 2
        await consumer.commit({Q0: 3})
        assert broker.committed["g", "t", 0] == 3
        assert await receive(consumer, 2) == [b"0-3", b"0-4"]


@pytest.mark.parametrize("orderly", [False, True])
@scenario
async def test_the_application_hears_of_its_queues_in_time(face: Face, broker: FakeBroker, *, orderly: bool) -> None:
    """It may seek before the first message is delivered, and acknowledge before the last commit."""
    await fill(face, broker, 4, 4)
    calls: list[tuple[str, list[int]]] = []
    held: list[Any] = []

    def of_topic(queues: list[MessageQueue]) -> list[int]:
        return [queue.queue_id for queue in queues if queue.topic == "t"]

    def assigned(queues: list[MessageQueue]) -> None:
        calls.append(("assigned", of_topic(queues)))
        for queue in queues:
            if queue.topic == "t" and not held:
                consumer.seek(queue, 2)

    def revoked(queues: list[MessageQueue]) -> None:
        calls.append(("revoked", of_topic(queues)))
        for message in held:
            if message.queue in queues:
                message.ack()

    consumer = face.Consumer(
        broker.address, group="g", topic="t", orderly=orderly, on_assigned=assigned, on_revoked=revoked
    )
    async with consumer:
        assert calls == [("assigned", [0, 1])]
        while len(held) < 2:
            held += await consumer.receive_many(1, 5.0)
            consumer.pause(held[-1].queue)
        assert sorted(message.body for message in held) == [b"0-2", b"1-2"]
        if not orderly:
            stranger = broker.groups.add_stranger("g", "zzz@0#0")
            await face.until(lambda: calls[-1] == ("revoked", [1]))
            await face.until(lambda: broker.committed.get(("g", "t", 1)) == 3)
            broker.groups.gone(stranger)
            await face.until(lambda: calls[-1] == ("assigned", [1]))
    assert calls[-1] == ("revoked", [0, 1])
    assert [broker.committed["g", "t", queue_id] for queue_id in (0, 1)] == [3, 3]


@scenario
async def test_a_callback_that_raises_is_logged(
    face: Face, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(face, broker, 1)

    def assigned(_: list[MessageQueue]) -> None:
        raise LookupError("not a good moment")

    async with face.Consumer(broker.address, group="g", topic="t", on_assigned=assigned) as consumer:
        assert await receive(consumer, 1) == [b"0-0"]
    assert "not a good moment" in caplog.text


@scenario
async def test_a_callback_may_wait(face: Face, broker: FakeBroker) -> None:
    await fill(face, broker, 3)

    async def assigned(queues: list[MessageQueue]) -> None:
        for queue in queues:
            await consumer.seek_to_end(queue)

    blocking = (lambda queues: finish(assigned(queues))) if face.is_blocking else assigned
    consumer = face.Consumer(broker.address, group="g", topic="t", on_assigned=blocking)
    async with consumer:
        assert consumer.positions()[Q0] == 3
        assert await consumer.receive(0.1) is None
