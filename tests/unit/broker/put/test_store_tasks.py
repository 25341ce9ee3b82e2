"""Queues are synced by pages and by the clock, and the checkpoint follows."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from reput_broker.config.sections import StoreConfig
from reput_broker.observe.counters import Counters
from reput_broker.put.put_path import StoreTasks
from reput_broker.store.base.errors import StoreReadOnly
from support.tasks import running


class FakeStore:
    """Notes when which sync was asked for, in seconds since the start."""

    def __init__(self) -> None:
        self.dispatched_offset = self.max_physical_offset = self.flushed_offset = 0
        self.pages = 0
        self.flushes: list[tuple[float, int]] = []
        self.checkpoints: list[float] = []
        self.failing = False
        self.began = trio.current_time()

    def put(self, size: int, pages: int) -> None:
        self.max_physical_offset += size
        self.flushed_offset = self.dispatched_offset = self.max_physical_offset
        self.pages += pages

    def flush_index(self) -> None:
        pass

    def flush_consume_queues(self, least_pages: int) -> bool:
        self.flushes.append((round(trio.current_time() - self.began, 3), least_pages))
        if self.failing:
            raise StoreReadOnly("the disk is gone")
        if self.pages < least_pages:
            return False
        self.pages = 0
        return True

    def write_checkpoint(self) -> None:
        self.checkpoints.append(round(trio.current_time() - self.began, 3))
        if self.failing:
            raise StoreReadOnly("the disk is gone")


def tasks_of(store: Any, **options: Any) -> StoreTasks:
    return StoreTasks(store, StoreConfig(**{"consume_queue_flush_least_pages": 2, **options}), Counters())


@pytest.mark.trio
async def test_queues_are_synced_by_pages_and_thoroughly_once_a_minute(by_the_clock: trio.testing.MockClock) -> None:
    """(RocketMQ: FlushConsumeQueueService, with its figures.)"""
    store = FakeStore()
    async with running(tasks_of(store).flush_queues):
        await trio.sleep(5.5)
        assert store.flushes == [], "with nothing dispatched nothing is asked of the disk"
        store.put(100, pages=2)
        await trio.sleep(3)
        assert store.flushes == [(6, 2)], "once everything is on the disk there is no more to do"
        store.put(100, pages=1)
        await trio.sleep(3)
        assert store.flushes[1:] == [(9, 2), (10, 2), (11, 2)], "too little; it is looked at again"
        await trio.sleep(50)
        assert store.flushes[-1] == (60, 0)
        assert store.checkpoints == [60]
        await trio.sleep(100)
        assert store.flushes[-1] == (60, 0)
        assert store.checkpoints == [60], "a thorough round with nothing new costs nothing"


@pytest.mark.trio
async def test_the_checkpoint_follows_the_log_and_the_queues(by_the_clock: trio.testing.MockClock) -> None:
    store = FakeStore()
    service = tasks_of(store, consume_queue_flush_interval="10s", checkpoint_interval="1s")
    async with running(service.flush_queues, service.write_checkpoints):
        await trio.sleep(1.5)
        store.put(100, pages=2)
        await trio.sleep(5)
        assert store.checkpoints == [1, 2], "the first, and one for what was put"
        await trio.sleep(6)
        assert store.flushes == [(10, 2)]
        assert len(store.checkpoints) == 3, "how far the queues are on the disk is news as well"
        assert store.checkpoints[2] in (10, 11)
        await trio.sleep(30)
        assert len(store.checkpoints) == 3


@pytest.mark.trio
async def test_failures_are_counted_and_tried_again(by_the_clock: trio.testing.MockClock) -> None:
    store = FakeStore()
    service = tasks_of(store, consume_queue_flush_thorough_interval="2s")
    store.failing = True
    async with running(service.flush_queues):
        await trio.sleep(0.5)
        store.put(100, pages=5)
        await trio.sleep(2)
        assert store.flushes == [(1, 2), (2, 0)]
        assert service._counters.flush_errors["consumequeue"] == 2
        assert store.checkpoints == [2]
        store.failing = False
        await trio.sleep(5)
        assert store.flushes == [(1, 2), (2, 0), (3, 2)]
