"""The format `reput`. Spark creates a `ReputDataSource` in its planner process, for each query and for every batch."""

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

from reput_pipeline.option_reader import SINK_OPTIONS, SOURCE_OPTIONS, is_table, options_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


_METADATA: Final = "reput.options"
_PLACES: Final = frozenset(("nameserver", "path"))


def with_options_kept(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema; that of a catalogue table keeps the table's options in its first column's metadata.

    Spark passes a table's options to the source only while it creates the table; later queries get the schema. If
    CREATE TABLE declares columns, Spark does not ask the source for a schema, and the options are lost.
    """
    if is_table(options):
        kept = options_for(SINK_OPTIONS, options, "sink", SOURCE_OPTIONS)
        kept |= options_for(SOURCE_OPTIONS, options, "source", SINK_OPTIONS)
        schema.fields[0].metadata = {_METADATA: json.dumps(kept)}
    return schema


def options_in_force(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a query: those given and, if they name neither broker nor path, those of the table."""
    given = {name.lower(): value for name, value in options.items()}
    kept = schema.fields[0].metadata.get(_METADATA) if schema.fields else None
    if kept is None or given.keys() & _PLACES:
        return given
    # With the prefix, the source passes over the sink's options of a table, and vice versa.
    return {f"option.{name}".lower(): value for name, value in json.loads(kept).items()} | given


_PUSHDOWN_MODULE = "pyspark.sql.worker.data_source_pushdown_filters"


class ReputDataSource(DataSource):
    """Messages of a broker (`nameServer`) or of a store directory (`path`); docs/pipeline.md has the options.

    It holds nothing but options, since Spark pickles it to other processes.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "reput"

    def schema(self) -> StructType:
        """Return the columns that the options select."""
        from reput_pipeline.data_source import with_options_kept
        from reput_pipeline.source.options import parse_source_options
        from reput_pipeline.source.schema import spark_schema

        options = parse_source_options(self.options)
        return with_options_kept(spark_schema(options.all_columns, options.select), self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader.

        It accepts filters only if Spark plans with filter pushdown: with the setting off, Spark refuses a reader that
        has `pushFilters`.
        """
        from reput_pipeline.data_source import options_in_force
        from reput_pipeline.source.batch import FilteringReader, PlainReader

        planning = _PUSHDOWN_MODULE in sys.modules
        return (FilteringReader if planning else PlainReader)(options_in_force(self.options, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Return a stream reader."""
        from reput_pipeline.data_source import options_in_force
        from reput_pipeline.source.stream import ReputStreamReader

        return ReputStreamReader(options_in_force(self.options, schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer."""
        from reput_pipeline.data_source import options_in_force
        from reput_pipeline.sink.writers import ReputBatchWriter

        return ReputBatchWriter(options_in_force(self.options, schema), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's name)
        """Return a stream writer."""
        from reput_pipeline.data_source import options_in_force
        from reput_pipeline.sink.writers import ReputStreamWriter

        return ReputStreamWriter(options_in_force(self.options, schema), schema, overwrite)


def register(spark: SparkSession) -> None:
    """Register the format with a session, for programs in which Spark does not find the package `pyspark_reput`."""
    spark.dataSource.register(ReputDataSource)
