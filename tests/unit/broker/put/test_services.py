"""Dispatch is driven at once for one putter, together for several, and never given up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from reput_broker.put.progress import Position
from reput_broker.put.put_path import AllocateService, ReputMessageService
from reput_broker.store.base.errors import DiskFull, FileNotMade, StoreReadOnly


class FakeStore:
    """A log with so many records to dispatch, so many a step, of one KiB each."""

    def __init__(self) -> None:
        self.behind = 0
        self.step_max = 10
        self.dispatched = 0
        self.steps = 0
        self.failures: list[Exception] = []
        self.is_writable = True
        self.half_full = False
        self.made = 0
        self.file_refusal: Exception | None = None
        self.has_files_to_unlock = False
        self.unlocked = 0
        self.want_file = lambda: None

    def when_file_wanted(self, call: Callable[[], None]) -> None:
        self.want_file = call

    def unlock_full_files(self) -> None:
        self.has_files_to_unlock = False
        self.unlocked += 1

    def dispatch_is_idle(self) -> bool:
        return not self.behind

    def reput_step(self) -> int:
        self.steps += 1
        if self.failures:
            raise self.failures.pop(0)
        dispatched = min(self.behind, self.step_max)
        self.behind -= dispatched
        self.dispatched += dispatched
        return dispatched

    @property
    def dispatch_behind_bytes(self) -> int:
        return 1024 * self.behind

    @property
    def dispatched_offset(self) -> int:
        return 1024 * self.dispatched

    def should_prepare_next_file(self) -> bool:
        return self.half_full

    def prepare_next_file(self) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.made += 1
        self.half_full = False


def service(store: Any) -> tuple[ReputMessageService, list[int]]:
    behind_after_each: list[int] = []

    dispatched = Position()
    dispatched.follow(lambda: behind_after_each.append(store.behind))
    return ReputMessageService(store, dispatched), behind_after_each


def test_what_one_client_put_is_dispatched_before_its_next_request() -> None:
    store = FakeStore()
    reput, steps = service(store)
    reput.dispatch_put_by("a")  # who puts for the first time might be one of many
    store.behind = 5
    reput.dispatch_put_by("a")
    assert steps == [0]


def test_a_reader_sees_what_was_acknowledged_before() -> None:
    store = FakeStore()
    reput, steps = service(store)
    reput.dispatch_acknowledged(can_wait=False)
    assert store.steps == 0, "there is nothing to dispatch"
    store.behind = 5
    reput.dispatch_acknowledged(can_wait=False)
    assert steps == [0]
    store.behind = 20
    reput.dispatch_acknowledged(can_wait=True)
    assert store.behind == 20, "it will be told"
    reput.dispatch_acknowledged(can_wait=False)
    assert store.behind == 0
    store.behind = 1000
    reput.dispatch_acknowledged(can_wait=False)
    assert store.behind == 1000 - 4 * store.step_max, "so much is not worth keeping the others waiting"


def test_puts_of_several_clients_are_dispatched_together() -> None:
    store = FakeStore()
    reput, steps = service(store)
    for putter in ("a", "b", "a", "b"):
        store.behind += 5
        reput.dispatch_put_by(putter)
    assert (steps, store.behind) == ([], 20)


@pytest.mark.trio
async def test_the_rest_is_dispatched_by_the_task() -> None:
    store = FakeStore()
    reput, steps = service(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reput.run)
        await trio.testing.wait_all_tasks_blocked()
        store.behind = 35
        reput.dispatch_put_by("a")
        await trio.testing.wait_all_tasks_blocked()
        assert steps == [25, 15, 5, 0]
        store.behind = 15
        reput.dispatch_put_by("a")
        assert store.behind == 5, "one step at once"
        await trio.testing.wait_all_tasks_blocked()
        assert store.behind == 0, "and the rest soon"
        store.behind = 25
        reput.dispatch_put_by("a")
        assert store.behind == 25, "so much is not worth keeping its putter waiting"
        await trio.testing.wait_all_tasks_blocked()
        assert store.behind == 0
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_under_load_a_millisecond_of_it_is_dispatched_together(autojump_clock: trio.testing.MockClock) -> None:
    store = FakeStore()
    store.step_max = 1024
    reput, _ = service(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reput.run)
        for _ in range(300):
            store.behind += 64
            reput.dispatch_put_by("a")
            await trio.sleep(0.0001)
        await trio.sleep(0.002)
        assert (store.behind, store.dispatched) == (0, 300 * 64)
        assert 29 <= store.steps <= 80, "30 ms"
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_dispatch_far_behind_does_not_rest(autojump_clock: trio.testing.MockClock) -> None:
    store = FakeStore()
    store.step_max = 1024
    reput, _ = service(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reput.run)
        store.behind = 100 * 1024
        reput.dispatch_put_by("a")
        began = trio.current_time()
        while store.behind:
            await trio.lowlevel.checkpoint()
        assert trio.current_time() == began
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_nothing_to_do_costs_nothing(autojump_clock: trio.testing.MockClock) -> None:
    store = FakeStore()
    reput, _ = service(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reput.run)
        await trio.sleep(3600)
        nursery.cancel_scope.cancel()
    assert store.steps == 0


@pytest.mark.trio
async def test_a_step_that_fails_is_tried_again(
    autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    store = FakeStore()
    reput, steps = service(store)
    store.failures = [StoreReadOnly("no space"), StoreReadOnly("no space")]
    store.behind = 5
    reput.dispatch_put_by("a")
    reput.dispatch_put_by("a")  # fails without harm to the putter
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reput.run)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert steps == [0]
    assert "dispatch_stopped" in capsys.readouterr().out


@pytest.mark.trio
async def test_what_cannot_be_dispatched_yet_is_tried_every_millisecond(autojump_clock: trio.testing.MockClock) -> None:
    store = FakeStore()
    waiting = 3

    def step() -> int:  # the bytes of a block are there, its length is not
        nonlocal waiting
        waiting -= 1
        store.behind = 1 if waiting else 0
        return 0

    store.reput_step = step  # type: ignore[method-assign]
    store.behind = 1
    reput, _ = service(store)
    started_at = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reput.run)
        while waiting:
            await trio.sleep(0.0001)
        nursery.cancel_scope.cancel()
    assert trio.current_time() - started_at == pytest.approx(0.002, abs=0.0005)


@pytest.mark.trio
async def test_the_next_file_is_created_once_and_failures_are_tried_again(
    by_the_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once a second, though nothing is put or dispatched meanwhile: puts may be refused without that file."""
    store: Any = FakeStore()
    allocate = AllocateService(store)
    store.failures = [
        *[DiskFull("commitlog/1024", 1024)] * 3,
        FileNotMade("commitlog/1024", OSError(5, "Input/output error")),
        OSError(24, "Too many open files"),
    ]
    store.half_full = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(allocate.run)
        store.want_file()
        await trio.sleep(4.5)
        assert store.made == 0
        await trio.sleep(1)
        assert store.made == 1
        await trio.sleep(10)
        assert store.made == 1
        nursery.cancel_scope.cancel()
    said = capsys.readouterr().out
    assert said.count("next_file_not_made") == 3, "each reason once"


@pytest.mark.trio
async def test_a_store_that_cannot_append_after_a_start_gets_its_file_later(
    by_the_clock: trio.testing.MockClock,
) -> None:
    store: Any = FakeStore()
    store.file_refusal = DiskFull("commitlog/0", 1024)
    store.failures = [DiskFull("commitlog/0", 1024)]
    store.half_full = True
    allocate = AllocateService(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(allocate.run)
        await trio.sleep(1.5)
        assert store.made == 1
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_file_that_is_lacking_is_made_once_puts_are_taken_again(by_the_clock: trio.testing.MockClock) -> None:
    """While dispatch waits for space, say, none is created; there are no puts or dispatches when that is over."""
    store: Any = FakeStore()
    store.file_refusal = DiskFull("commitlog/0", 1024)
    allocate = AllocateService(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(allocate.run)
        await trio.sleep(5.5)
        assert store.made == 0
        store.half_full = True
        await trio.sleep(1)
        assert store.made == 1
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_files_are_made_when_an_append_says_so(by_the_clock: trio.testing.MockClock) -> None:
    store: Any = FakeStore()
    store.half_full = True
    allocate = AllocateService(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(allocate.run)
        await trio.sleep(0.1)
        assert store.made == 0, "not because the broker has started"
        store.want_file()
        await trio.sleep(0.1)
        assert store.made == 1
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_locked_files_are_unlocked_some_seconds_after_they_are_full(by_the_clock: trio.testing.MockClock) -> None:
    """(RocketMQ: six seconds.)"""
    store: Any = FakeStore()
    allocate = AllocateService(store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(allocate.run)
        nursery.start_soon(allocate.unlock_full_files)
        await trio.sleep(100)
        store.want_file()
        await trio.sleep(100)
        assert store.unlocked == 0
        store.has_files_to_unlock = True
        store.want_file()
        await trio.sleep(5.9)
        assert store.unlocked == 0
        await trio.sleep(0.2)
        assert store.unlocked == 1
        nursery.cancel_scope.cancel()
