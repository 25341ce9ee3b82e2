"""The Arrow schema of a query without a Spark session, which alone could parse the schema's text."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from reput_pipeline.options import SourceOptions
from reput_pipeline.schema import KAFKA_HEADERS, arrow_schema

TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "map<string,string>": MapType(StringType(), StringType()),
    KAFKA_HEADERS: ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}


def spark_schema_of(options: SourceOptions) -> StructType:
    """What `DataSource.schema` says, as Spark would parse it."""
    names = options.select or tuple(options.all_columns)
    return StructType([StructField(name, TYPES[options.all_columns[name]]) for name in names])


def arrow_schema_of(options: SourceOptions) -> Any:
    """What the batches of a query have to have."""
    return arrow_schema(spark_schema_of(options))
