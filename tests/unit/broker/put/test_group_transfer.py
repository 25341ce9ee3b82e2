"""Puts that wait for copies: answered in order, or with what is known of them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from reput_broker.config.sections import HAConfig
from reput_broker.observe.counters import Counters
from reput_broker.put.fence import Fence
from reput_broker.put.group_transfer import GroupTransfer
from reput_broker.put.pending_puts import PendingRequest
from reput_broker.request import Refusal, Response
from reput_protocol.codes import ResponseCode
from reput_protocol.errors import ErrorCode


class Bench:
    """A service over a log that is always appended, and copies that the test sets."""

    def __init__(self, **options: Any) -> None:
        self.position = 0
        self.reason: str | None = None
        self.counters = Counters()
        self.answers: list[tuple[int, Response]] = []
        self.woken = 0
        self.store = SimpleNamespace(committed_offset=1 << 60, flushed_offset=0, when_appended=lambda _: None)
        store: Any = self.store
        self.service = GroupTransfer(store, HAConfig(**options), self.counters)
        self.service.serve(self, lambda: None, self._wake)

    def refusal(self) -> str | None:
        return self.reason

    def _wake(self) -> None:
        self.woken += 1

    def put(self, number: int, fence: Fence | None = None) -> None:
        client: Any = SimpleNamespace(
            answer=lambda _, response: self.answers.append((number, response)), flush=lambda: None
        )
        request: Any = SimpleNamespace(client=client, received_at=time.monotonic())
        answer = Response(0, {"ack": "replicated", "queueOffset": number})
        self.service.answer_when_replicated(
            100 * number, PendingRequest(request, answer, 1, fence or Fence())
        )


def test_puts_are_answered_in_order_once_the_copies_have_them() -> None:
    bench = Bench()
    for number in (1, 2, 3):
        bench.put(number)
    assert not bench.answers
    bench.position = 250
    bench.service.advance()
    assert [(number, answer.code) for number, answer in bench.answers] == [(1, 0), (2, 0)]
    bench.position = 300
    bench.put(3)  # stored before, and replicated meanwhile
    assert [number for number, _ in bench.answers] == [1, 2, 3, 3]
    assert bench.counters.produce_seconds["replicated"].count == 4


def test_after_the_fence_a_put_that_has_its_copies_is_not_acknowledged() -> None:
    bench, now = Bench(), 0.0
    fence = Fence(lambda: now, 10.0)
    bench.put(1, fence)
    bench.put(2, fence)
    bench.position = 100
    bench.service.advance()
    now = 10.0
    bench.position = 200
    bench.service.advance()
    assert [(number, answer.code) for number, answer in bench.answers] == [
        (1, 0),
        (2, ResponseCode.FLUSH_SLAVE_TIMEOUT),
    ]
    assert "the lease on being master has ended" in (bench.answers[1][1].remark or "")


def test_without_copies_an_explicit_level_is_refused_and_a_default_one_answered_as_stored() -> None:
    bench = Bench()
    bench.reason = "slaves in sync: 0, needed: 1, connected: 0; start them"
    with pytest.raises(Refusal) as caught:
        bench.service.check()
    assert caught.value.error is ErrorCode.NO_REPLICA
    bench.put(1)
    ((_, answer),) = bench.answers
    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert str(answer.remark).startswith(
        "REPLICA_MISSING: stored, but not known to be replicated: slaves in sync: 0"
    )
    assert answer.ext == {"ack": "page_cache", "queueOffset": 1}, "the receipt, with the level that it has"


@pytest.mark.trio
async def test_late_copies_are_reported(nursery: trio.Nursery) -> None:
    bench = Bench(slave_timeout="20ms")
    nursery.start_soon(bench.service.expire)
    bench.put(1)
    with trio.fail_after(5):
        while not bench.answers:
            await trio.sleep(0.005)
    ((_, answer),) = bench.answers
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert "the copies took longer than ha.slave_timeout (0.02 s)" in str(answer.remark)
    assert answer.ext == {"ack": "page_cache", "queueOffset": 1}
    bench.position = 100
    bench.service.advance()
    assert len(bench.answers) == 1


@pytest.mark.trio
async def test_a_late_put_that_is_synced_says_so(nursery: trio.Nursery) -> None:
    bench = Bench(slave_timeout="20ms")
    nursery.start_soon(bench.service.expire)
    bench.put(1)
    bench.put(2)
    bench.store.flushed_offset = 100
    with trio.fail_after(5):
        while len(bench.answers) < 2:
            await trio.sleep(0.005)
    assert [answer.ext["ack"] for _, answer in bench.answers] == ["flushed", "page_cache"]


def test_a_commit_of_the_pool_wakes_the_slaves() -> None:
    bench = Bench()
    bench.service.committed()
    assert bench.woken == 1


@pytest.mark.trio
async def test_a_commit_waits_until_the_set_has_it(autojump_clock: object) -> None:
    bench = Bench()
    store: Any = bench.service._store
    store.confirm_offset = None
    await bench.service.confirmed_to(500)  # without an election there is no set
    store.confirm_offset = 300
    done = trio.Event()

    async def wait() -> None:
        await bench.service.confirmed_to(500)
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for offset, is_done in ((300, False), (499, False), (500, True)):
            store.confirm_offset = offset
            bench.service.advance()
            await trio.sleep(1)
            assert done.is_set() is is_done


@pytest.mark.trio
async def test_a_set_that_does_not_confirm_is_waited_for_as_long_as_slaves_are(
    autojump_clock: object,
) -> None:
    bench = Bench()
    store: Any = bench.service._store
    store.confirm_offset = 300
    started_at = trio.current_time()
    with pytest.raises(Refusal, match="the in-sync set took longer than ha") as refused:
        await bench.service.confirmed_to(500)
    assert trio.current_time() - started_at == bench.service._config.slave_timeout
    assert refused.value.error.retryable
    await bench.service.confirmed_to(300)
