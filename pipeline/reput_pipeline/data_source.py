"""The format `reput`. Spark creates a `ReputDataSource` in its planner process for every query and batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from reput_pipeline.spark.option_reader import SINK_OPTIONS, SOURCE_OPTIONS, is_table, options_for
from reput_pipeline.spark.worker_daemon import begin_task, end_quietly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


_METADATA: Final = "reput.options"
_LOCATIONS: Final = frozenset(("nameserver", "path"))
"""The options that say where the messages are."""
_PUSHDOWN_MODULE: Final = "pyspark.sql.worker.data_source_pushdown_filters"


end_quietly()  # A process that plans a query imports this module first.


def with_options_kept(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema; a catalogue table's keeps the table's options in the metadata of its first column.

    Spark passes a table's options only while it creates the table; later queries get the schema. If CREATE TABLE
    declares columns, Spark asks for no schema, and the options are lost.
    """
    if is_table(options):
        kept = options_for(SINK_OPTIONS, options, "sink", SOURCE_OPTIONS)
        kept |= options_for(SOURCE_OPTIONS, options, "source", SINK_OPTIONS)
        schema.fields[0].metadata = {_METADATA: json.dumps(kept)}
    return schema


def options_in_force(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return a query's options, with the table's if they name neither broker nor path."""
    given = {name.lower(): value for name, value in options.items()}
    kept = schema.fields[0].metadata.get(_METADATA) if schema.fields else None
    if kept is None or given.keys() & _LOCATIONS:
        return given
    # With the prefix, the source passes over the sink's options of a table, and vice versa.
    return {f"option.{name}".lower(): value for name, value in json.loads(kept).items()} | given


class ReputDataSource(DataSource):
    """Messages of a broker (`nameServer`) or store directory (`path`); docs/pipeline.md has the options.

    Spark pickles it, so it holds only options. Each method imports its modules, so that a process has only those that
    it uses.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        begin_task()

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "reput"

    def schema(self) -> StructType:
        """Return the selected columns."""
        from reput_pipeline.source.options import parse_source_options, spark_schema

        options = parse_source_options(self.options)
        return with_options_kept(spark_schema(options.all_columns, options.select), self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader.

        Spark refuses a reader with `pushFilters` unless it plans with filter pushdown.
        """
        from reput_pipeline.source.readers import FilteringReader, PlainReader

        begin_task()
        planning = _PUSHDOWN_MODULE in sys.modules
        return (FilteringReader if planning else PlainReader)(options_in_force(self.options, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Return a stream reader, for a query that is refused, too."""
        from reput_pipeline.source.readers import RefusedStreamReader, ReputStreamReader

        try:
            return ReputStreamReader(options_in_force(self.options, schema), schema)
        except ValueError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer."""
        from reput_pipeline.sink.writers import ReputBatchWriter

        begin_task()
        return ReputBatchWriter(options_in_force(self.options, schema), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's name)
        """Return a stream writer."""
        from reput_pipeline.sink.writers import ReputStreamWriter

        begin_task()
        return ReputStreamWriter(options_in_force(self.options, schema), schema, overwrite)


def register(spark: SparkSession) -> None:
    """Register the format, for programs in which Spark does not find `pyspark_reput`.

    Also makes the session the active one of the calling thread: there alone Spark looks the format of a streaming
    query's sink up.
    """
    from reput_pipeline.spark.session import make_active

    spark.dataSource.register(ReputDataSource)
    make_active(spark)
