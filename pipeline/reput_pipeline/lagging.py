"""Snapshots of how far groups are behind, in messages and in time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from reput_broker.tools.tables import apply_journal, find_journal, offsets_in, table_in_force
from reput_client.blocking import Admin
from reput_pipeline.archives.plan import addresses_of, catalog_of
from reput_pipeline.jobs.run import JobRun
from reput_pipeline.live_plan import LivePartition, live_partition
from reput_pipeline.narrowing import NOTHING_NARROWED
from reput_pipeline.offline_plan import QueuePartition
from reput_pipeline.offline_store import OfflineStore
from reput_pipeline.options import SourceOptions
from reput_pipeline.places import QueueKey
from reput_pipeline.ranges import QueueRange
from reput_pipeline.resolve import Catalog, wanted_queues
from reput_pipeline.tasks import read_task

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("storeTimestamp", pa.timestamp("us", tz="UTC")),
    ]
)
_RANGES_A_TASK = 500


@dataclass(frozen=True)
class QueueLag:
    """One group in one queue at one time. `oldest_ms` is the store time of the first message it has not committed."""

    at_ms: int
    group: str
    topic: str
    broker: str
    queue: int
    committed: int
    start: int
    end: int
    oldest_ms: int | None

    @property
    def lag(self) -> int:
        """Messages that are there and not committed."""
        return max(0, self.end - max(self.committed, self.start))

    @property
    def gone(self) -> int:
        """Messages that were not committed and are not there any more."""
        return max(0, self.start - self.committed)

    @property
    def lag_ms(self) -> int:
        """Age of the oldest message that is not committed; 0 without one."""
        return 0 if self.oldest_ms is None else max(0, self.at_ms - self.oldest_ms)

    def to_members(self) -> dict[str, Any]:
        """Return it as a line of a history."""
        return {**asdict(self), "lag": self.lag, "gone": self.gone, "lag_ms": self.lag_ms}


class _ReadTask(NamedTuple):
    options: SourceOptions
    addresses: Mapping[str, str]
    ranges: tuple[QueueRange, ...]


def snapshot(run: JobRun, options: SourceOptions, groups: Iterable[str], at_ms: int) -> list[QueueLag]:
    """Return the progress of groups in all queues of the wanted topics that they have an offset of.

    Args:
        run: reads the messages that were not consumed yet.
        options: the place and the topics.
        groups: none for all.
        at_ms: the time against which ages are measured.
    """
    wanted = set(groups)
    with catalog_of(options) as catalog:
        queues = wanted_queues(catalog, options)
        bounds = catalog.bounds(queues)
        by_place: dict[tuple[str, int], list[QueueKey]] = {}
        for queue in queues:
            by_place.setdefault((queue.topic, queue.queue_id), []).append(queue)
        committed = [
            (group, queue, offset)
            for (group, topic, queue_id), offset in _committed(catalog, options, wanted)
            for queue in by_place.get((topic, queue_id), ())
        ]
        first = {
            (queue, max(offset, bounds[queue].low))
            for _, queue, offset in committed
            if max(offset, bounds[queue].low) < bounds[queue].high
        }
        stored = _store_times(run, options, addresses_of(catalog), sorted(first))
    return [
        QueueLag(
            at_ms,
            group,
            queue.topic,
            queue.broker,
            queue.queue_id,
            offset,
            bounds[queue].low,
            bounds[queue].high,
            stored.get((queue, max(offset, bounds[queue].low))),
        )
        for group, queue, offset in sorted(committed)
    ]


def _committed(
    catalog: Catalog, options: SourceOptions, groups: set[str]
) -> Iterator[tuple[tuple[str, str, int], int]]:
    """Yield what groups have committed, by group, topic and queue id."""
    if isinstance(catalog, OfflineStore):
        config_dir = catalog.layout.config_dir
        table = table_in_force(config_dir / "consumerOffset.json")
        offsets = offsets_in(table.members)
        journal = find_journal(config_dir, table)
        if journal is not None:
            apply_journal(offsets, journal[1])
        for key, offset in offsets.items():
            if (not groups or key[0] in groups) and isinstance(offset, int):
                yield key, offset
        return
    assert options.name_servers is not None, "what is no directory is a cluster"
    with Admin(options.name_servers) as admin:
        for group in sorted(groups) or [summary.group for summary in admin.list_groups()]:
            for queue in admin.describe_group(group).queues:
                if queue.committed_offset >= 0:
                    yield (group, queue.topic, queue.queue_id), queue.committed_offset


def _store_times(
    run: JobRun, options: SourceOptions, addresses: Mapping[str, str], places: list[tuple[QueueKey, int]]
) -> dict[tuple[QueueKey, int], int]:
    """Return the store times of single messages, read by tasks."""
    ranges = [QueueRange(queue, offset, offset + 1) for queue, offset in places]
    tasks = [
        _ReadTask(options, addresses, tuple(ranges[at : at + _RANGES_A_TASK]))
        for at in range(0, len(ranges), _RANGES_A_TASK)
    ]
    return dict(run.each("lag", tasks, _read_times))


def _read_times(task: _ReadTask) -> Iterator[tuple[tuple[QueueKey, int], int]]:
    partition: QueuePartition | LivePartition
    if task.options.path is not None:
        partition = QueuePartition(list(task.ranges))
    else:
        partition = live_partition(task.ranges, task.addresses, {})
    for batch in read_task(partition, task.options, _SCHEMA, NOTHING_NARROWED):
        for row in batch.to_pylist():
            queue = QueueKey(row["topic"], row["brokerName"] or "", row["queueId"])
            yield (queue, row["queueOffset"]), round(row["storeTimestamp"].timestamp() * 1000)
