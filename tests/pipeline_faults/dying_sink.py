"""The sink with something that dies, or fails, before and after each of its steps.

To import it plants the bug that the environment names: a driver imports it, and so does each of its workers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext

from pipeline_faults import planted
from pipeline_faults.points import SLOW, Point
from reput_pipeline.data_source import ReputDataSource
from reput_pipeline.sink.writers import ReputBatchWriter, ReputStreamWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SLOW_S: Final = 300.0

planted.plant_of_environment()


def _before_end(point: Point, batch_id: int) -> None:
    """What befalls a task that has staged everything."""
    context = TaskContext.get()
    assert context is not None
    attempt, partition = context.attemptNumber(), context.partitionId()
    point.fail_task(attempt, partition)
    if point.name == SLOW and partition == 0:
        point.note(f"attempt-{batch_id}-{attempt}")
        if attempt == 0:
            time.sleep(_SLOW_S)


class DyingStreamWriter(ReputStreamWriter):
    """The writer of a stream."""

    def write(self, iterator: Iterator[Any]) -> Any:
        context = TaskContext.get()
        assert context is not None
        batch_id = int(str(context.getLocalProperty("streaming.sql.batchId")))
        point = Point.of_environment()
        point.reached("before-staging", batch_id)
        done = super().write(iterator)
        point.reached("after-staging", batch_id)
        _before_end(point, batch_id)
        return done

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        point = Point.of_environment()
        point.reached("before-commit", batchId)
        super().commit(messages, batchId)
        point.reached("after-commit", batchId)


class DyingBatchWriter(ReputBatchWriter):
    """The writer of a frame, as `replay` uses it: its key says which batch it is."""

    @property
    def _number(self) -> int:
        return int(str(self._options.idempotency_key).split("-")[1])

    def write(self, iterator: Iterator[Any]) -> Any:
        point = Point.of_environment()
        point.reached("before-staging", self._number)
        done = super().write(iterator)
        point.reached("after-staging", self._number)
        _before_end(point, self._number)
        return done

    def commit(self, messages: list[Any]) -> None:
        point = Point.of_environment()
        point.reached("before-commit", self._number)
        super().commit(messages)
        point.reached("after-commit", self._number)


class DyingSource(ReputDataSource):
    """The format with those writers, under its own name."""

    def writer(self, schema: Any, overwrite: bool) -> Any:
        return DyingBatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        return DyingStreamWriter(self.options, schema, overwrite)


def register(spark: SparkSession) -> None:
    """Have a session use them."""
    spark.dataSource.register(DyingSource)
