"""Batch queries: Spark calls `partitions` in its planner process and `read` in the workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from reput_pipeline.source.narrowing import NOTHING_NARROWED, Narrowing, narrow
from reput_pipeline.source.options import parse_source_options
from reput_pipeline.source.schema import arrow_schema, check_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class PlainReader(DataSourceReader):
    """Reads a batch without regard to the filters of the query."""

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
        """Return the tasks; raises as `offline_plan.plan` and `live_plan.plan_batch`."""
        if self._options.path is not None:
            from reput_pipeline.source.offline_plan import plan
            from reput_pipeline.source.offline_store import OfflineStore

            with OfflineStore(self._options.path) as store:
                return plan(store, self._options, self._narrowing)
        from reput_pipeline.source.live_plan import plan_batch

        return plan_batch(self._options, self._narrowing)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one task."""
        from reput_pipeline.source.tasks import read_task
        from reput_pipeline.spark.worker_process import begin_task

        begin_task()
        return read_task(partition, self._options, arrow_schema(self._schema), self._narrowing)


class FilteringReader(PlainReader):
    """A `PlainReader` that does not read what the filters of the query exclude."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Narrow the reading; returns all filters, for Spark to apply them as well."""
        self._narrowing = narrow(filters)
        return filters
