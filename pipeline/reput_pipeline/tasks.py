"""What a task does with its partition, in a worker on an executor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from reput_pipeline.live_plan import LivePartition
from reput_pipeline.live_read import read_live
from reput_pipeline.offline_plan import PlacesPartition, QueuePartition, SegmentPartition
from reput_pipeline.offline_read import DirectoryReading

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from reput_pipeline.narrowing import Narrowing
    from reput_pipeline.options import SourceOptions


def read_task(
    partition: InputPartition, options: SourceOptions, schema: pa.Schema, narrowing: Narrowing
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one task; nothing for the empty partition that Spark makes where there is no task."""
    if isinstance(partition, LivePartition):
        yield from read_live(partition, options, schema)
    elif isinstance(partition, (QueuePartition, SegmentPartition, PlacesPartition)):
        with DirectoryReading(options, schema, narrowing) as reading:
            if isinstance(partition, QueuePartition):
                yield from reading.queues(partition)
            elif isinstance(partition, SegmentPartition):
                yield from reading.segments(partition)
            else:
                yield from reading.places(partition)
