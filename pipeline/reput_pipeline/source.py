"""The format `reput`: what Spark makes of it in its planner process, once per query and again for every batch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

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
        from reput_pipeline.options import parse_source_options
        from reput_pipeline.schema import spark_schema
        from reput_pipeline.table_options import with_options_kept

        options = parse_source_options(self.options)
        return with_options_kept(spark_schema(options.all_columns, options.select), self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a batch.

        One that takes filters must not be returned unless Spark is really planning with them: it refuses the query
        where the setting is off.
        """
        from reput_pipeline.batch import FilteringReader, PlainReader
        from reput_pipeline.table_options import options_in_force

        planning = _PUSHDOWN_MODULE in sys.modules
        return (FilteringReader if planning else PlainReader)(options_in_force(self.options, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Return a reader of a stream."""
        from reput_pipeline.stream import ReputStreamReader
        from reput_pipeline.table_options import options_in_force

        return ReputStreamReader(options_in_force(self.options, schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of a batch."""
        from reput_pipeline.sink import ReputBatchWriter
        from reput_pipeline.table_options import options_in_force

        return ReputBatchWriter(options_in_force(self.options, schema), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's name)
        """Return a writer of a stream."""
        from reput_pipeline.sink import ReputStreamWriter
        from reput_pipeline.table_options import options_in_force

        return ReputStreamWriter(options_in_force(self.options, schema), schema, overwrite)


def register(spark: SparkSession) -> None:
    """Make the format known to a session, where Spark cannot find the package `pyspark_reput` by itself."""
    spark.dataSource.register(ReputDataSource)
