"""The readers that Spark calls, for batch and streaming queries: they plan next to the driver and read in the workers.

The driver's reader of a stream lives as long as the query, and decides where each micro-batch ends.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from reput_client.arrow.queues import Bounds, Generations, QueueKey, QueueRange, is_remade
from reput_pipeline.source.options import arrow_schema, check_schema, parse_source_options
from reput_pipeline.source.ranges import NOTHING_NARROWED, Narrowing, limited, narrow, starting_offsets, wanted_queues
from reput_pipeline.source.stream_offsets import decode_offsets, encode_offsets
from reput_pipeline.spark.errors import DataLost, note
from reput_protocol.errors import ReputError

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from reput_pipeline.source.live import LiveCluster


class PlainReader(DataSourceReader):
    """Reads a batch, ignoring the query's filters."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Check options and columns.

        Raises:
            OptionError, SchemaError: they are invalid.
        """
        self._options = parse_source_options(dict(options), streaming=False)
        check_schema(schema, self._options.all_columns)
        self._schema = schema
        self._narrowing: Narrowing = NOTHING_NARROWED

    def partitions(self) -> list[InputPartition]:
        """Return the tasks. Raises as `offline.plan` and `live.plan_batch`."""
        if self._options.path is not None:
            from reput_pipeline.source.offline import OfflineStore, plan

            with OfflineStore(self._options.path) as store:
                return plan(store, self._options, self._narrowing)
        from reput_pipeline.source.live import plan_batch

        return plan_batch(self._options, self._narrowing)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one task."""
        from reput_pipeline.source.tasks import read_task
        from reput_pipeline.spark.worker_daemon import begin_task

        begin_task()
        return read_task(partition, self._options, arrow_schema(self._schema), self._narrowing)


class FilteringReader(PlainReader):
    """A `PlainReader` that does not read what the query's filters exclude."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Narrow the reading and log how; return all filters, which Spark applies again."""
        self._narrowing = narrow(filters)
        if self._narrowing != NOTHING_NARROWED:
            note(f"pushed down to {self._options.where}: {self._narrowing}")
        return filters


class ReputStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a live cluster as a stream.

    Spark asks for the end of the next batch when one is complete, also after the last one of `AvailableNow`: that is
    when the group's offsets are committed. Spark's `commit` comes later, and not for the last batch.
    """

    def __init__(
        self, options: Mapping[str, str], schema: StructType, *, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Check options and columns; opens nothing.

        Raises:
            OptionError, SchemaError: they are invalid.
        """
        self._options = parse_source_options(dict(options), streaming=True)
        check_schema(schema, self._options.all_columns)
        self._schema = schema
        self._clock_s = clock_s
        self._cluster: LiveCluster | None = None
        self._target: dict[QueueKey, int] | None = None
        """Where a query with the trigger AvailableNow ends."""
        self._latest: dict[QueueKey, int] = {}
        self._start: dict[QueueKey, int] | None = None
        """Where a new query starts."""
        self._published: dict[QueueKey, int] = {}
        self._last_batch_at: float | None = None

    def _opened(self) -> LiveCluster:
        if self._cluster is None:
            from reput_pipeline.source.live import LiveCluster

            self._cluster = LiveCluster(self._options).__enter__()
        return self._cluster

    def _current(self) -> tuple[dict[QueueKey, Bounds], Generations]:
        """Fetch the bounds of every queue of the query, and the generations of the topics."""
        cluster = self._opened()
        return cluster.bounds(wanted_queues(cluster, self._options)), cluster.generations

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Return where a new query starts.

        Raises:
            NoSuchTopic, DataLost, OptionError: it cannot start there.
        """
        bounds, generations = self._current()
        self._start = starting_offsets(self._opened(), self._options, list(bounds), bounds)
        return encode_offsets(self._start, generations)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query at the current ends of the queues."""
        bounds, _ = self._current()
        self._target = {queue: found.high for queue, found in bounds.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends; `start` if there is nothing to read, or less than minOffsetsPerTrigger.

        Raises:
            DataLost: messages from `start` on, or a queue, were deleted, and `failOnDataLoss` is true.
        """
        begin, before = decode_offsets(start)
        bounds, now = self._current()
        self._latest = {queue: found.high for queue, found in bounds.items()}
        remade = [queue for queue in begin if is_remade(queue, before, now)]
        if begin != self._start:
            self._publish({queue: offset for queue, offset in begin.items() if queue not in remade})
        for queue in remade:
            self._lost(
                queue,
                f"its topic was deleted and created again; what followed message {begin[queue]} of the old one is gone",
            )
            del begin[queue]  # of another topic, new to the query
            self._published.pop(queue, None)
        for queue in begin:
            if queue not in bounds:
                self._lost(queue, "it no longer exists")
        # A queue whose broker is away keeps its offset, or it would be read from message 0 again.
        ends = {queue: first for queue, first in begin.items() if queue not in bounds}
        for queue, (low, end) in bounds.items():
            high = end
            if self._target is not None:
                if queue not in self._target:
                    if queue in begin:
                        ends[queue] = begin[queue]
                    continue  # created, or available again, after the query started
                high = min(end, self._target[queue])
            if queue not in begin and low >= high:
                continue  # a different offset would make an empty batch
            first = begin.get(queue, 0)
            if first < low and queue not in begin:
                self._lost(queue, f"it is new to the query, and its messages 0 to {low - 1} are gone")
            elif first < low:
                self._lost(queue, f"messages {first} to {low - 1} are gone")
            elif end < first:
                self._lost(queue, f"it ends at {end}, before message {first}: it lost messages or was created again")
            begin[queue] = max(first, low)
            ends[queue] = max(high, begin[queue])
        total = sum(end - begin[queue] for queue, end in ends.items())
        if isinstance(limit, (ReadMaxRows, ReadMinRows)) and not self._is_enough(total):
            return start
        if isinstance(limit, ReadMaxRows):
            ends = limited(begin, ends, limit.max_rows)
        if total:
            self._last_batch_at = self._clock_s()
        # The generation of a topic whose broker is away stays, too.
        return encode_offsets(ends, {**before, **now}) if total else start

    def _is_enough(self, total: int) -> bool:
        """Return whether this number of messages makes a batch now."""
        least = self._options.min_offsets_per_trigger
        if least is None or total >= least or self._target is not None or self._last_batch_at is None:
            return True
        return self._clock_s() - self._last_batch_at >= self._options.max_trigger_delay_s

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the queues as last fetched, for the query's progress."""
        return encode_offsets(self._latest, self._opened().generations) if self._latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch. A queue that is not in `start` is read from message 0 on.

        Its first message may be another one when the batch is run again.
        """
        from reput_pipeline.source.live import tasks_of

        begin, before = decode_offsets(start)
        ends, now = decode_offsets(end)
        ranges = [
            QueueRange(queue, 0 if is_remade(queue, before, now) else begin.get(queue, 0), last)
            for queue, last in ends.items()
        ]
        return tasks_of(ranges, now, self._options.min_partitions)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: `latestOffset` commits."""

    def _publish(self, done: Mapping[QueueKey, int]) -> None:
        """Commit the group's offsets at the end of a batch, if the query has a group; a failure is logged."""
        if self._options.group_id is None:
            return
        try:
            cluster = self._opened()
            for queue, offset in done.items():
                if queue in self._latest and self._published.get(queue) != offset:
                    cluster.commit(queue, offset)
                    self._published[queue] = offset
        except ReputError as error:
            note(f"progress of group {self._options.group_id} not published: {error}")

    def stop(self) -> None:
        """Close the connections."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        if isinstance(sys.exception(), EOFError):
            # The driver has ended the query and closed the socket. PySpark's loop fails to report to it, and would
            # print a traceback at every other stop() of a query.
            sys.excepthook = _unless_disconnected
        _report_in_one_line()

    def _lost(self, queue: QueueKey, reason: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(queue, reason)
        warnings.warn(f"queue {queue}: {reason}", stacklevel=2)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one task."""
        from reput_pipeline.source.tasks import read_task
        from reput_pipeline.spark.worker_daemon import begin_task

        begin_task()
        return read_task(partition, self._options, arrow_schema(self._schema), NOTHING_NARROWED)


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream whose options or columns are wrong: whatever Spark calls first raises the error.

    If the creation of a reader raises, PySpark's loop fails because it has none to stop, and reports that failure.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Raise the error."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """Raise the error."""
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Raise the error."""
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Raise the error."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Raise the error."""
        raise self._error

    def stop(self) -> None:
        """Nothing is open."""
        _report_in_one_line()


def _report_in_one_line() -> None:
    """If an error of ours ends this process, have PySpark report its text, which names the remedy, and no traceback."""
    if type(sys.exception()).__module__.startswith("reput_"):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def _unless_disconnected(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report the error that ends this process, unless the other end of its socket is closed."""
    if not issubclass(kind, (BrokenPipeError, ConnectionResetError)):
        sys.__excepthook__(kind, error, trace)
