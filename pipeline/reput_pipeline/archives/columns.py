"""The columns of an archive's files: those of the source without those in the names of directories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from reput_client.consume.arrow_columns import arrow_schema
from reput_client.consume.column_names import NATIVE_COLUMNS
from reput_pipeline.archives.names import NULL_VALUE

PARTITION_COLUMNS: Final = {"queueId": "int", "tags": "string", "date": "string", "hour": "string"}
"""Columns that can partition an archive besides the topic; `date` and `hour` are UTC."""
_FORMATS: Final = {"date": "%Y-%m-%d", "hour": "%H"}


def read_schema() -> pa.Schema:
    """Return the Arrow schema of messages read for an archive: the native columns without the topic."""
    return arrow_schema(name for name in NATIVE_COLUMNS if name != "topic")


def file_schema(partition_by: Sequence[str]) -> pa.Schema:
    """Return the schema of a file: the columns that are not in the names of directories."""
    return pa.schema([field for field in read_schema() if field.name not in partition_by])


def spark_schema(partition_by: Sequence[str]) -> str:
    """Return the DDL of an archive: the native columns, and `date` and `hour` if it has them."""
    extra = {name: PARTITION_COLUMNS[name] for name in partition_by if name not in NATIVE_COLUMNS}
    return ", ".join(f"`{name}` {kind}" for name, kind in {**NATIVE_COLUMNS, **extra}.items())


def split(
    batch: pa.RecordBatch, partition_by: Sequence[str]
) -> list[tuple[tuple[str | None, ...], pa.Table | pa.RecordBatch]]:
    """Group the rows of a batch by its partition columns, in order and without these columns."""
    if not partition_by:
        return [((), batch)]
    keys = [_values(batch, name) for name in partition_by]
    columns = [name for name in batch.schema.names if name not in partition_by]
    rest = batch.select(columns)
    table = pa.table([*keys, pa.array(range(batch.num_rows), pa.int64())], [*partition_by, "row"])
    groups = table.group_by(list(partition_by)).aggregate([("row", "list")]).to_pylist()
    return [
        (tuple(group[name] for name in partition_by), rest.take(pa.array(group["row_list"], pa.int64())))
        for group in groups
    ]


def _values(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name in _FORMATS:
        return pc.strftime(batch.column("storeTimestamp"), format=_FORMATS[name])
    column = batch.column(name).cast(pa.string())
    # Null, "" and the null marker share a directory (`partition_name`), with one file for a range.
    return pc.if_else(pc.is_in(column, pa.array(["", NULL_VALUE])), None, column)
