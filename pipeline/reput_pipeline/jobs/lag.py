"""The job `lag`: the lag of consumer groups, with a history if wanted."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click
import pyarrow as pa

from reput_broker.tools.tables import apply_journal, find_journal, offsets_in, table_in_force
from reput_client.arrow.queues import QueueKey, QueueRange
from reput_client.arrow.urls import directory_of
from reput_client.blocking import Admin
from reput_pipeline.archives.batches import catalog_of
from reput_pipeline.jobs.messages import APPLICATION_TOPICS, checked_source, source_arguments
from reput_pipeline.jobs.run import ArgumentError, JobFailed, JobRun, Outcome, in_process_job, main
from reput_pipeline.source.offline import OfflineStore
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.source.ranges import Catalog, wanted_queues
from reput_pipeline.source.tasks import read_ranges
from reput_pipeline.spark.option_reader import credentials_for
from reput_protocol.exit_codes import ExitCode

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
    """The lag of a group in a queue; `oldest_ms` is the store time of the first uncommitted message."""

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
        """Uncommitted messages."""
        return max(0, self.end - max(self.committed, self.start))

    @property
    def gone(self) -> int:
        """Messages deleted before they were committed."""
        return max(0, self.start - self.committed)

    @property
    def lag_ms(self) -> int:
        """Age of the oldest uncommitted message; 0 without one."""
        return 0 if self.oldest_ms is None else max(0, self.at_ms - self.oldest_ms)

    def to_members(self) -> dict[str, Any]:
        """Return it as a line of a history."""
        return {**asdict(self), "lag": self.lag, "gone": self.gone, "lag_ms": self.lag_ms}


class _ReadTask(NamedTuple):
    options: SourceOptions
    ranges: tuple[QueueRange, ...]


def snapshot(run: JobRun, options: SourceOptions, groups: Iterable[str], at_ms: int) -> list[QueueLag]:
    """Return the lag of groups in all queues of the wanted topics with a committed offset.

    Args:
        run: reads the first uncommitted messages.
        options: source and topics.
        groups: empty for all.
        at_ms: now, for ages.
    """
    wanted = set(groups)
    with catalog_of(options) as catalog:
        queues = wanted_queues(catalog, options)
        bounds = catalog.bounds(queues)
        wanted_here = set(queues)
        committed = [
            (group, queue, offset)
            for group, queue, offset in _committed(catalog, options, wanted)
            if queue in wanted_here
        ]
        first = {
            (queue, max(offset, bounds[queue].low))
            for _, queue, offset in committed
            if max(offset, bounds[queue].low) < bounds[queue].high
        }
        stored = _store_times(run, options, sorted(first))
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


def _committed(catalog: Catalog, options: SourceOptions, groups: set[str]) -> Iterator[tuple[str, QueueKey, int]]:
    if isinstance(catalog, OfflineStore):
        config_dir = directory_of(catalog.path) / "config"
        table = table_in_force(config_dir / "consumerOffset.json")
        offsets = offsets_in(table.members)
        journal = find_journal(config_dir, table)
        if journal is not None:
            apply_journal(offsets, journal[1])
        for key, offset in offsets.items():
            group, topic, queue_id = key
            if (not groups or group in groups) and isinstance(offset, int):
                yield group, QueueKey(topic, "", queue_id), offset
        return
    assert options.name_servers is not None, "either a path or a broker is set"
    with Admin(options.name_servers, tls=options.tls, credentials=credentials_for(options.user)) as admin:
        for group in sorted(groups) or [summary.group for summary in admin.list_groups()]:
            for queue in admin.describe_group(group).queues:
                if queue.committed_offset >= 0:
                    place = QueueKey(queue.topic, queue.broker_name, queue.queue_id)
                    yield group, place, queue.committed_offset


def _store_times(
    run: JobRun, options: SourceOptions, places: list[tuple[QueueKey, int]]
) -> dict[tuple[QueueKey, int], int]:
    """Return the store times of single messages, read by tasks."""
    ranges = [QueueRange(queue, offset, offset + 1) for queue, offset in places]
    tasks = [
        _ReadTask(options, tuple(ranges[at : at + _RANGES_A_TASK])) for at in range(0, len(ranges), _RANGES_A_TASK)
    ]
    return dict(run.each("lag", tasks, _read_times))


def _read_times(task: _ReadTask) -> Iterator[tuple[tuple[QueueKey, int], int]]:
    for batch in read_ranges(task.ranges, {}, task.options, _SCHEMA):
        for row in batch.to_pylist():
            queue = QueueKey(row["topic"], row["brokerName"] or "", row["queueId"])
            yield (queue, row["queueOffset"]), round(row["storeTimestamp"].timestamp() * 1000)


_COLUMNS = ("group", "topic", "queues", "lag", "lag_ms", "unread_gone")
_HISTORY_COLUMNS = ("group", "topic", "samples", "lag_first", "lag_last", "lag_max", "lag_ms_last", "consumed_per_s")
_HISTORY_SCHEMA = (
    "at_ms long, group string, topic string, broker string, queue int, committed long, start long, end long, "
    "oldest_ms long, lag long, gone long, lag_ms long"
)


@in_process_job
@source_arguments
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="A group; repeatable.  [default: all]")
@click.option(
    "--history", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Directory to add snapshots to."
)
@click.option("--samples", type=click.IntRange(1), default=1, show_default=True, help="Number of snapshots.")
@click.option("--every", type=click.FloatRange(0), default=10.0, show_default=True, help="Seconds between them.")
@click.option("--now", type=click.IntRange(0), metavar="MS", help="Time from which ages count.  [default: now]")
def command(
    run: JobRun,
    source: dict[str, str],
    groups: tuple[str, ...],
    history: Path | None,
    samples: int,
    every: float,
    now: int | None,
) -> Outcome:
    """Print how many messages groups have not committed, and the age of the oldest.

    With --history, each snapshot is a file of JSON lines in DIR, and a summary of all of them is printed.
    """
    if now is not None and samples > 1:
        raise ArgumentError("--now", "contradicts --samples; one snapshot has one time")
    if history is not None and run.is_in_process:
        raise ArgumentError("--history", "is summed up by Spark, so it contradicts --master none")
    if history is not None and history.is_dir() and any(not _is_snapshot(path) for path in history.iterdir()):
        raise ArgumentError("--history", f"{history} has files that are not snapshots; name another directory")
    if source.get("subscribePattern") == APPLICATION_TOPICS:
        source["subscribePattern"] = ".*"  # groups have retry topics, too
    options = checked_source(source)
    taken: list[QueueLag] = []
    for number in range(samples):
        if number:
            time.sleep(every)
        at_ms = now if now is not None else time.time_ns() // 1_000_000
        taken = snapshot(run, options, groups, at_ms)
        unknown = set(groups) - {one.group for one in taken}
        if unknown:
            raise JobFailed(
                f"{', '.join(sorted(unknown))}: no such group has committed an offset in the wanted topics of "
                f"{options.where}",
                code=ExitCode.NOT_FOUND,
            )
        if history is not None:
            _keep(history, at_ms, taken)
    rows = _by_group(taken)
    run.table(_COLUMNS, [[row[name] for name in _COLUMNS] for row in rows])
    figures: dict[str, Any] = {"source": options.where, "groups": rows, "queues": [one.to_members() for one in taken]}
    if history is not None:
        figures["history"] = trend = _history(run, history)
        run.write("")
        run.table(_HISTORY_COLUMNS, [[row[name] for name in _HISTORY_COLUMNS] for row in trend])
    return Outcome(figures)


def _is_snapshot(path: Path) -> bool:
    return path.name.startswith(("lag-", ".")) and path.suffix in (".json", ".crc", ".tmp")


def _keep(directory: Path, at_ms: int, taken: Sequence[QueueLag]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f".lag-{at_ms:015d}.tmp"
    temporary.write_text("".join(json.dumps(one.to_members()) + "\n" for one in taken), encoding="utf-8")
    temporary.replace(directory / f"lag-{at_ms:015d}.json")


def _by_group(taken: Sequence[QueueLag]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], list[QueueLag]] = {}
    for one in taken:
        found.setdefault((one.group, one.topic), []).append(one)
    return [
        {
            "group": group,
            "topic": topic,
            "queues": len(queues),
            "lag": sum(one.lag for one in queues),
            "lag_ms": max(one.lag_ms for one in queues),
            "unread_gone": sum(one.gone for one in queues),
        }
        for (group, topic), queues in sorted(found.items())
    ]


def _history(run: JobRun, directory: Path) -> list[dict[str, Any]]:
    from pyspark.sql import functions as f

    samples = (
        run.spark.read.schema(_HISTORY_SCHEMA)
        .json(str(directory.absolute()))
        .groupBy("group", "topic", "at_ms")
        .agg(
            f.sum("lag").alias("lag"),
            f.max("lag_ms").alias("lag_ms"),
            f.sum("committed").alias("committed"),
            f.sum("end").alias("end"),
        )
    )
    first, last = "min_by({0}, at_ms)", "max_by({0}, at_ms)"
    summed = samples.groupBy("group", "topic").agg(
        f.count("*").alias("samples"),
        f.min("at_ms").alias("first_ms"),
        f.max("at_ms").alias("last_ms"),
        f.max("lag").alias("lag_max"),
        f.max("lag_ms").alias("lag_ms_max"),
        *(f.expr(first.format(name)).alias(f"{name}_first") for name in ("lag", "lag_ms", "committed", "end")),
        *(f.expr(last.format(name)).alias(f"{name}_last") for name in ("lag", "lag_ms", "committed", "end")),
    )
    return [_rates(row.asDict()) for row in summed.orderBy("group", "topic").collect()]


def _rates(row: dict[str, Any]) -> dict[str, Any]:
    span_s = (row["last_ms"] - row["first_ms"]) / 1000
    consumed, produced = row["committed_last"] - row["committed_first"], row["end_last"] - row["end_first"]
    row["consumed_per_s"] = round(consumed / span_s, 3) if span_s else None
    row["produced_per_s"] = round(produced / span_s, 3) if span_s else None
    row["is_stalled"] = row["samples"] > 1 and consumed <= 0 and row["lag_last"] > 0
    gain = consumed - produced
    row["caught_up_in_s"] = round(row["lag_last"] * span_s / gain, 1) if gain > 0 and span_s else None
    return row


if __name__ == "__main__":
    main("lag")
