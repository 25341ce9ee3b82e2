"""Group commit: one sync answers all waiting puts; late and failed syncs differ."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from reput_broker.config.sections import StoreConfig
from reput_broker.observe.counters import Counters
from reput_broker.put.progress import PendingRequest
from reput_broker.put.put_lock import Fence
from reput_broker.put.put_path import FlushCommitLogService
from reput_broker.remoting.request import Refusal, Response
from reput_broker.store.base.errors import StoreReadOnly
from reput_broker.store.base.file_io import is_able_to_flush
from reput_protocol.codes import AckLevel, ResponseCode
from support.log_progress import FakeLog, progress_of
from support.tasks import running


class FakeStore(FakeLog):
    """A log whose syncs succeed, hang or fail as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self.failing = False
        self.delay_s = 0.0

    @property
    def flush_behind_bytes(self) -> int:
        return self.written - self.flushed_offset

    def is_able_to_flush(self, least_pages: int) -> bool:
        return is_able_to_flush(self.flushed_offset, self.written, 1 << 20, least_pages)

    def flush_commit_log(self) -> int:
        target = self.written
        self.syncs += 1
        time.sleep(self.delay_s)
        if self.failing:
            raise StoreReadOnly("the disk is gone")
        self.flushed_offset = target
        return target


class Bench:
    """A flush service over a fake store, and the answers it gave."""

    def __init__(self, flush: str = "sync", **options: Any) -> None:
        self.store = FakeStore()
        self.answers: list[tuple[int, Response]] = []
        self.flushes = 0
        self.failures: list[str] = []
        store: Any = self.store
        self.counters = Counters()
        config = StoreConfig(flush=flush, **options)  # type: ignore[arg-type]
        self.progress = progress_of(store, self.counters, store_config=config)
        self.progress.flushed.follow(self._flushed)
        self.service = FlushCommitLogService(store, config, self.counters, self.progress, self.failures.append)

    def _flushed(self) -> None:
        self.flushes += 1

    def put(self, number: int) -> None:
        """Append 100 bytes and wait for their sync."""
        self.store.written += 100
        client = SimpleNamespace(answer=lambda _, response: self.answers.append((number, response)), flush=lambda: None)
        request: Any = SimpleNamespace(client=client, received_at=time.monotonic())
        request.reply = lambda response: self.answers.append((number, response))
        response = Response(0, {"queueOffset": number, "ack": "flushed"})
        pending = PendingRequest(request, response, 1, Fence())
        self.progress.answer_when(AckLevel.FLUSHED, self.store.written, pending)

    async def answered(self, count: int) -> None:
        with trio.fail_after(30):
            while len(self.answers) < count:
                await trio.sleep(0.002)


@pytest.mark.trio
async def test_puts_that_wait_together_share_a_sync() -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        for number in range(50):
            bench.put(number)
        nursery.start_soon(bench.service.run)
        await bench.answered(50)
        nursery.cancel_scope.cancel()
    assert bench.store.syncs == 1
    assert bench.flushes == 1
    assert [number for number, _ in bench.answers] == list(range(50))
    assert {response.code for _, response in bench.answers} == {0}
    assert bench.counters.flush_batch_messages.count == 1


@pytest.mark.trio
async def test_puts_that_come_during_a_sync_wait_for_the_next() -> None:
    bench = Bench()
    bench.store.delay_s = 0.05
    async with running(bench.service.run):
        bench.put(0)
        await trio.sleep(0.02)
        bench.put(1)
        bench.put(2)
        await bench.answered(3)
    assert bench.store.syncs == 2


@pytest.mark.trio
async def test_a_sync_that_takes_too_long_is_answered_with_the_receipt() -> None:
    bench = Bench(sync_timeout="20ms")
    bench.store.delay_s = 0.3
    async with running(bench.service.run, bench.progress.expire):
        bench.put(7)
        await bench.answered(1)
    _, response = bench.answers[0]
    assert response.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert response.ext["queueOffset"] == 7
    assert response.ext["ack"] == "page_cache"
    assert "do not send again" in str(response.remark)
    assert bench.failures == []


@pytest.mark.trio
async def test_a_failed_sync_is_final_and_all_waiters_are_notified() -> None:
    bench = Bench()
    bench.store.failing = True
    async with running(bench.service.run):
        bench.put(0)
        await bench.answered(1)
        bench.store.failing = False
        bench.put(1)
        await bench.answered(2)
    assert [response.code for _, response in bench.answers] == [ResponseCode.FLUSH_DISK_TIMEOUT] * 2
    assert bench.store.syncs == 1, "no sync is tried after one has failed"
    assert len(bench.failures) == 1
    assert bench.counters.flush_errors["commitlog"] == 1


@pytest.mark.trio
async def test_asynchronous_flush_syncs_by_the_clock_and_at_once_for_who_waits() -> None:
    bench = Bench("async", flush_interval="30ms", flush_least_pages=0)
    async with running(bench.service.run):
        bench.store.written += 100
        await trio.sleep(0.005)
        assert bench.store.syncs == 0
        with trio.fail_after(30):
            while bench.store.flushed_offset < 100:
                await trio.sleep(0.005)
        bench.put(1)
        await bench.answered(1)
    assert bench.answers[0][1].code == 0


@pytest.mark.trio
async def test_asynchronous_flush_waits_for_pages_or_for_the_thorough_round(
    by_the_clock: trio.testing.MockClock,
) -> None:
    """(RocketMQ: FlushRealTimeService, with its figures.)"""
    bench = Bench("async", flush_least_pages=4)
    store = bench.store
    async with running(bench.service.run):
        await trio.sleep(0.1)
        store.written = 4 * 4096 - 1
        await trio.sleep(9.8)
        assert store.syncs == 0, "three pages and something are too little"
        await trio.sleep(0.2)  # the round at 10 s
        assert (store.syncs, store.flushed_offset) == (1, 4 * 4096 - 1)
        store.written = 7 * 4096 - 1
        await trio.sleep(5)
        assert store.syncs == 1, "from the fourth page on, three have been begun"
        store.written = 7 * 4096
        await trio.sleep(0.5)
        assert (store.syncs, store.flushed_offset) == (2, 7 * 4096)
        await trio.sleep(100)
        assert store.syncs == 2, "nothing is synced that is on the disk already"
        store.written += 1
        bench.put(1)
        await trio.testing.wait_all_tasks_blocked()
        assert (store.syncs, len(bench.answers)) == (3, 1), "who waits gets a sync at once"


@pytest.mark.trio
async def test_a_file_that_is_full_is_synced_at_the_next_look(by_the_clock: trio.testing.MockClock) -> None:
    bench = Bench("async", flush_interval="2s", flush_least_pages=4, flush_thorough_interval="5m")
    store = bench.store
    store.written = store.flushed_offset = (1 << 20) - 100
    async with running(bench.service.run):
        await trio.sleep(0.1)
        store.written = (1 << 20) - 1
        await trio.sleep(10)
        assert store.syncs == 0
        store.written = 1 << 20
        await trio.sleep(2)
        assert store.flushed_offset == 1 << 20


@pytest.mark.trio
async def test_thresholds_change_while_it_runs_and_do_not_affect_group_commit(
    by_the_clock: trio.testing.MockClock,
) -> None:
    bench = Bench("async", flush_least_pages=4)
    async with running(bench.service.run):
        await trio.sleep(0.1)
        bench.store.written = 1
        await trio.sleep(1)
        assert bench.store.syncs == 0
        object.__setattr__(bench.service._config, "flush_least_pages", 0)  # as a reload does
        await trio.sleep(0.5)
        assert bench.store.syncs == 1
    bench = Bench("sync", flush_least_pages=100, flush_thorough_interval="10m")
    async with running(bench.service.run):
        bench.store.written = 1
        bench.service.want()
        await trio.testing.wait_all_tasks_blocked()
        assert bench.store.syncs == 1
        bench.put(1)
        await trio.testing.wait_all_tasks_blocked()
        assert (bench.store.syncs, len(bench.answers)) == (2, 1)
        await trio.sleep(3600)
        assert bench.store.syncs == 2, "no clock syncs anything"


@pytest.mark.trio
@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_waiting_for_an_offset_syncs_it(flush: str) -> None:
    bench = Bench(flush, flush_interval="10s")
    bench.store.written = 300
    async with running(bench.service.run):
        with trio.fail_after(30):
            await bench.progress.flushed.reached(200)
            assert bench.store.flushed_offset == 300
            syncs = bench.store.syncs
            await bench.progress.flushed.reached(300)
    assert bench.store.syncs == syncs, "it was on the disk already"


@pytest.mark.trio
async def test_waiters_for_an_offset_learn_that_a_sync_failed() -> None:
    bench = Bench()
    bench.store.written = 300
    bench.store.failing = True
    async with running(bench.service.run):
        with trio.fail_after(30):
            for _ in range(2):
                with pytest.raises(Refusal, match="the disk is gone"):
                    await bench.progress.flushed.reached(300)
