"""A Python source whose micro-batches cost nothing to make: the overhead that Spark has with any Python source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

BATCH_ROWS = 1000
_BODY = bytes(300)
_CACHE: list[Any] = []


class ReadyReader(DataSourceStreamReader):
    """Yields the same batch each time."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Return the start."""
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the rows of one batch."""
        return ReadMaxRows(BATCH_ROWS)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802, ARG002
        """Return the end of the next batch."""
        return {"rows": start["rows"] + BATCH_ROWS}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002
        """Return one task."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002
        """Yield the batch, which each worker makes once."""
        if not _CACHE:
            _CACHE.append(_ready_batch(self._schema))
        yield _CACHE[0]


class ReadySource(DataSource):
    """The format `ready`, with the columns of the format `reput`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ready"

    def schema(self) -> StructType:
        """Return the columns."""
        from reput_client.consume.column_names import NATIVE_COLUMNS
        from reput_pipeline.source.schema import spark_schema

        return spark_schema(dict(NATIVE_COLUMNS))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader."""
        return ReadyReader(schema)


def _ready_batch(of: Any) -> Any:
    import pyarrow as pa

    from reput_pipeline.source.schema import arrow_schema

    schema = arrow_schema(of)
    values = {"string": "some text", "binary": _BODY}
    arrays = []
    for field in schema:
        value: Any = (
            [("name", "value")] * 5 if pa.types.is_map(field.type) else values.get(str(field.type), 1)
        )
        arrays.append(pa.array([value] * BATCH_ROWS, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
