"""The durable end of a queue when the log is not flushed to its end."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from reput_broker.store.queue.table import QueueOffsets


class Queue:
    def __init__(self, low: int, ends: list[int]) -> None:
        self.min_queue_offset = low
        self.max_queue_offset = low + len(ends)
        self.ends = ends
        self.asked: list[int] = []

    def get_unit(self, queue_offset: int) -> Any:
        self.asked.append(queue_offset)
        end = self.ends[queue_offset - self.min_queue_offset]
        return SimpleNamespace(end_offset=end) if end else None


def offsets(queue: Queue, flushed: int) -> QueueOffsets:
    log = SimpleNamespace(flushed_offset=flushed, max_offset=1 << 40)
    return QueueOffsets(log, SimpleNamespace(get=lambda *_: queue), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(30))
def test_it_is_the_first_message_that_ends_behind_it(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.choice((0, 1, 5, 1023, 1024, 1025, 5000, 20_000))
    blanks = chance.choice((0, 0, min(3, count)))
    ends = [0] * blanks + [10 * (number + 1) for number in range(count - blanks)]
    low = chance.randrange(100)
    for flushed in (0, 5, 10, 10 * count, *(chance.randrange(10 * count + 20) for _ in range(20))):
        expected = next((number for number, end in enumerate(ends) if end > flushed), count)
        assert offsets(Queue(low, ends), flushed).durable_max_offset_in_queue("t", 0) == low + expected


def test_it_is_looked_for_from_the_end() -> None:
    queue = Queue(0, [10 * (number + 1) for number in range(1_000_000)])
    assert offsets(queue, 9_999_000).durable_max_offset_in_queue("t", 0) == 999_900
    assert min(queue.asked) > 990_000
