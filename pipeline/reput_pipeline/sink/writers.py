"""The writers that Spark calls: `write` in the tasks, `commit` and `abort` in the driver.

Spark creates a stream's writer again for every micro-batch and commit: a commit has only the tasks' pickled messages.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from reput_pipeline.sink.options import SinkColumns, SinkOptions, parse_sink_options, sink_columns
from reput_pipeline.spark.errors import BatchNotWritten, SinkError, note
from reput_pipeline.spark.option_reader import naming_tls_options
from reput_protocol.commands.stage import StagedPart
from reput_protocol.errors import NotFound, ReputError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_BATCH_JOB: Final = 0
"""The batch id of a batch write."""


@dataclass(frozen=True)
class TaskDone(WriterCommitMessage):
    """The result of a task: query, batch, and its staging, if any."""

    query_id: str
    batch_id: int
    partition_id: int
    part: StagedPart | None
    messages: int
    broker: str = ""


def _checked(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, streaming: bool
) -> tuple[SinkOptions, SinkColumns]:
    if overwrite:
        raise SinkError(
            "output mode complete would write the whole result again with every batch; use append, or write each "
            "result with foreachBatch, in mode append"
            if streaming
            else "mode overwrite would have to empty the topic, which the sink cannot do; use mode append"
        )
    parsed = parse_sink_options(options, streaming=streaming)
    columns = sink_columns(schema, parsed.topic)
    if columns.deliver_at is not None and parsed.exactly_once:
        raise SinkError(
            "column 'deliverAt' needs semantics=at-least-once: the broker rewrites delayed messages one by one, "
            "so they cannot be staged"
        )
    return parsed, columns


def _run_task(
    options: SinkOptions, columns: SinkColumns, batches: Iterator[pa.RecordBatch], query_id: str, batch_id: int
) -> TaskDone:
    from pyspark import TaskContext

    from reput_pipeline.sink.task import SinkTask
    from reput_pipeline.spark.worker_daemon import begin_task

    begin_task()
    context = TaskContext.get()
    partition_id = 0 if context is None else context.partitionId()
    task = SinkTask(options, columns)
    part = None
    if options.exactly_once:
        part = task.stage(batches, query_id, batch_id, partition_id)
    else:
        task.put(batches, query_id, batch_id + partition_id)
    return TaskDone(query_id, batch_id, partition_id, part, task.messages, task.broker)


@naming_tls_options()
def _commit(options: SinkOptions, done: Sequence[TaskDone], query_id: str, batch_id: int) -> None:
    from reput_pipeline.sink.task import connect

    staged = [one for one in sorted(done, key=lambda one: one.partition_id) if one.part is not None]
    parts = [one.part for one in staged if one.part is not None]
    if not options.exactly_once or not parts:
        return
    brokers = sorted({one.broker for one in staged})
    if len(brokers) > 1:
        raise BatchNotWritten(
            batch_id,
            "while it was written, a broker of the topic was added or removed, so that its tasks have staged at "
            f"{' and '.join(brokers)}",
        )
    with connect(options, brokers[0]) as writer:
        try:
            result = writer.commit(query_id, batch_id, parts, options.commit_timeout_s)
        except NotFound as error:
            raise BatchNotWritten(batch_id, str(error)) from error
    if result.repeated:
        note(f"batch {batch_id} of query {query_id} was already committed; nothing was published again")


def _abort(options: SinkOptions, query_id: str, batch_id: int) -> None:
    """Drop what is staged; it expires if the broker cannot be reached."""
    from reput_pipeline.sink.task import broker_of, brokers_of, connect

    try:
        with connect(options, broker_of(brokers_of(options), query_id, batch_id)) as writer:
            writer.abort(query_id, batch_id)
    except (ReputError, SinkError) as error:
        note(f"the staged messages of batch {batch_id} of query {query_id} are left to expire: {error}")


class ReputBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame as one batch: its commit makes all of it visible, or none."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Check options and columns.

        Raises:
            OptionError, SinkError: they are invalid.
        """
        self._options, self._columns = _checked(options, schema, overwrite, streaming=False)
        key = self._options.idempotency_key
        self._query_id = f"job:{uuid.uuid4()}" if key is None else f"key:{key}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition, in a task."""
        return _run_task(self._options, self._columns, iterator, self._query_id, _BATCH_JOB)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the successful task attempts have staged."""
        from reput_pipeline.spark.worker_daemon import begin_task

        begin_task()
        done = [message for message in messages if isinstance(message, TaskDone)]
        _commit(self._options, done, self._query_id, _BATCH_JOB)
        if self._options.idempotency_key is not None and done and all(one.part is None for one in done):
            note(f"nothing to publish under idempotencyKey {self._options.idempotency_key}: no rows, or already done")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 (Spark's)
        """Drop what was staged."""
        if self._options.exactly_once:
            _abort(self._options, self._query_id, _BATCH_JOB)


class ReputStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream, each once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """Check options and columns; see `ReputBatchWriter`."""
        self._options, self._columns = _checked(options, schema, overwrite, streaming=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a partition of a micro-batch, in a task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        batch_id = None if context is None else context.getLocalProperty("streaming.sql.batchId")
        if query_id is None or batch_id is None:
            raise SinkError(
                "this Spark does not tell a task of which query and batch it is; use semantics=at-least-once"
                if self._options.exactly_once
                else "a stream is written by a streaming query"
            )
        return _run_task(self._options, self._columns, iterator, f"query:{query_id}", int(batch_id))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Publish what the successful task attempts of a micro-batch have staged."""
        done = [message for message in messages if isinstance(message, TaskDone)]
        if not done:
            return
        strange = next((one for one in done if (one.query_id, one.batch_id) != (done[0].query_id, batchId)), None)
        if strange is not None:
            raise SinkError(
                f"a task wrote batch {strange.batch_id} of {strange.query_id}, but batch {batchId} is committed"
            )
        _commit(self._options, done, done[0].query_id, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Drop what was staged, if a task has reported its query."""
        query_id = next((one.query_id for one in messages if isinstance(one, TaskDone)), None)
        if self._options.exactly_once and query_id is not None:
            _abort(self._options, query_id, batchId)
