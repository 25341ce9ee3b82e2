"""Handlers that raise, hang or never finish, with every API, against a scripted broker."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from reput_client import GiveBack, Message, RetryHere, StopRunning
from reput_client.consume.group import failures
from reput_client.consume.group.failures import Decision, Failure, OnFailure, Verdict
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.properties import decode_properties
from reput_protocol.wire.header import Header
from support.faces import Face, scenario
from support.fakes import SILENCE, Answer, FakeBroker

SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
RESEND = RequestCode.SEND_MESSAGE_V2


class TakesBack:
    """A broker that records the messages given back."""

    def __init__(self, broker: FakeBroker, *answers: Answer) -> None:
        self.taken: list[dict[str, Any]] = []
        self._answers = [*answers]
        broker.behave(SEND_BACK, self.take)

    def take(self, header: Header, body: memoryview) -> Answer:
        assert not body
        self.taken.append(dict(header.ext))
        return self._answers.pop(0) if self._answers else Answer()


async def fill(face: Face, broker: FakeBroker, *bodies: bytes, topic: str = "t", **properties: str) -> None:
    async with face.Producer(broker.address) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, properties=properties), queue_id=0)


async def run(face: Face, consumer: Any, handle: Any, until: Callable[[], bool], concurrency: int = 1) -> None:
    """Run a handler until `until` holds."""

    async def work() -> None:
        await consumer.run(handle, concurrency=concurrency)

    async def stop() -> None:
        await face.until(until)
        consumer.stop()

    await face.together(work, stop)


@pytest.mark.parametrize("concurrency", [1, 3])
@scenario
async def test_what_a_handler_raises_for_goes_back_to_the_broker(
    face: Face, broker: FakeBroker, concurrency: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "reput_client")
    await fill(face, broker, b"a", b"bad", b"c", b"d")
    back = TakesBack(broker)
    seen: list[bytes] = []

    async def handle(message: Any) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            raise LookupError("no such order")

    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        await run(face, consumer, handle, lambda: len(seen) == 4 and len(back.taken) == 1, concurrency)
    assert sorted(seen) == [b"a", b"bad", b"c", b"d"]
    (taken,) = back.taken
    assert taken["offset"] > 0
    assert (taken["group"], taken["delayLevel"], taken["originTopic"]) == ("g", 0, "t")
    assert taken["reason"] == "LookupError: no such order"
    assert "maxReconsumeTimes" not in taken
    assert broker.committed["g", "t", 0] == 4, "given back is handled"
    (record,) = [record for record in caplog.records if "not handled" in record.message]
    assert "message 1 of t/0 was not handled (attempt 1): LookupError" in record.message
    assert record.exc_info is not None


@pytest.mark.parametrize("face", ["trio", "asyncio"], indirect=True)
@pytest.mark.parametrize("concurrency", [1, 3])
@scenario
async def test_a_plain_function_ends_run_with_its_message_unhandled(
    face: Face, broker: FakeBroker, concurrency: int
) -> None:
    """Its result cannot be awaited; that is no reason to handle each message again until it is a dead letter."""
    await fill(face, broker, b"a")
    back = TakesBack(broker)
    seen: list[bytes] = []

    def plain(message: Any) -> None:
        seen.append(message.body)

    async def handle(message: Any) -> None:
        plain(message)
        consumer.stop()

    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        with pytest.raises((TypeError, ExceptionGroup)) as caught:
            await consumer.run(plain, concurrency=concurrency)
        (error,) = caught.value.exceptions if isinstance(caught.value, ExceptionGroup) else [caught.value]
        assert isinstance(error, TypeError)
        assert "is a plain function" in str(error)
        assert "reput_client.blocking" in str(error)
        await consumer.run(lambda message: handle(message), concurrency=concurrency)
    assert seen == [b"a", b"a"]
    assert back.taken == []
    assert broker.committed["g", "t", 0] == 1


@scenario
async def test_the_application_chooses_delay_and_attempts(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, b"bad")
    back = TakesBack(broker)

    async def handle(message: Any) -> None:
        raise ValueError(message.body)

    policy = GiveBack(delay_level=4, attempts_max=7)
    async with face.Consumer(broker.address, group="g", topic="t", on_failure=policy) as consumer:
        await run(face, consumer, handle, lambda: len(back.taken) == 1)
    assert (back.taken[0]["delayLevel"], back.taken[0]["maxReconsumeTimes"]) == (4, 7)
    for arguments in ({"delay_level": 19}, {"delay_level": -2}, {"attempts_max": 0}, {"after_s": -1.0}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            GiveBack(**arguments)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="UNSUPPORTED_REQUEST: not here"),
        Answer(ResponseCode.SYSTEM_ERROR, remark="INTERNAL: the message has expired"),
        Answer(ResponseCode.SYSTEM_BUSY, remark="BUSY: not now"),
    ],
    ids=["not supported", "refused", "busy"],
)
@scenario
async def test_what_the_broker_does_not_take_comes_again_here(
    face: Face, broker: FakeBroker, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "DELAY_LEVELS_MS", (20,) * 18)
    monkeypatch.setattr(failures, "_KEPT_S", 0.02)

    await fill(face, broker, b"a", b"bad", b"c")
    back = TakesBack(broker, answer, answer)
    broker.behave(RESEND, answer)
    seen: list[bytes] = []

    async def handle(message: Any) -> None:
        seen.append(message.body)
        if message.body == b"bad" and seen.count(b"bad") < 3:
            raise ValueError(b"bad")

    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        await run(face, consumer, handle, lambda: len(seen) == 5)
    assert len(back.taken) == 2
    knows_nothing = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert bool(broker.count(RESEND)) is not knows_nothing
    assert seen.count(b"bad") == 3
    assert broker.committed["g", "t", 0] == 3


@scenario
async def test_what_the_broker_does_not_take_back_is_sent_to_the_retry_topic(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, b"a", b"bad", b"c")
    TakesBack(broker, Answer(ResponseCode.SYSTEM_ERROR, remark="INTERNAL: not this one"))
    seen: list[bytes] = []

    async def handle(message: Any) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            raise ValueError("no such order")

    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        await run(face, consumer, handle, lambda: len(seen) == 3 and bool(broker.parked))
    ((ext, body),) = broker.parked
    assert (ext["b"], body) == ("%RETRY%g", b"bad")
    assert decode_properties(str(ext["i"]).encode())["RETRY_REASON"] == "ValueError: no such order"
    assert broker.committed["g", "t", 0] == 3, "given back is handled"


def test_the_delay_here_is_the_one_that_a_broker_would_take() -> None:
    class Seen:
        reconsume_times = 0
        queue = ("t", "b", 0)
        queue_offset = 1

    def delay_s(attempts: int, came_back: int = 0) -> float:
        message: Any = Seen()
        message.reconsume_times = came_back
        return failures.default_delay_s(Failure(message, ValueError(), attempts, "g", False))

    assert [delay_s(attempts) for attempts in (1, 2, 3)] == [10.0, 30.0, 60.0]
    assert delay_s(1, came_back=2) == 60.0
    assert delay_s(100) == 7200.0


@scenario
async def test_in_order_it_comes_again_here_and_then_goes_to_the_dead_letters(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, b"a", b"bad", b"c")
    back = TakesBack(broker)
    seen: list[bytes] = []

    async def handle(message: Any) -> None:
        seen.append(message.body)
        if message.body == b"bad":
            raise ValueError("never")

    policy = GiveBack(attempts_max=3, after_s=0.02)
    async with face.Consumer(broker.address, group="g", topic="t", orderly=True, on_failure=policy) as consumer:
        await run(face, consumer, handle, lambda: len(seen) == 5)
    assert seen == [b"a", b"bad", b"bad", b"bad", b"c"], "what follows waits"
    assert [taken["delayLevel"] for taken in back.taken] == [-1]
    assert broker.committed["g", "t", 0] == 3


@scenario
async def test_who_broadcasts_has_nobody_to_give_it_to(
    face: Face, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("REPUT_OFFSETS_DIR", str(tmp_path))

    await fill(face, broker, b"a", b"bad", b"c")
    back = TakesBack(broker)
    seen: list[bytes] = []

    async def handle(message: Any) -> None:
        seen.append(message.body)
        if message.body == b"bad" and seen.count(b"bad") < 3:
            raise ValueError("not yet")

    async with face.Consumer(
        broker.address, group="g", topic="t", mode="broadcasting", on_failure=GiveBack(after_s=0.02)
    ) as consumer:
        await run(face, consumer, handle, lambda: len(seen) == 5)
    assert seen.count(b"bad") == 3
    assert not back.taken


@pytest.mark.parametrize("policy", [GiveBack(), RetryHere(0.01)], ids=["give back", "retry here"])
@scenario
async def test_a_damaged_message_is_named_and_passed_over(
    face: Face, broker: FakeBroker, policy: OnFailure, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "reput_client")
    await fill(face, broker, b"aaaa", b"bbbb", b"cccc")
    record = bytearray(broker.log["t", 0][1])
    record[record.index(b"bbbb")] ^= 1
    broker.log["t", 0][1] = bytes(record)
    back = TakesBack(broker)
    seen: list[bytes] = []

    async def handle(message: Any) -> None:
        seen.append(message.body)

    async with face.Consumer(broker.address, group="g", topic="t", on_failure=policy) as consumer:
        await run(face, consumer, handle, lambda: len(seen) == 2)
        await face.until(lambda: consumer.positions()[min(consumer.assignment)] == 3 or len(seen) == 2)
    assert seen == [b"aaaa", b"cccc"]
    assert not back.taken
    assert broker.committed["g", "t", 0] == 3
    (logged,) = caplog.records
    assert "CRC" in logged.message
    assert "continuing with the next" in logged.message


@scenario
async def test_the_application_may_settle_it_itself(face: Face, broker: FakeBroker) -> None:
    class Settles(OnFailure):
        def __init__(self) -> None:
            self.failures: list[Failure] = []

        async def decide(self, failure: Failure) -> Decision:
            self.failures.append(failure)
            return Verdict.HANDLED

    await fill(face, broker, b"a", b"b")
    policy = Settles()

    async def handle(message: Any) -> None:
        raise ValueError(message.body)

    async with face.Consumer(broker.address, group="g", topic="t", on_failure=policy) as consumer:
        await run(face, consumer, handle, lambda: len(policy.failures) == 2)
    assert [(f.message.body, f.attempts, f.group, f.orderly) for f in policy.failures] == [
        (b"a", 1, "g", False),
        (b"b", 1, "g", False),
    ]
    assert broker.committed["g", "t", 0] == 2


@scenario
async def test_the_application_may_give_it_back_in_its_own_way(face: Face, broker: FakeBroker) -> None:
    class ByAttempt(OnFailure):
        async def decide(self, failure: Failure) -> Decision:
            await failure.give_back(delay_level=7, attempts_max=3)
            return Verdict.HANDLED

    back = TakesBack(broker)
    await fill(face, broker, b"a")

    async def handle(message: Any) -> None:
        raise ValueError(message.body)

    async with face.Consumer(broker.address, group="g", topic="t", on_failure=ByAttempt()) as consumer:
        await run(face, consumer, handle, lambda: bool(back.taken))
    (taken,) = back.taken
    assert (taken["delayLevel"], taken["maxReconsumeTimes"]) == (7, 3)
    assert broker.committed["g", "t", 0] == 1


@pytest.mark.parametrize("concurrency", [1, 3])
@scenario
async def test_an_exception_may_end_run_and_its_message_comes_again(
    face: Face, broker: FakeBroker, concurrency: int
) -> None:

    await fill(face, broker, b"a", b"bad", b"c")

    async def handle(message: Any) -> None:
        if message.body == b"bad":
            raise KeyError("bad")

    async with face.Consumer(broker.address, group="g", topic="t", on_failure=StopRunning()) as consumer:
        with pytest.raises((KeyError, ExceptionGroup)):
            await consumer.run(handle, concurrency=concurrency)
        assert (await consumer.receive(5.0)).body == b"bad"
        await consumer.commit()
        assert broker.committed["g", "t", 0] == 2


@scenario
async def test_an_iterating_application_gives_a_message_back(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, b"a", b"b", b"c")
    broker.store("%RETRY%g", b"again", RETRY_TOPIC="t")
    back = TakesBack(broker)
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:
        got = []
        for _ in range(4):
            message = await consumer.receive(5.0)
            got.append(message.body)
            if message.body == b"b":
                await message.nack(3.0, reason="later")
            if message.body == b"again":
                await message.reject()
                await message.reject()  # not ours any more
        assert sorted(got) == [b"a", b"again", b"b", b"c"]
    found = {(taken["delayLevel"], taken.get("reason"), taken["originTopic"]) for taken in back.taken}
    assert found == {(2, "later", "t"), (-1, None, "t")}
    assert len(back.taken) == 2
    assert (broker.committed["g", "t", 0], broker.committed["g", "%RETRY%g", 0]) == (3, 1)


@scenario
async def test_what_hangs_goes_back_and_holds_nothing_up(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, *(b"%d" % n for n in range(5)))
    back = TakesBack(broker)
    async with face.Consumer(
        broker.address, group="g", topic="t", handler_timeout_s=0.2, commit_interval_s=0.05, on_failure=RetryHere(60.0)
    ) as consumer:
        taken = [await consumer.take(5.0) for _ in range(5)]
        for message in taken[1:4]:
            message.ack()
        await consumer.failed(taken[4], ValueError("the application delays it"))
        await face.until(lambda: broker.committed["g", "t", 0] == 4)
        (given_back,) = back.taken
        assert given_back["offset"] == taken[0].physical_offset
        assert given_back["reason"] == "not handled within 0.2 s"
        taken[0].ack()  # too late: no effect
        assert consumer.positions()[taken[0].queue] == 4


@scenario
async def test_a_message_in_the_hands_of_a_loop_is_never_overdue(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, b"long")
    back = TakesBack(broker)
    async with face.Consumer(broker.address, group="g", topic="t", handler_timeout_s=0.05) as consumer:
        assert (await consumer.receive(5.0)).body == b"long"
        await face.sleep(0.3)
    assert not back.taken
    assert broker.committed["g", "t", 0] == 1


@pytest.mark.parametrize("concurrency", [1, 2])
@scenario
async def test_a_handler_that_hangs_loses_its_message(face: Face, broker: FakeBroker, concurrency: int) -> None:

    await fill(face, broker, b"hangs", b"next")
    back = TakesBack(broker)
    seen: list[bytes] = []

    async def handle(message: Any) -> None:
        if message.body == b"hangs":
            await face.until(lambda: bool(back.taken))
        seen.append(message.body)

    async with face.Consumer(broker.address, group="g", topic="t", handler_timeout_s=0.1) as consumer:
        await run(face, consumer, handle, lambda: len(seen) == 2, concurrency)
    assert [taken["reason"] for taken in back.taken] == ["not handled within 0.1 s"]
    assert broker.committed["g", "t", 0] == 2


@scenario
async def test_a_failed_message_on_its_way_back_is_not_overdue(face: Face, broker: FakeBroker) -> None:
    """Given back once more, with the group's settings, it would be tried more often than its member wants."""

    await fill(face, broker, b"bad")
    broker.behave(SEND_BACK, SILENCE)

    async def handle(message: Any) -> None:
        raise LookupError("no such order")

    async with face.Consumer(broker.address, group="g", topic="t", handler_timeout_s=0.1, timeout_s=1.0) as consumer:
        counts = [0]

        def is_over() -> bool:
            counts.append(broker.count(SEND_BACK))
            return time.monotonic() > end

        end = time.monotonic() + 0.8
        await run(face, consumer, handle, is_over)
    assert max(counts) == 1


@scenario
async def test_a_broker_that_takes_nothing_back_keeps_what_hangs_where_it_is(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, b"a")
    async with face.Consumer(broker.address, group="g", topic="t", handler_timeout_s=0.05) as consumer:
        message = await consumer.take(5.0)
        await face.until(lambda: broker.count(SEND_BACK) == 1)
        await face.sleep(0.2)
        assert broker.count(SEND_BACK) == 1
        message.ack()
    assert broker.committed["g", "t", 0] == 1


@pytest.mark.parametrize("concurrency", [1, 4])
@scenario
async def test_stop_lets_handlers_finish_and_hands_out_nothing_more(
    face: Face, broker: FakeBroker, concurrency: int
) -> None:

    await fill(face, broker, *(b"%d" % n for n in range(50)))
    begun: list[int] = []
    finished: list[int] = []
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:

        async def handle(message: Any) -> None:
            begun.append(message.queue_offset)
            if len(begun) == 10:
                consumer.stop()
            await face.sleep(0.01)
            finished.append(message.queue_offset)

        await consumer.run(handle, concurrency=concurrency)
        assert consumer.stopped
        assert not consumer.closed
        assert await consumer.receive(5.0) is None
    assert sorted(begun) == sorted(finished)
    assert 10 <= len(begun) < 10 + concurrency
    assert broker.committed["g", "t", 0] == len(begun)


@scenario
async def test_stop_ends_an_iteration_that_waits(face: Face, broker: FakeBroker) -> None:

    await fill(face, broker, b"a")
    got: list[bytes] = []
    async with face.Consumer(broker.address, group="g", topic="t") as consumer:

        async def iterate() -> None:
            got.extend([message.body async for message in consumer])

        async def stop() -> None:
            await face.until(lambda: broker.count(RequestCode.PULL_MESSAGE) >= 5)
            consumer.stop()

        await face.together(iterate, stop)
    assert got == [b"a"]
    assert broker.committed["g", "t", 0] == 1
