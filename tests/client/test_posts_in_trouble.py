"""`post` when brokers die, hang, refuse or forget: every message has its outcome, and no call waits forever."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

import pytest

from reput_client import Message, PostsFailed
from reput_client.errors import ConnectFailed, RequestTimeout, SendOutcomeUnknown
from reput_client.transport.backoff import Backoff
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.topic import BrokerData, QueueData, TopicRoute
from reput_protocol.record.record import decode_record
from support.faces import Face, scenario
from support.fakes import HANG_UP, SILENCE, Answer, FakeBroker

PUT = RequestCode.PUT_MESSAGE
BUSY = Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: later")


async def outcome(face: Face, posted: Any) -> Any:
    return posted.result() if face.is_blocking else await posted


def quick() -> Backoff:
    return Backoff(0.01, 0.02)


def bodies_of(broker: FakeBroker, queue_id: int = 0) -> list[bytes]:
    return [decode_record(data).body for data in broker.log["t", queue_id]]


@scenario
async def test_a_lost_connection_leaves_no_message_without_an_outcome(face: Face, broker: FakeBroker) -> None:

    broker.behave(PUT, HANG_UP)
    async with face.Producer(broker.address, timeout_s=2.0, retries=0) as producer:
        posted = [await producer.post(Message("t", b"x"), queue_id=0) for _ in range(3)]
        with pytest.raises(PostsFailed):
            await producer.flush()
        errors = [each.error for each in posted]
        assert all(isinstance(error, SendOutcomeUnknown) for error in errors)
        assert len({error.message_ids[0] for error in errors}) == 3
        assert broker.count(PUT) == 1
        broker.behave(PUT, None)
        await outcome(face, await producer.post(Message("t", b"again")))


@scenario
async def test_what_has_not_left_waits_for_the_broker_to_come_back(face: Face, broker: FakeBroker) -> None:

    async with face.Producer(broker.address, linger_s=0.01, batch_bytes=400) as producer:
        await outcome(face, await producer.post(Message("t", b"first"), queue_id=0))
        broker.stop()
        posted = [await producer.post(Message("t", b"%d" % number), queue_id=0) for number in range(9)]
        await face.sleep(0.1)
        assert not any(each.done for each in posted)
        broker.restart()
        results = [await outcome(face, each) for each in posted]
        assert [result.queue_offset for result in results] == list(range(1, 10))
        assert bodies_of(broker) == [b"first", *(b"%d" % number for number in range(9))]


@scenario
async def test_what_has_left_in_part_only_is_sent_again(face: Face) -> None:
    with FakeBroker(receive_buffer=64 * 1024) as broker:

        def hang_up(_header: Any, _body: memoryview) -> Answer:
            broker.behave(PUT, None)
            broker.wait_unread()
            return HANG_UP

        broker.behave(PUT, hang_up)
        async with face.Producer(broker.address, linger_s=30.0, batch_bytes=8 << 20, retries=0) as producer:
            # A message of another ack level ends the open block, which is sent at once.
            first = await producer.post(Message("t", b"x"), queue_id=0, ack="page_cache")
            # More than the operating system buffers.
            large = [await producer.post(Message("t", bytes(3_900_000)), queue_id=0) for _ in range(2)]
            await producer.post(Message("t", b"x"), queue_id=0, ack="page_cache")
            assert [(await outcome(face, each)).queue_offset for each in large] == [0, 1]
            assert isinstance(first.error, SendOutcomeUnknown)
            assert broker.count(PUT) == 2


@scenario
async def test_what_nobody_answers_fails_in_time(face: Face, broker: FakeBroker) -> None:

    async with face.Producer(broker.address, timeout_s=0.2, new_backoff=quick) as producer:
        await outcome(face, await producer.post(Message("t", b"x")))
        broker.behave(PUT, SILENCE)
        with pytest.raises(SendOutcomeUnknown, match="no response within"):
            await outcome(face, await producer.post(Message("t", b"x")))
        broker.stop()
        with pytest.raises((ConnectFailed, SendOutcomeUnknown)):
            await outcome(face, await producer.post(Message("t", b"x")))
        with pytest.raises(ConnectFailed, match="refused"):
            await outcome(face, await producer.post(Message("t", b"x")))
        broker.restart()
        broker.behave(PUT, None)
        await outcome(face, await producer.post(Message("t", b"x")))


@scenario
async def test_who_is_not_answered_does_not_live_on_the_answers_of_others(face: Face, broker: FakeBroker) -> None:
    def put(header: Any, body: memoryview) -> Answer:
        return SILENCE if b"unheard" in bytes(body) else broker.put(header, body)

    broker.behave(PUT, put)
    async with face.Producer(broker.address, timeout_s=0.3, batch_bytes=300, retries=0) as producer:
        unheard = await producer.post(Message("t", b"unheard" * 50))
        for _ in range(200):
            await outcome(face, await producer.post(Message("t", b"x")))
            if unheard.done:
                break
        assert isinstance(unheard.error, SendOutcomeUnknown)


@scenario
async def test_retries_keep_the_order_of_a_queue(face: Face, broker: FakeBroker) -> None:
    answers = [BUSY, HANG_UP, BUSY]

    def put(header: Any, body: memoryview) -> Answer:
        return answers.pop() if answers else broker.put(header, body)

    broker.behave(PUT, put)
    async with face.Producer(broker.address, retries=3, batch_bytes=400) as producer:
        posted = [await producer.post(Message("t", b"%d" % number), queue_id=0) for number in range(30)]
        await producer.flush()
    assert [each.result().queue_offset for each in posted] == list(range(30))
    assert bodies_of(broker) == [b"%d" % number for number in range(30)]


@scenario
async def test_what_was_repeated_in_vain_may_be_stored(face: Face, broker: FakeBroker) -> None:
    answers = [BUSY, HANG_UP]

    broker.behave(PUT, lambda _header, _body: answers.pop() if answers else BUSY)
    async with face.Producer(broker.address, retries=2) as producer:
        with pytest.raises(SendOutcomeUnknown):
            await outcome(face, await producer.post(Message("t", b"x")))
        assert broker.count(PUT) == 3


@scenario
async def test_deduplicated_posts_are_stored_once(face: Face, broker: FakeBroker) -> None:
    seen: dict[bytes, Answer] = {}

    def put(header: Any, body: memoryview) -> Answer:
        block = bytes(body)
        if block in seen:
            assert header.ext["dedup"] == "check"
            return seen[block]
        seen[block] = broker.put(header, body)
        return HANG_UP if len(seen) % 3 == 0 else seen[block]

    broker.behave(PUT, put)
    options = {"retries": 5, "deduplicate": True, "batch_bytes": 2_000}
    async with face.Producer(broker.address, **options) as producer:
        posted = [await producer.post(Message("t", b"%d" % number), queue_id=0) for number in range(200)]
        await producer.flush()
    assert [each.result().queue_offset for each in posted] == list(range(200))
    assert bodies_of(broker) == [b"%d" % number for number in range(200)]


def two_brokers(broker: FakeBroker, other: str) -> None:
    """Announce both brokers, each with two queues of every topic."""
    route = TopicRoute(
        queue_datas=[QueueData("fake", 2, 2, 6, 0), QueueData("other", 2, 2, 6, 0)],
        broker_datas=[BrokerData("c", "fake", {0: broker.address}), BrokerData("c", "other", {0: other})],
    )
    broker.behave(RequestCode.GET_ROUTEINFO_BY_TOPIC, Answer(body=route.to_json()))


@scenario
async def test_a_dead_broker_holds_up_none_of_the_others(face: Face, broker: FakeBroker) -> None:

    with FakeBroker() as other:
        two_brokers(broker, other.address)
        other.stop()
        options = {"timeout_s": 1.0, "batch_bytes": 2_000, "buffer_bytes": 40_000, "new_backoff": quick}
        async with face.Producer(broker.address, **options) as producer:
            # By key, some to the dead broker; and more to any queue than may be held.
            keyed = [await producer.post(Message("t", b"x"), ordering_key=f"{number}") for number in range(16)]
            posted = [await producer.post(Message("t", bytes(300))) for _ in range(400)]
            with pytest.raises(PostsFailed) as caught:
                await producer.flush()
            failed = caught.value.failed
            assert {type(each.error) for each in failed} == {ConnectFailed}
            assert 0 < sum(each in failed for each in keyed) < 16
            # At most one block for each queue of the dead broker; others avoid it.
            assert sum(each in failed for each in posted) <= 2 * 6
            other.restart()
            again = [await producer.post(Message("t", b"x"), ordering_key=f"{number}") for number in range(16)]
            await producer.flush()
            assert {each.result().queue_id for each in again} == {0, 1}
            assert other.log


@scenario
async def test_a_broker_that_takes_no_connection_holds_up_none_of_the_others(face: Face, broker: FakeBroker) -> None:

    with contextlib.ExitStack() as sockets:
        deaf = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(2):  # fill its backlog, so that further clients get no answer
            filler = sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        two_brokers(broker, f"127.0.0.1:{deaf.getsockname()[1]}")
        ended: list[bool] = []

        class Counting(Backoff):
            def next_delay_s(self) -> float:
                ended.append(True)
                return 0.01

        options = {"timeout_s": 1.0, "connect_timeout_s": 0.4, "new_backoff": Counting}
        async with face.Producer(broker.address, linger_s=0.001, **options) as producer:
            posted = [await producer.post(Message("t", b"x"), ordering_key=f"{number}") for number in range(16)]
            if not face.is_blocking:  # there each attempt delays the caller, as documented
                await face.until(lambda: any(each.done for each in posted))
                assert not ended
            with pytest.raises(PostsFailed) as caught:
                await producer.flush()
            assert 0 < sum(each in caught.value.failed for each in posted) < 16
            assert {type(each.error) for each in caught.value.failed} == {ConnectFailed}


@scenario
async def test_what_never_leaves_whole_fails_in_time(face: Face, broker: FakeBroker) -> None:
    """The other broker closes every connection in the middle of the frame, which is sent again each time."""

    def hang_up(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.recv(1000)
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as rude:
        threading.Thread(target=hang_up, args=(rude,), daemon=True).start()
        two_brokers(broker, f"127.0.0.1:{rude.getsockname()[1]}")
        options = {"timeout_s": 0.5, "new_backoff": quick, "batch_bytes": 8 << 20, "linger_s": 0.05}
        async with face.Producer(broker.address, **options) as producer:
            posted = [await producer.post(Message("t", bytes(3_900_000)), ordering_key="c") for _ in range(2)]
            with pytest.raises(PostsFailed):
                await producer.flush()
            assert posted[0].done
        rude.shutdown(socket.SHUT_RDWR)


@scenario
async def test_who_posts_more_than_may_be_held_waits(face: Face, broker: FakeBroker) -> None:
    going_on = broker.hold_puts()
    posted: list[Any] = []
    async with face.Producer(broker.address, batch_bytes=10_000, buffer_bytes=20_000) as producer:

        async def fill() -> None:
            for _ in range(100):
                one = await producer.post(Message("t", bytes(1_000)))
                posted.append(one)

        async def watch() -> None:
            await face.until(lambda: len(posted) >= 16)
            await face.sleep(0.05)
            assert len(posted) < 20
            going_on.set()

        await face.together(fill, watch)
        await producer.flush()
    assert all(each.result() for each in posted)


@scenario
async def test_a_broker_that_stops_reading_makes_nobody_wait_for_ever(face: Face, broker: FakeBroker) -> None:
    going_on = broker.hold_puts()
    options = {"batch_bytes": 1 << 20, "buffer_bytes": 12 << 20, "timeout_s": 0.3}
    async with face.Producer(broker.address, **options) as producer:
        posted: list[Any] = []
        with contextlib.suppress(RequestTimeout):  # unless giving up blocks made room in time
            for _ in range(300):
                posted.append(await producer.post(Message("t", bytes(100_000))))
                assert sum(not each.done for each in posted) < 130
        assert len(posted) > 110
        with pytest.raises(PostsFailed):
            await producer.flush()
        assert {type(each.error) for each in posted} == {SendOutcomeUnknown, RequestTimeout}
        going_on.set()
        broker.behave(PUT, None)
        await outcome(face, await producer.post(Message("t", b"x")))
