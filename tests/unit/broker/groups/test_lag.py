"""How old unconsumed messages are, looked up in a real store, near the end of the log and far from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reput_broker.groups.consumer_groups import ConsumerGroups
from reput_broker.groups.lag import GroupPositions, GroupProgress, LagService, StoreTimes
from reput_broker.store.base.errors import FileMissing
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.offsets import ConsumerOffsetManager
from support.stores import T0, FakeClock, dispatch_all, opened, put, small_options


class Bench:
    def __init__(self, path: Path, memory_bytes: int) -> None:
        self.clock = FakeClock()
        self.store: MessageStore = opened(small_options(path / "store", memory_bytes=memory_bytes), self.clock)
        self.offsets = ConsumerOffsetManager(path / "config" / "consumerOffset.json", clock_ms=self.clock)
        self.offsets.load()
        self.times = StoreTimes(self.store)
        positions = GroupPositions(self.offsets, GroupProgress(), ConsumerGroups())
        self.service = LagService(self.store, positions, self.times, clock_ms=self.clock)

    def put(self, count: int, queue_id: int = 0, step_ms: int = 1000) -> None:
        for _ in range(count):
            put(self.store, b"m", queue_id=queue_id)
            self.clock.now_ms += step_ms
        dispatch_all(self.store)


@pytest.fixture(params=[1 << 30, 0], ids=["in memory", "cold"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(tmp_path, request.param)
    yield bench
    bench.store.close()
    bench.offsets.close()


@pytest.mark.trio
async def test_store_times_of_single_messages(bench: Bench) -> None:
    bench.put(5)
    assert [await bench.times.at("T", 0, offset) for offset in (0, 4, 5, -1)] == [T0, T0 + 4000, -1, -1]
    assert await bench.times.at("T", 9, 0) == -1


@pytest.mark.trio
async def test_the_age_is_that_of_the_oldest_uncommitted_message_of_the_topic(bench: Bench) -> None:
    bench.put(10)
    bench.put(5, queue_id=1)
    bench.offsets.commit("g", "T", 0, 8)
    bench.offsets.commit("g", "T", 1, 2)
    bench.offsets.commit("done", "T", 1, 5)
    await bench.service.refresh()
    figures = bench.service.figures
    assert figures.seconds == {("g", "T"): 7.0, ("done", "T"): 0.0}
    assert figures.looked_up_at_s == bench.clock.now_ms / 1000
    first_seen_ms = bench.clock.now_ms
    assert figures.oldest["g", "T", 1] == (2, T0 + 12_000, first_seen_ms)
    assert ("done", "T", 1) not in figures.oldest
    bench.clock.now_ms += 10_000
    await bench.service.refresh()
    assert figures.seconds["g", "T"] == 17.0, "it gets older"
    assert figures.oldest["g", "T", 1].seen_ms == first_seen_ms, "and is the same"
    bench.offsets.commit("g", "T", 0, 10)
    await bench.service.refresh()
    assert figures.seconds["g", "T"] == 13.0
    figures.forget_group("g")
    figures.forget_topic("T")
    assert (figures.oldest, figures.seconds) == ({}, {})


@pytest.mark.trio
async def test_a_group_that_has_not_moved_is_not_looked_up_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.put(3)
    bench.offsets.commit("g", "T", 0, 1)
    looks: list[int] = []
    look = bench.times.at

    async def at(topic: str, queue_id: int, offset: int) -> int:
        looks.append(offset)
        return await look(topic, queue_id, offset)

    monkeypatch.setattr(bench.times, "at", at)
    for _ in range(3):
        await bench.service.refresh()
    bench.offsets.commit("g", "T", 0, 2)
    await bench.service.refresh()
    assert looks == [1, 2]


@pytest.mark.trio
async def test_one_queue_that_cannot_be_read_does_not_hide_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.put(2)
    bench.put(2, queue_id=1)
    bench.offsets.commit("g", "T", 0, 0)
    bench.offsets.commit("g", "T", 1, 0)
    look = bench.times.at

    async def at(topic: str, queue_id: int, offset: int) -> int:
        if queue_id == 0:
            raise FileMissing("consumequeue/T/0", "it has a hole")
        return await look(topic, queue_id, offset)

    monkeypatch.setattr(bench.times, "at", at)
    await bench.service.refresh()
    assert bench.service.figures.seconds == {("g", "T"): 2.0}


@pytest.mark.trio
async def test_messages_that_have_expired_are_not_waited_for(bench: Bench) -> None:
    bench.put(3)
    bench.offsets.commit("g", "T", 0, 99)
    bench.offsets.commit("g", "gone", 0, 1)
    await bench.service.refresh()
    assert bench.service.figures.seconds == {("g", "T"): 0.0, ("g", "gone"): 0.0}


def test_delivered_messages_and_times_of_commits() -> None:
    progress = GroupProgress()
    assert progress.pulled("g", "T", 0, 3, 10, "10.0.0.1:5") == 0
    assert progress.pulled("g", "T", 0, 6, 9, "10.0.0.1:5") == 3, "6 to 8 were pulled before"
    assert progress.pulled("g", "T", 0, 9, 10, "10.0.0.1:5") == 0
    progress.committed("g", "T", 0, 77)
    progress.committed("g", "U", 1, 78)
    queue = progress.get("g", "T", 0)
    assert queue is not None
    assert (queue.pull_offset, queue.peer, queue.committed_at_ms) == (10, "10.0.0.1:5", 77)
    assert queue.first_offset == 3
    assert [(group, topic, list(queues)) for group, topic, queues in progress.items()] == [
        ("g", "T", [0]),
        ("g", "U", [1]),
    ]
    progress.forget_queues("g", "T", [0])
    assert progress.get("g", "T", 0) is None
    progress.forget_topic("U")
    progress.forget_group("g")
    assert list(progress.items()) == []
