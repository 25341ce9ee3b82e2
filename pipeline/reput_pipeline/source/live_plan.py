"""Planning over a cluster: from ranges of queues to tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from reput_client.arrow.queues import Generations, QueueRange
from reput_pipeline.source.live_cluster import LiveCluster
from reput_pipeline.source.narrowing import Narrowing
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.source.partition import InputPartition
from reput_pipeline.source.ranges import cores, pack
from reput_pipeline.source.resolve import batch_ranges, narrowed

_TASK_MESSAGES_MIN: Final = 25_000
"""Fewer messages are not worth a task: an empty one costs as much as some 50,000."""


@dataclass
class LivePartition(InputPartition):
    """A task that fetches ranges of queues."""

    ranges: list[QueueRange]
    generations: Generations
    """Of the ranges' topics, if known."""


def plan_batch(options: SourceOptions, narrowing: Narrowing) -> list[InputPartition]:
    """Return the tasks of a batch query.

    Raises:
        NoSuchTopic, DataLost, OptionError: the query cannot be answered.
        ConnectFailed, RequestTimeout, BrokerError: a broker does not answer, or refuses.
    """
    with LiveCluster(options) as cluster:
        ranges = [narrowed(cluster, part, narrowing) for part in batch_ranges(cluster, options)]
        return tasks_of(ranges, cluster.generations, options.min_partitions)


def tasks_of(
    ranges: Iterable[QueueRange],
    generations: Generations,
    parts: int | None,
) -> list[InputPartition]:
    """Divide ranges into `parts` tasks; by default one per core, fewer for few messages."""
    wanted = [part for part in ranges if part.size > 0]
    total = sum(part.size for part in wanted)
    if parts is None:
        parts = min(cores(), max(1, total // _TASK_MESSAGES_MIN))
    return [live_partition(part, generations) for part in pack(wanted, parts)]


def live_partition(ranges: Sequence[QueueRange], generations: Generations) -> LivePartition:
    """Return a task for ranges, with their generations."""
    topics = {(part.queue.topic, part.queue.broker) for part in ranges}
    return LivePartition(
        list(ranges),
        {topic: generations[topic] for topic in topics if topic in generations},
    )
