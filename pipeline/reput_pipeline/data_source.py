"""The format `reput`: what Spark makes of it in its planner process, once per query and again for every batch."""

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

from reput_pipeline.source.known_options import SINK_OPTIONS, SOURCE_OPTIONS, is_table, options_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


_METADATA: Final = "reput.options"
_PLACES: Final = frozenset(("nameserver", "path"))


def with_options_kept(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns of a table that is being made, with its options; other columns come back as they are.

    Spark hands a table's options to the source while the table is made and never again; later queries get only the
    columns. So they are kept in the metadata of the first one. Where the statement declares columns of its own, Spark
    does not ask the source for any, and the options are lost.
    """
    if is_table(options):
        kept = options_for(SINK_OPTIONS, options, "sink", SOURCE_OPTIONS)
        kept |= options_for(SOURCE_OPTIONS, options, "source", SINK_OPTIONS)
        schema.fields[0].metadata = {_METADATA: json.dumps(kept)}
    return schema


def options_in_force(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a query: those given, and where they name no place, those of the table besides."""
    given = {name.lower(): value for name, value in options.items()}
    kept = schema.fields[0].metadata.get(_METADATA) if schema.fields else None
    if kept is None or given.keys() & _PLACES:
        return given
    # The prefix marks what is for the source as well as for the sink as options of a table.
    return {f"option.{name}".lower(): value for name, value in json.loads(kept).items()} | given


_PUSHDOWN_MODULE = "pyspark.sql.worker.data_source_pushdown_filters"


class ReputDataSource(DataSource):
    """Messages of a broker (`nameServer`) or of a store directory (`path`); docs/pipeline.md has the options.

    Only options are kept: an object of this class travels from process to process.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "reput"

    def schema(self) -> StructType:
        """Return the columns that the options ask for."""
        from reput_pipeline.data_source import with_options_kept
        from reput_pipeline.source.options import parse_source_options
        from reput_pipeline.source.schema import spark_schema

        options = parse_source_options(self.options)
        return with_options_kept(spark_schema(options.all_columns, options.select), self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a batch.

        One that takes filters must not be returned unless Spark is really planning with them: it refuses the query
        where the setting is off.
        """
        from reput_pipeline.data_source import options_in_force
        from reput_pipeline.source.batch import FilteringReader, PlainReader

        planning = _PUSHDOWN_MODULE in sys.modules
        return (FilteringReader if planning else PlainReader)(options_in_force(self.options, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Return a reader of a stream."""
        from reput_pipeline.data_source import options_in_force
        from reput_pipeline.source.stream import ReputStreamReader

        return ReputStreamReader(options_in_force(self.options, schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of a batch."""
        from reput_pipeline.data_source import options_in_force
        from reput_pipeline.sink.sink import ReputBatchWriter

        return ReputBatchWriter(options_in_force(self.options, schema), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's name)
        """Return a writer of a stream."""
        from reput_pipeline.data_source import options_in_force
        from reput_pipeline.sink.sink import ReputStreamWriter

        return ReputStreamWriter(options_in_force(self.options, schema), schema, overwrite)


def register(spark: SparkSession) -> None:
    """Make the format known to a session, where Spark cannot find the package `pyspark_reput` by itself."""
    spark.dataSource.register(ReputDataSource)
