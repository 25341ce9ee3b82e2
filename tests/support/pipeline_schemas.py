"""The schemas of a query without a Spark session."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import StructType

from reput_pipeline.source.options import SourceOptions, arrow_schema, spark_schema


def spark_schema_of(options: SourceOptions) -> StructType:
    """What `DataSource.schema` returns."""
    return spark_schema(options.all_columns, options.select)


def arrow_schema_of(options: SourceOptions) -> Any:
    """What the batches of a query have to have."""
    return arrow_schema(spark_schema_of(options))
