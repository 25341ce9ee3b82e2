"""The columns of the source, and their types in Spark."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from reput_client.consume.column_names import KAFKA_COLUMNS, KAFKA_HEADERS, NATIVE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class SchemaError(ValueError):
    """A column of a schema is unknown or of another type."""


def columns_of(shape: str, *, include_headers: bool = False) -> dict[str, str]:
    """Return name and Spark type of all columns; `shape` is `native` or `kafka`."""
    if shape == "native":
        return dict(NATIVE_COLUMNS)
    return {**KAFKA_COLUMNS, "headers": KAFKA_HEADERS} if include_headers else dict(KAFKA_COLUMNS)


def spark_schema(columns: dict[str, str], select: Iterable[str] = ()) -> StructType:
    """Return the Spark schema of `columns`, or of the `select`ed ones in their order; needs no session."""
    from pyspark.sql import types

    header = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    of_text: dict[str, types.DataType] = {
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "binary": types.BinaryType(),
        "timestamp": types.TimestampType(),
        "map<string,string>": types.MapType(types.StringType(), types.StringType()),
        KAFKA_HEADERS: types.ArrayType(header),
    }
    return types.StructType([types.StructField(name, of_text[columns[name]]) for name in select or columns])


def check_schema(schema: StructType, columns: dict[str, str]) -> None:
    """Check that every field of a schema is a column of the source, with its type.

    Raises:
        SchemaError: one is not; names the nearest column or the type.
    """
    for field in schema.fields:
        expected = columns.get(field.name)
        if expected is None:
            near = difflib.get_close_matches(field.name, columns, 1, 0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise SchemaError(
                f"the source has no column {field.name!r}; {hint}its columns are {', '.join(columns)}"
            )
        actual = field.dataType.simpleString()
        if actual != expected:
            raise SchemaError(
                f"column {field.name!r} is of type {expected}, not {actual}; leave the schema out and cast the column"
            )
        if not field.nullable:
            raise SchemaError(f"column {field.name!r} is nullable; leave NOT NULL out")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark requires for `schema`: times are UTC whatever the session's time zone."""
    from pyspark.sql.pandas.types import to_arrow_schema

    converted: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return converted
