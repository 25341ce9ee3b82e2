"""With a pool, page_cache is answered by the commit: one for all waiting puts, by the clock for oneway ones."""

from __future__ import annotations

import threading
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
from reput_broker.put.put_path import CommitRealTimeService, FlushCommitLogService
from reput_broker.remoting.request import Response
from reput_broker.store.base.errors import DiskFull, StoreReadOnly
from reput_broker.store.base.file_io import is_able_to_flush
from reput_protocol.codes import AckLevel, ResponseCode
from support.log_progress import FakeLog, progress_of

FILE = 1 << 20


class FakeStore(FakeLog):
    """A log whose commits and syncs succeed, wait or fail as the test says."""

    committed_offset = 0

    def __init__(self) -> None:
        super().__init__()
        self.buffers_available = 1
        self.commits = self.syncs = 0
        self.failure: Exception | None = None
        self.go_on = threading.Event()
        self.go_on.set()

    @property
    def commit_behind_bytes(self) -> int:
        return self.written - self.committed_offset

    def is_able_to_commit(self, least_pages: int) -> bool:
        return is_able_to_flush(self.committed_offset, self.written, FILE, least_pages)

    def is_able_to_flush(self, least_pages: int) -> bool:
        return is_able_to_flush(self.flushed_offset, self.committed_offset, FILE, least_pages)

    def commit_buffers(self) -> int:
        target = self.written
        self.commits += 1
        assert self.go_on.wait(30)
        if self.failure is not None:
            raise self.failure
        self.committed_offset = target
        return target

    def flush_commit_log(self) -> int:
        self.syncs += 1
        self.committed_offset = self.flushed_offset = self.written
        return self.written


class Bench:
    """Both services over a fake store, connected as the broker connects them, and the answers they gave."""

    def __init__(self, flush: str = "async", **options: Any) -> None:
        self.store = FakeStore()
        self.counters = Counters()
        self.answers: list[tuple[int, Response]] = []
        self.commits_seen = 0
        self.failures: list[str] = []
        store: Any = self.store
        config = StoreConfig(flush=flush, **options)  # type: ignore[arg-type]
        self.progress = progress = progress_of(store, self.counters, store_config=config)
        self.flush = FlushCommitLogService(store, config, self.counters, progress, self.failures.append)
        self.commit = CommitRealTimeService(store, config, progress, self.failures.append)
        progress.committed.follow(self._committed)

    def _committed(self) -> None:
        self.commits_seen += 1
        self.flush.committed()

    def pending(self, number: int) -> PendingRequest:
        client = SimpleNamespace(answer=lambda _, response: self.answers.append((number, response)), flush=lambda: None)
        request: Any = SimpleNamespace(client=client, received_at=time.monotonic())
        return PendingRequest(request, Response(0, {"queueOffset": number, "ack": "page_cache"}), 1, Fence())

    def put(self, number: int, *, flushed: bool = False) -> None:
        """Append 100 bytes and wait for their commit, or their sync."""
        self.append(100)
        level = AckLevel.FLUSHED if flushed else AckLevel.PAGE_CACHE
        self.progress.answer_when(level, self.store.written, self.pending(number))

    def append(self, size: int) -> None:
        """Append `size` bytes."""
        self.store.written += size
        self.progress.appended.advance(self.store.written)

    @property
    def answered(self) -> list[int]:
        return [number for number, _ in self.answers]


async def settled() -> None:
    """Wait until nothing moves, worker threads included."""
    for _ in range(3):
        await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.mark.trio
async def test_puts_that_wait_together_share_a_commit() -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        for number in range(50):
            bench.put(number)
        nursery.start_soon(bench.commit.run)
        await settled()
        assert bench.answered == [*range(50)]
        assert (bench.store.commits, bench.store.syncs, bench.commits_seen) == (1, 0, 1)
        assert bench.counters.produce_seconds["page_cache"].count == 50
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_puts_that_come_during_a_commit_share_the_next() -> None:
    bench = Bench()
    bench.store.go_on.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.commit.run)
        bench.put(0)
        while not bench.store.commits:
            await trio.sleep(0.001)
        for number in (1, 2, 3):
            bench.put(number)
        assert bench.answered == []
        bench.store.go_on.set()
        await settled()
        assert bench.answered == [0, 1, 2, 3]
        assert bench.store.commits == 2
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_sync_commits_and_releases_who_waits_for_that() -> None:
    bench = Bench("sync")
    bench.put(0)
    bench.put(1, flushed=True)
    await bench.flush.flush_now()
    assert bench.answered == [0, 1]
    assert bench.store.commits == 0


@pytest.mark.trio
async def test_under_sync_flush_a_commit_asks_for_the_sync() -> None:
    bench = Bench("sync")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.commit.run)
        nursery.start_soon(bench.flush.run)
        bench.put(0)
        await settled()
        assert bench.answered == [0]
        assert (bench.store.commits, bench.store.syncs) == (1, 1)
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_unawaited_puts_are_committed_by_the_clock(by_the_clock: trio.testing.MockClock) -> None:
    """(RocketMQ: CommitRealTimeService, with its figures but for the thorough interval.)"""
    bench = Bench(commit_thorough_interval="10s")
    store = bench.store
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.commit.run)
        await trio.sleep(0.1)
        bench.append(4 * 4096 - 1)
        await trio.sleep(9)
        assert store.commits == 0, "three pages and something are too little"
        await trio.sleep(2)
        assert (store.commits, store.committed_offset) == (1, 4 * 4096 - 1)
        bench.append(5 * 4096)
        await trio.sleep(0.1)
        assert store.commits == 1
        await trio.sleep(0.2)
        assert store.commits == 2
        await trio.sleep(3600)
        assert store.commits == 2, "with nothing to commit nothing wakes"
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_the_thorough_interval_takes_whatever_there_is(by_the_clock: trio.testing.MockClock) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.commit.run)
        await trio.sleep(100)
        bench.append(1)
        await trio.sleep(0.25)
        assert bench.store.committed_offset == 1
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_thresholds_change_while_it_runs(by_the_clock: trio.testing.MockClock) -> None:
    bench = Bench(commit_thorough_interval="10m", commit_least_pages=100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.commit.run)
        await trio.sleep(0.1)
        bench.append(4096)
        await trio.sleep(1)
        assert bench.store.commits == 0
        object.__setattr__(bench.commit._config, "commit_least_pages", 1)  # as a reload does
        await trio.sleep(0.25)
        assert bench.store.commits == 1
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_without_room_a_commit_is_tried_again_until_there_is(by_the_clock: trio.testing.MockClock) -> None:
    bench = Bench()
    bench.store.failure = DiskFull("commitlog/0", 100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.commit.run)
        bench.put(0)
        await trio.sleep(5.5)
        assert bench.answered == []
        assert bench.store.commits == 6, "once a second"
        bench.store.failure = None
        await trio.sleep(1)
        assert bench.answered == [0]
        assert bench.answers[0][1].code == 0
        assert bench.failures == []
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_sync_whose_commit_found_no_room_leaves_it_to_the_commit_service(
    by_the_clock: trio.testing.MockClock,
) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.commit.run)
        nursery.start_soon(bench.flush.run)
        real, bench.store.flush_commit_log = bench.store.flush_commit_log, lambda: 0  # type: ignore[method-assign]
        bench.put(0, flushed=True)
        await trio.sleep(0.05)
        assert bench.answered == []
        bench.store.flush_commit_log = real  # type: ignore[method-assign]
        await trio.sleep(0.3)
        assert bench.answered == [0]
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_failed_commit_is_final_and_what_it_held_is_not_stored() -> None:
    bench = Bench()
    bench.store.failure = StoreReadOnly("the disk is gone")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.commit.run)
        bench.put(0)
        await settled()
        assert bench.answered == [0]
        bench.put(1)
        assert bench.answered == [0, 1]
    for _, response in bench.answers:
        assert response.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "READ_ONLY" in str(response.remark)
        assert "not stored: the store is read-only: the disk is gone" in str(response.remark)
        assert not response.ext
    assert bench.store.commits == 1
    assert len(bench.failures) == 1


@pytest.mark.trio
async def test_a_failed_sync_admits_what_is_committed_and_refuses_the_rest() -> None:
    bench = Bench("sync")

    def fail() -> int:
        raise StoreReadOnly("the disk is gone")

    bench.store.flush_commit_log = fail  # type: ignore[method-assign]
    bench.put(0, flushed=True)
    bench.store.committed_offset = bench.store.written
    bench.put(1, flushed=True)
    await bench.flush.flush_now()
    assert [(number, response.code) for number, response in bench.answers] == [
        (0, ResponseCode.FLUSH_DISK_TIMEOUT),
        (1, ResponseCode.SERVICE_NOT_AVAILABLE),
    ]


@pytest.mark.trio
async def test_a_late_put_that_is_not_even_committed_waits_on() -> None:
    """Its receipt would say page_cache, and that would not be true."""
    bench = Bench("sync", sync_timeout="20ms")
    bench.put(0, flushed=True)
    bench.store.committed_offset = bench.store.written
    bench.put(1, flushed=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bench.progress.expire)
        with trio.fail_after(30):
            while not bench.answers:
                await trio.sleep(0.002)
        await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    assert [(number, response.ext["ack"]) for number, response in bench.answers] == [(0, "page_cache")]


@pytest.mark.trio
@pytest.mark.parametrize("ends_first", ["sync", "commit"])
async def test_what_a_sync_commits_is_passed_on(ends_first: str) -> None:
    """Else slaves hear of it only with the next append."""
    bench = Bench()
    bench.store.written += 100
    if ends_first == "sync":
        await bench.flush.flush_now()
    else:
        bench.store.flush_commit_log()  # still in its thread
        await bench.commit.commit_now()
    assert bench.commits_seen == 1
    await bench.flush.flush_now()
    assert bench.commits_seen == 1
