"""Puts that wait for copies: answered in order, or with what is known of them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from typing_extensions import override

from reput_broker.config.sections import HAConfig
from reput_broker.observe.counters import Counters
from reput_broker.put.progress import PendingRequest, Position, Replicas
from reput_broker.put.put_lock import Fence
from reput_broker.remoting.request import Confirmed, PutAck, Refusal, Response
from reput_broker.store.message_store import MessageStore
from reput_protocol.codes import AckLevel, ResponseCode
from reput_protocol.errors import ErrorCode
from support.log_progress import FakeLog, progress_of
from support.waiting import until


class Bench(Replicas):
    """The progress of a log that is always appended, and copies that the test sets."""

    def __init__(self, **options: Any) -> None:
        self.reason: str | None = None
        self.counters = Counters()
        self.answers: list[tuple[int, Response]] = []
        self.store = FakeLog(1 << 60)
        self.progress = progress_of(self.store, self.counters, ha_config=HAConfig(**options))
        self.progress.serve(self)

    @override
    def refusal(self) -> str | None:
        return self.reason

    def put(self, number: int, fence: Fence | None = None, level: PutAck = AckLevel.REPLICATED) -> None:
        client: Any = SimpleNamespace(
            answer=lambda _, response: self.answers.append((number, response)), flush=lambda: None
        )
        request: Any = SimpleNamespace(client=client, received_at=time.monotonic())
        answer = Response(0, {"ack": "replicated", "queueOffset": number})
        pending = PendingRequest(request, answer, 1, fence or Fence())
        self.progress.answer_when(level, 100 * number, pending)


def test_puts_are_answered_in_order_once_the_copies_have_them() -> None:
    bench = Bench()
    for number in (1, 2, 3):
        bench.put(number)
    assert not bench.answers
    bench.progress.replicated.advance(250)
    assert [(number, answer.code) for number, answer in bench.answers] == [(1, 0), (2, 0)]
    bench.progress.replicated.advance(300)
    bench.put(3)  # stored before, and replicated meanwhile
    assert [number for number, _ in bench.answers] == [1, 2, 3, 3]
    assert bench.counters.produce_seconds["replicated"].count == 4


@pytest.mark.trio
async def test_what_no_failover_may_take_back_is_answered_once_it_is_confirmed(nursery: trio.Nursery) -> None:
    bench = Bench(slave_timeout="20ms")
    bench.reason = "it takes 2 members in sync"
    bench.put(1, level=Confirmed.CONFIRMED)  # without an election
    bench.progress.confirm(100)
    bench.put(2, level=Confirmed.CONFIRMED)
    assert [(number, answer.code) for number, answer in bench.answers] == [(1, 0)]
    bench.progress.confirm(200)
    assert [(number, answer.code) for number, answer in bench.answers] == [(1, 0), (2, 0)]
    nursery.start_soon(bench.progress.expire)
    bench.put(3, level=Confirmed.CONFIRMED)
    await until(lambda: len(bench.answers) == 3)
    assert bench.answers[2][1].code == ResponseCode.FLUSH_SLAVE_TIMEOUT


def test_after_the_fence_a_put_that_has_its_copies_is_not_acknowledged() -> None:
    bench, now = Bench(), 0.0
    fence = Fence(lambda: now, 10.0)
    bench.put(1, fence)
    bench.put(2, fence)
    bench.progress.replicated.advance(100)
    now = 10.0
    bench.progress.replicated.advance(200)
    assert [(number, answer.code) for number, answer in bench.answers] == [
        (1, 0),
        (2, ResponseCode.FLUSH_SLAVE_TIMEOUT),
    ]
    assert "the lease on being master has ended" in (bench.answers[1][1].remark or "")


def test_without_copies_an_explicit_level_is_refused_and_a_default_one_answered_as_stored() -> None:
    bench = Bench()
    bench.reason = "slaves in sync: 0, needed: 1, connected: 0; start them"
    with pytest.raises(Refusal) as caught:
        bench.progress.check_replicas()
    assert caught.value.error is ErrorCode.NO_REPLICA
    bench.put(1)
    ((_, answer),) = bench.answers
    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert str(answer.remark).startswith(
        "REPLICA_MISSING: stored, but not confirmed to be replicated: slaves in sync: 0"
    )
    assert answer.ext == {"ack": "page_cache", "queueOffset": 1}, "the receipt, with the level that it has"


def test_what_is_stored_without_copies_is_synced_all_the_same() -> None:
    """Members join once all of the log is synced; until one does, no further put may come."""
    bench, wanted = Bench(), []
    bench.progress.replicated.want = lambda: wanted.append(1)
    bench.reason = "slaves in sync: 0, needed: 1, connected: 0; start them"
    bench.put(1)
    assert wanted


@pytest.mark.trio
async def test_late_copies_are_reported(nursery: trio.Nursery) -> None:
    bench = Bench(slave_timeout="20ms")
    nursery.start_soon(bench.progress.expire)
    bench.put(1)
    with trio.fail_after(5):
        while not bench.answers:
            await trio.sleep(0.005)
    ((_, answer),) = bench.answers
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert "the copies took longer than ha.slave_timeout (0.02 s)" in str(answer.remark)
    assert answer.ext == {"ack": "page_cache", "queueOffset": 1}
    bench.progress.replicated.advance(100)
    assert len(bench.answers) == 1


@pytest.mark.trio
async def test_a_late_put_that_is_synced_says_so(nursery: trio.Nursery) -> None:
    bench = Bench(slave_timeout="20ms")
    nursery.start_soon(bench.progress.expire)
    bench.put(1)
    bench.put(2)
    bench.store.flushed_offset = 100
    with trio.fail_after(5):
        while len(bench.answers) < 2:
            await trio.sleep(0.005)
    assert [answer.ext["ack"] for _, answer in bench.answers] == ["flushed", "page_cache"]


def test_a_commit_of_the_pool_is_offered_to_the_slaves() -> None:
    log = FakeLog()
    log.buffers_available = 1
    progress = progress_of(log, Counters())
    progress.serve(Replicas())
    progress.appended.advance(300)
    assert progress.offered.offset == 0
    progress.committed.advance(200)
    assert progress.offered.offset == 200


@pytest.mark.trio
async def test_a_commit_waits_until_the_set_has_it(autojump_clock: object) -> None:
    bench = Bench()
    await bench.progress.confirmed_to(500)  # without an election there is no set
    bench.progress.confirm(300)
    done = trio.Event()

    async def wait() -> None:
        await bench.progress.confirmed_to(500)
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for offset, is_done in ((300, False), (499, False), (500, True)):
            bench.progress.confirm(offset)
            await trio.sleep(1)
            assert done.is_set() is is_done


@pytest.mark.trio
async def test_a_set_that_does_not_confirm_is_waited_for_as_long_as_slaves_are(autojump_clock: object) -> None:
    bench = Bench()
    bench.progress.confirm(300)
    started_at = trio.current_time()
    with pytest.raises(Refusal, match="the in-sync set took longer than ha") as refused:
        await bench.progress.confirmed_to(500)
    assert trio.current_time() - started_at == bench.progress._config.ha.slave_timeout
    assert refused.value.error.retryable
    await bench.progress.confirmed_to(300)


@pytest.mark.trio
async def test_followers_come_before_tasks_and_a_position_never_moves_back(nursery: trio.Nursery) -> None:
    position, seen = Position(), list[str]()
    wants: list[int] = []
    position.want = lambda: wants.append(position.offset)
    position.follow(lambda: seen.append("dispatched"))

    async def wait() -> None:
        await position.reached(200)
        seen.append("woken")

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    for offset in (100, 50, 200, 200):
        position.advance(offset)
        await trio.testing.wait_all_tasks_blocked()
    assert seen == ["dispatched", "dispatched", "woken"]
    assert wants == [0, 100], "each time that it is not far enough"
    assert not position.is_awaited


@pytest.mark.trio
async def test_a_position_that_fails_answers_tasks_and_puts_now_and_later() -> None:
    bench = Bench()
    bench.progress.flushed.fail(cast("MessageStore", bench.store), "the disk is gone")
    with pytest.raises(Refusal, match="the disk is gone"):
        await bench.progress.flushed.reached(1)
    await bench.progress.flushed.reached(0)
    bench.put(1, level=AckLevel.FLUSHED)
    ((_, answer),) = bench.answers
    assert "the disk is gone" in (answer.remark or "")


def test_what_consumers_see_begins_with_the_confirm_offset_and_never_shrinks() -> None:
    progress = progress_of(log := FakeLog(1000), Counters())
    moved: list[int] = []
    progress.confirmed.follow(lambda: moved.append(progress.confirmed.offset))
    for offset in (300, 200, 400):
        progress.confirm(offset)
    assert (moved, log.confirm_offset) == ([400], 400)
