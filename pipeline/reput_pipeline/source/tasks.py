"""Run a task of a query in a worker, which raises or leaves out what it cannot read (`failOnDataLoss`, `onDamage`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from reput_client.arrow.directory_reading import DirectoryReading
from reput_client.arrow.queues import Generations, QueueRange
from reput_client.arrow.topic_reading import TopicReading
from reput_pipeline.source.live import LivePartition, attempts_of, connect, live_partition
from reput_pipeline.source.offline import QueuePartition, RecordsPartition, SegmentPartition
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.source.ranges import NOTHING_NARROWED, Narrowing
from reput_pipeline.spark.errors import DamagedStore, DataLost, note
from reput_protocol.errors import FilterSyntaxError
from reput_protocol.filter.tags import ALL, TagFilter
from reput_protocol.names import SCHEDULE_TOPIC
from reput_protocol.printable import counted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from reput_client.arrow.queues import Unreadable

_TAGS_MAX: Final = 100
"""With more tags, all messages are fetched and Spark filters them."""


def read_ranges(
    ranges: Sequence[QueueRange], generations: Generations, options: SourceOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ranges. Raises as `read_task`.

    Args:
        generations: of the ranges' topics, if known; a store directory needs none.
    """
    partition = live_partition(ranges, generations) if options.path is None else QueuePartition(list(ranges))
    return read_task(partition, options, schema, NOTHING_NARROWED)


def read_task(
    partition: InputPartition, options: SourceOptions, schema: pa.Schema, narrowing: Narrowing
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one task; none for the empty partition of a plan without tasks.

    Raises:
        DataLost: messages were deleted, and `failOnDataLoss` is true.
        DamagedStore: a message is damaged, and `onDamage` is `error`.
        ConnectFailed, RequestTimeout, BrokerError: a broker does not answer, or refuses.
    """
    tolerance = Tolerance(options)
    try:
        if isinstance(partition, LivePartition):
            yield from read_live(partition, with_tags(partition, options, narrowing), schema, tolerance)
        elif isinstance(partition, (QueuePartition, SegmentPartition, RecordsPartition)):
            assert options.path is not None, "a reading of a directory has a path"
            with DirectoryReading(options.path, schema, tolerance, options.tag_filter, narrowing.tags) as reading:
                if isinstance(partition, QueuePartition):
                    yield from reading.queues(partition.ranges)
                elif isinstance(partition, SegmentPartition):
                    yield from reading.segments(partition.stretches, partition.wanted)
                else:
                    yield from reading.records(partition.log_offsets, partition.wanted)
    finally:
        tolerance.report()


def read_live(
    partition: LivePartition, options: SourceOptions, schema: pa.Schema, unreadable: Unreadable
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one task over brokers."""
    reading = TopicReading(
        connect(options),
        schema,
        unreadable,
        tags=options.sub_expression,
        generations=partition.generations,
        attempts=attempts_of(options),
        where=options.where,
    )
    return reading.batches(partition.ranges)


def with_tags(partition: LivePartition, options: SourceOptions, narrowing: Narrowing) -> SourceOptions:
    """Return options with the query's tags as an expression for the broker, if that is safe.

    It is unsafe for the schedule topic, whose queues hold times instead of tag hashes, and for tags with blanks or
    bars, which an expression cannot hold.
    """
    if narrowing.tags is None or options.sub_expression != ALL or len(narrowing.tags) > _TAGS_MAX:
        return options
    if any(part.queue.topic == SCHEDULE_TOPIC for part in partition.ranges):
        return options
    expression = " || ".join(sorted(narrowing.tags))
    try:
        understood = TagFilter.parse(expression)
    except FilterSyntaxError:
        return options
    if understood.matches_all or understood.tags != narrowing.tags:
        return options
    return replace(options, sub_expression=expression)


class Tolerance:
    """Raises, or counts what the options permit to leave out."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._first: dict[object, str] = {}
        self._lost: Counter[object] = Counter()
        self._damaged: Counter[str] = Counter()

    def lost(self, queue: object, reason: str) -> None:
        """Count a loss, and keep the first reason of each queue.

        Raises:
            DataLost: `failOnDataLoss` is true.
        """
        if self._options.fail_on_data_loss:
            raise DataLost(queue, reason)
        self._first.setdefault(queue, reason)
        self._lost[queue] += 1

    def damaged(self, place: str, offset: int, reason: str) -> None:
        """Count a damaged record.

        Raises:
            DamagedStore: `onDamage` is `error`.
        """
        if not self._options.skip_damage:
            raise DamagedStore(place, offset, reason)
        self._damaged[place.removesuffix(" at byte").removesuffix(", message")] += 1

    def report(self) -> None:
        """Log a line for each queue and each place."""
        for place, count in self._damaged.items():
            note(f"left out {counted(count, 'damaged record')} of {place}")
        for queue, reason in self._first.items():
            more = self._lost[queue] - 1
            note(f"queue {queue}: {reason}{f', and {more} more' if more else ''}")
