"""Ranges of queues: dividing them into micro-batches and tasks, whose base class PySpark's driver requires."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from reput_client.arrow.queues import QueueKey, QueueRange

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition as InputPartition
else:
    try:
        from pyspark.sql.datasource import InputPartition
    except ModuleNotFoundError as missing:
        if missing.name != "pyspark":
            raise

        class InputPartition:
            """Part of a query, for jobs that run in their own process."""


def pack(ranges: Iterable[QueueRange], parts: int) -> list[list[QueueRange]]:
    """Divide ranges into at most `parts` lists with nearly equal numbers of messages.

    A part holds pieces of several queues: an empty task costs as much as 50,000 messages.
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


def limited(
    start: Mapping[QueueKey, int], available: Mapping[QueueKey, int], most: int
) -> dict[QueueKey, int]:
    """Return the ends of a batch of about `most` messages, divided among the queues in proportion to their backlog.

    As in Spark's Kafka source, every queue with messages contributes at least one. A batch may exceed `most` by one
    message per queue.

    Args:
        start: where the batch begins.
        available: where each queue ends.
        most: number of messages.
    """
    backlog = {queue: end - start[queue] for queue, end in available.items() if end > start[queue]}
    total = sum(backlog.values())
    if total <= most:
        return dict(available)
    ends = {}
    for queue, end in available.items():
        share = most * backlog.get(queue, 0) / total
        ends[queue] = min(end, start[queue] + (math.ceil(share) if share < 1 else math.floor(share)))
    return ends


def cores() -> int:
    """Return the number of processors of this process."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # pragma: no cover (not on every platform)
        return os.cpu_count() or 1
