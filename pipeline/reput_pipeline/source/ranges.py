"""Ranges of queues, and how they are shared out to partitions."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from reput_pipeline.source.places import QueueKey


class Bounds(NamedTuple):
    """The offsets that a queue has."""

    low: int
    """Of its first message."""
    high: int
    """That its next message will get; only what is durable counts."""


class QueueRange(NamedTuple):
    """The messages `[start, end)` of a queue."""

    queue: QueueKey
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many messages these are."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.queue} [{self.start}, {self.end})"


def pack(ranges: Iterable[QueueRange], parts: int) -> list[list[QueueRange]]:
    """Share ranges out to at most `parts` lists with the same number of messages, as far as that goes.

    An empty task costs as much as 50,000 messages: so the number of parts follows the wanted parallelism, and a part
    holds pieces of as many queues as need be.
    """
    waiting = [part for part in ranges if part.size > 0]
    total = sum(part.size for part in waiting)
    parts = max(1, min(parts, total))
    packed: list[list[QueueRange]] = []
    done = 0
    current: list[QueueRange] = []
    for queue, start, end in waiting:
        while start < end:
            goal = total * (len(packed) + 1) // parts
            stop = min(end, start + goal - done)
            if stop > start:
                current.append(QueueRange(queue, start, stop))
                done += stop - start
                start = stop
            if done >= goal:
                packed.append(current)
                current = []
    if current:
        packed.append(current)
    return packed


def cores() -> int:
    """Return how many processors this process may use: what parallelism to expect where Spark does not say it."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # pragma: no cover (not on every platform)
        return os.cpu_count() or 1
