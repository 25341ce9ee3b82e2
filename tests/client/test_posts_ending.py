"""`post` when tasks are cancelled, programs fork, and producers are closed."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any

import anyio
import pytest

import reput_client
from reput_client import Message, PostsFailed, blocking
from reput_client.errors import ClientClosed, ConnectFailed, SendOutcomeUnknown
from reput_client.produce.block_sender import BlockSender
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.record.record import decode_record
from support.faces import Face, scenario
from support.fakes import SILENCE, Answer, FakeBroker
from support.waiting import wait_until

PUT = RequestCode.PUT_MESSAGE
BUSY = Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: later")


@pytest.fixture(params=["trio", "asyncio"])
def loop(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


@scenario
async def test_what_has_not_left_fails_when_the_producer_is_closed(
    face: Face, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:

    producer = face.Producer(broker.address, linger_s=60.0)
    await producer.__aenter__()
    told: list[Any] = []
    posted = [await producer.post(Message("t", b"x")) for _ in range(3)]
    await producer.post(Message("t", b"x"), on_done=told.append)
    with caplog.at_level(logging.ERROR):
        await producer.aclose()
    assert isinstance(told[0].error, ClientClosed)
    assert "posted messages that have failed: 3;" in caplog.text
    for each in posted:
        with pytest.raises(ClientClosed):
            each.result()
    with pytest.raises(ClientClosed):
        await producer.post(Message("t", b"x"))
    assert not broker.count(PUT)


@scenario
async def test_what_has_left_is_unknown_when_the_producer_is_closed(face: Face, broker: FakeBroker) -> None:

    broker.behave(PUT, SILENCE)
    async with face.Producer(broker.address, linger_s=0.001, retries=3) as producer:
        posted: list[Any] = []

        async def wait() -> None:
            posted.append(await producer.post(Message("t", b"x")))
            with pytest.raises(PostsFailed):
                await producer.flush()

        async def close() -> None:
            await face.until(lambda: broker.count(PUT) == 1)
            await producer.aclose()

        await face.together(wait, close)
        assert isinstance(posted[0].error, SendOutcomeUnknown)


@scenario
async def test_who_waits_for_room_is_told_that_the_producer_was_closed(face: Face, broker: FakeBroker) -> None:

    broker.behave(PUT, SILENCE)
    options = {"batch_bytes": 1_000, "buffer_bytes": 2_000, "linger_s": 0.001}
    async with face.Producer(broker.address, **options) as producer:

        async def fill() -> None:
            for _ in range(10):
                try:
                    await producer.post(Message("t", bytes(400)))
                except ClientClosed:
                    return
            raise AssertionError("more was taken than may be held")

        async def close() -> None:
            await face.until(lambda: broker.count(PUT) >= 1)
            await face.sleep(0.05)
            await producer.aclose()

        await face.together(fill, close)


@scenario
async def test_a_block_that_raises_still_has_its_posts_sent(
    face: Face, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        async with face.Producer(broker.address, linger_s=60.0, retries=0) as producer:
            await producer.post(Message("t", b"x"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert sum(map(len, broker.log.values())) == 1
    broker.behave(PUT, BUSY)
    with pytest.raises(ZeroDivisionError):  # not the error of flush
        await fail()
    assert "ZeroDivisionError" in caplog.text
    assert "1 posted message failed: BUSY" in caplog.text


@scenario
async def test_a_program_that_exits_still_has_its_posts_sent(face: Face, broker: FakeBroker) -> None:
    async def leave() -> None:
        async with face.Producer(broker.address, linger_s=60.0) as producer:
            await producer.post(Message("t", b"x"))
            sys.exit(3)

    with pytest.raises(SystemExit):
        await leave()
    assert sum(map(len, broker.log.values())) == 1


@scenario
async def test_a_program_that_is_interrupted_waits_for_nothing(
    face: Face, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> None:
        async with face.Producer(broker.address, linger_s=60.0) as producer:
            await producer.post(Message("t", b"x"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await leave()
    assert not broker.count(PUT)
    assert "posted messages that have failed: 1;" in caplog.text


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
@scenario
async def test_a_producer_that_fails_as_it_closes_leaves_no_socket(face: Face, broker: FakeBroker) -> None:
    """Nor its runtime's pair of sockets."""
    broker.behave(PUT, BUSY)
    with pytest.raises(PostsFailed):
        async with face.Producer(broker.address, retries=0) as producer:
            await producer.post(Message("t", b"x"))
    broker.stop()


@scenario
async def test_the_task_that_posted_first_may_be_cancelled(loop: Face, broker: FakeBroker) -> None:

    async with loop.Producer(broker.address) as producer:
        posted: list[Any] = []
        async with anyio.create_task_group() as tasks:

            async def first() -> None:
                posted.append(await producer.post(Message("t", b"1"), queue_id=0))
                tasks.cancel_scope.cancel()
                await anyio.sleep_forever()

            tasks.start_soon(first)
        assert (await posted[0]).queue_offset == 0
        assert (await (await producer.post(Message("t", b"2"), queue_id=0))).queue_offset == 1


@scenario
async def test_a_cancelled_wait_leaves_the_message_alone_and_untold(loop: Face, broker: FakeBroker) -> None:
    going_on = broker.hold_puts(BUSY)
    async with loop.Producer(broker.address, retries=0) as producer:
        posted = await producer.post(Message("t", b"1"))
        for wait in (posted.__await__, producer.flush().__await__):
            with anyio.move_on_after(0.05) as scope:
                await _Awaiting(wait)
            assert scope.cancelled_caught
        assert not posted.done
        going_on.set()
        with pytest.raises(PostsFailed):
            await producer.flush()


@scenario
async def test_who_gives_up_waiting_takes_nothing_from_a_callback(loop: Face, broker: FakeBroker) -> None:
    going_on = broker.hold_puts(BUSY)
    async with loop.Producer(broker.address, retries=0) as producer:
        told: list[Any] = []
        posted = await producer.post(Message("t", b"1"), on_done=told.append)
        with anyio.move_on_after(0.05):
            await posted
        going_on.set()
        await producer.flush()  # and raises nothing: the callback has reported it
        assert told == [posted]


class _Awaiting:
    def __init__(self, wait: Callable[[], Generator[Any, Any, Any]]) -> None:
        self._wait = wait

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._wait()


@scenario
async def test_a_post_that_is_cancelled_as_it_waits_was_not_taken(loop: Face, broker: FakeBroker) -> None:
    going_on = broker.hold_puts()
    taken = 0
    async with loop.Producer(broker.address, batch_bytes=1_000, buffer_bytes=4_000) as producer:
        with anyio.move_on_after(0.1) as scope:
            for _ in range(100):
                await producer.post(Message("t", bytes(100)))
                taken += 1
        assert scope.cancelled_caught
        going_on.set()
    assert sum(map(len, broker.log.values())) == taken


@pytest.mark.parametrize("loop", ["asyncio"], indirect=True)
@scenario
async def test_a_program_that_cancels_all_tasks_may_still_flush(loop: Face, broker: FakeBroker) -> None:
    """As programs do at shutdown; the producer's task is among them."""
    going_on = broker.hold_puts()
    async with loop.Producer(broker.address, linger_s=0.001) as producer:
        posted = await producer.post(Message("t", b"1"))
        waiting = asyncio.ensure_future(_result(posted))
        await loop.until(lambda: broker.count(PUT) == 1)
        for task in asyncio.all_tasks() - {asyncio.current_task(), waiting}:
            task.cancel()
        await asyncio.sleep(0.05)
        going_on.set()
        assert (await waiting).queue_offset == 0
        await producer.flush()


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("loop", ["asyncio"], indirect=True)
@scenario
async def test_tasks_that_are_cancelled_before_they_begin_hang_nobody(
    loop: Face, broker: FakeBroker, is_known: bool
) -> None:
    """asyncio ends such a task without running it."""
    async with loop.Producer(broker.address) as producer:
        if is_known:
            await producer.send(Message("t", b"0"), queue_id=0)  # connects
        else:
            broker.drop_connections()
        posted = await producer.post(Message("t", b"1"), queue_id=0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
        flushing = asyncio.ensure_future(producer.flush())
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task(), flushing}:
            task.cancel()
        await flushing
        assert posted.result().queue_id == 0


@scenario
async def test_a_mistake_in_the_task_hangs_nobody(
    loop: Face, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_sender: BlockSender) -> None:
        raise ValueError("a mistake")

    broker.behave(PUT, SILENCE)
    async with loop.Producer(broker.address, linger_s=0.001, batch_bytes=300) as producer:
        sent = await producer.post(Message("t", b"1"))
        await loop.until(lambda: broker.count(PUT) == 1)
        broker.behave(PUT, None)
        with monkeypatch.context() as patch:
            patch.setattr(BlockSender, "look_ahead", fail)
            producer._sender.wake()
            with pytest.raises(SendOutcomeUnknown, match="a mistake"):
                await sent
            assert "cannot be sent any more" in caplog.text
        await (await producer.post(Message("t", b"2")))


async def _result(posted: Any) -> Any:
    return await posted


def test_a_forked_child_sends_its_own_and_not_its_parents(broker: FakeBroker) -> None:
    with blocking.Producer(broker.address, linger_s=60.0) as producer:
        posted = [producer.post(Message("t", b"parent's"), queue_id=0) for _ in range(3)]
        child = os.fork()
        if not child:
            code = 1
            try:
                own = producer.post(Message("t", b"child's"), queue_id=0)
                producer.flush()
                assert own.done
                assert isinstance(posted[0].error, SendOutcomeUnknown)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        producer.flush()
        assert {each.result().queue_offset for each in posted} == {1, 2, 3}
    bodies = [decode_record(data).body for data in broker.log["t", 0]]
    assert bodies == [b"child's", b"parent's", b"parent's", b"parent's"]


def test_a_send_that_is_ended_by_an_interrupt_names_its_message(broker: FakeBroker) -> None:
    """An interrupt of one thread in the client's code closes the client for the others."""
    errors: list[SendOutcomeUnknown] = []

    def send(producer: blocking.Producer) -> None:
        with pytest.raises(SendOutcomeUnknown, match="KeyboardInterrupt") as caught:
            producer.send(Message("t", b"x"))
        errors.append(caught.value)

    def interrupt() -> None:
        raise KeyboardInterrupt

    broker.behave(PUT, lambda header, body: (broker.put(header, body), SILENCE)[1])
    with blocking.Producer(broker.address) as producer:
        thread = threading.Thread(target=send, args=(producer,))
        thread.start()
        wait_until(lambda: broker.count(PUT))
        with pytest.raises(KeyboardInterrupt):
            producer._runtime.call(interrupt)
        thread.join()
    ((error,), [(record,)]) = errors, broker.log.values()
    assert error.message_ids == [decode_record(record).unique_key]


def test_time_that_nobody_spent_waiting_fails_nothing(broker: FakeBroker) -> None:
    """Without tasks nothing is read or written between calls; that is not the broker's silence."""
    with blocking.Producer(broker.address, timeout_s=0.5, batch_bytes=8 << 20) as producer:
        for size in (10, 3_900_000):  # an unread answer, and a block mostly unsent
            posted = [producer.post(Message("t", bytes(size)), queue_id=0) for _ in range(2)]
            threading.Event().wait(0.02)
            posted.append(producer.post(Message("t", b"x"), queue_id=1))  # sends the first one
            threading.Event().wait(1.2)
            producer.flush()
            assert all(each.result() for each in posted)


def test_a_broker_that_is_gone_fails_a_program_that_goes_on_posting(broker: FakeBroker) -> None:
    """Even if no call waits."""
    with blocking.Producer(broker.address, timeout_s=0.2, linger_s=0.001) as producer:
        producer.post(Message("t", b"x")).result()
        broker.stop()
        told: list[Any] = []
        for _ in range(2000):
            producer.post(Message("t", b"x"), on_done=told.append)
            threading.Event().wait(0.002)
            if told:
                break
        assert isinstance(told[0].error, (ConnectFailed, SendOutcomeUnknown))


_FORGETFUL = """
import asyncio, sys
from reput_client import Message, Producer, blocking

def post(address):
    producer = blocking.Producer(address, linger_s=60.0)
    producer.__enter__()
    for _ in range(3):
        producer.post(Message("t", b"x"))

async def post_as_task(address):
    producer = Producer(address, linger_s=60.0)
    await producer.__aenter__()
    for _ in range(3):
        await producer.post(Message("t", b"x"))

if sys.argv[1] == "blocking":
    post(sys.argv[2])
else:
    asyncio.run(post_as_task(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("kind", "stored", "log"),
    [("blocking", 3, ""), ("asyncio", 0, "posted messages without an outcome: 3; the program has ended")],
)
def test_posts_of_a_program_that_ends_without_close_are_sent_or_logged(
    broker: FakeBroker, kind: str, stored: int, log: str
) -> None:
    """They vanished without a report."""
    command = [sys.executable, "-c", _FORGETFUL, kind, broker.address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert sum(map(len, broker.log.values())) == stored
    assert log in ended.stderr
    assert bool(log) == bool(ended.stderr)


def test_a_program_that_ends_without_close_waits_for_no_broker_for_ever(broker: FakeBroker) -> None:
    broker.behave(PUT, SILENCE)
    program = f"import reput_client.produce.gathering\nreput_client.produce.gathering._EXIT_S = 0.2\n{_FORGETFUL}"
    command = [sys.executable, "-c", program, "blocking", broker.address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "posted messages that have failed: 3;" in ended.stderr


_TWO_PRODUCERS = """
import sys
import reput_client.produce.gathering
from reput_client import Message, blocking
from reput_client.produce.gathering import Gathering

Gathering.__hash__ = lambda gathering: gathering.number  # so that they end in the order in which they were made

def fail(*_):
    raise %s("a mistake")

producers = []
for number, address in enumerate(sys.argv[1:]):
    producer = blocking.Producer(address, linger_s=60.0)
    producer._client._gathering.number = number
    producers.append(producer)
    producer.__enter__()
    producer.post(Message("t", b"x"))
"""


@pytest.mark.parametrize("kind", ["RuntimeError", "SystemExit"])
def test_a_producer_that_fails_as_the_program_ends_takes_no_posts_of_another_along(
    broker: FakeBroker, kind: str
) -> None:
    program = _TWO_PRODUCERS % kind + "producers[0]._client._gathering.end_with_program = fail"
    command = [sys.executable, "-c", program, broker.address, broker.address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert sum(map(len, broker.log.values())) == 1
    assert "a producer has failed to send what was posted before the program ended" in ended.stderr
    assert "a mistake" in ended.stderr


def test_a_broker_that_is_silent_as_the_program_ends_leaves_time_for_the_posts_of_another(broker: FakeBroker) -> None:
    """The first producer must not use up the time of both."""

    def put(header: Any, body: memoryview) -> Answer:
        threading.Event().wait(0.1)
        return broker.put(header, body)

    broker.behave(PUT, put)
    program = _TWO_PRODUCERS % "RuntimeError" + "reput_client.produce.gathering._EXIT_S = 2.0"
    with FakeBroker() as silent:
        silent.behave(PUT, SILENCE)
        command = [sys.executable, "-c", program, silent.address, broker.address]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stderr.count("posted messages that have failed: 1;") == 1


@pytest.mark.parametrize("has_begun", [True, False], ids=["sent", "not begun"])
def test_posts_of_an_event_loop_that_was_closed_are_sent_by_the_next_one(broker: FakeBroker, has_begun: bool) -> None:
    """The first loop's task never runs again."""
    producer = reput_client.Producer(broker.address, linger_s=0.001 if has_begun else 60.0, timeout_s=10.0)
    first = asyncio.new_event_loop()
    first.run_until_complete(producer.__aenter__())
    first.run_until_complete(producer.send_batch([Message("t", b"warm")], queue_id=0))

    async def post() -> Any:
        posted = await producer.post(Message("t", b"1"), queue_id=0)
        while has_begun and not broker.count(PUT) > 1:
            await asyncio.sleep(0.001)
        return posted

    async def end() -> None:
        going_on.set()
        async with asyncio.timeout(20.0):
            await producer.flush()
            later = await producer.post(Message("t", b"2"), queue_id=0)
            await producer.flush()
            assert later.result().queue_offset == 2
            await producer.aclose()

    going_on = broker.hold_puts()
    posted = first.run_until_complete(post())
    first.close()
    asyncio.run(end())
    assert posted.result().queue_offset == 1
