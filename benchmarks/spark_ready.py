"""A Python source whose rows cost nothing to make: the overhead that Spark has with any Python source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
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


@dataclass
class ReadyFile(InputPartition):
    """A task."""

    path: str


class ReadyFiles(DataSourceReader):
    """Yields the batches that `keep_ready` has written, as they are in mapped files."""

    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        """Return a task for each file."""
        return [ReadyFile(str(path)) for path in sorted(Path(self._path).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one file."""
        assert isinstance(partition, ReadyFile)
        with pa.memory_map(partition.path) as file:
            yield from pa.ipc.open_stream(file)


def keep_ready(reader: DataSourceReader, schema: StructType, path: Path) -> str:
    """Write the batches of another source to a directory, a file for each of its tasks; return its path."""
    from reput_pipeline.source.options import arrow_schema

    path.mkdir()
    for number, partition in enumerate(reader.partitions()):
        with pa.ipc.new_stream(path / f"{number:04d}.arrows", arrow_schema(schema)) as file:
            for batch in reader.read(partition):
                assert isinstance(batch, pa.RecordBatch)
                file.write_batch(batch)
    return str(path)


class ReadySource(DataSource):
    """The format `ready`, with the columns of the format `reput`; a batch needs the option `path`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ready"

    def schema(self) -> StructType:
        """Return the columns."""
        from reput_client.consume.column_names import NATIVE_COLUMNS
        from reput_pipeline.source.options import spark_schema

        return spark_schema(dict(NATIVE_COLUMNS))

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 (that of the files)
        """Return the reader of a batch."""
        return ReadyFiles(self.options["path"])

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader."""
        return ReadyReader(schema)


def _ready_batch(of: Any) -> Any:
    from reput_pipeline.source.options import arrow_schema

    schema = arrow_schema(of)
    values = {"string": "some text", "binary": _BODY}
    arrays = []
    for field in schema:
        value: Any = [("name", "value")] * 5 if pa.types.is_map(field.type) else values.get(str(field.type), 1)
        arrays.append(pa.array([value] * BATCH_ROWS, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
