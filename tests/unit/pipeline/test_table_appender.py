"""Micro-batches for a Delta table, without a session of Spark."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from reput_pipeline.lake.micro_batches import TableAppender
from reput_pipeline.lake.table import OtherPartitions, RowRejected

pytest.importorskip("deltalake")
types = pytest.importorskip("pyspark.sql.types")


def frame(*tags: str) -> Any:
    """Return the rows of a micro-batch as `foreachBatch` passes them."""
    context = SimpleNamespace(getLocalProperty=lambda _name: "query")
    return SimpleNamespace(
        sparkSession=SimpleNamespace(sparkContext=context),
        schema=types.StructType([types.StructField(name, types.StringType()) for name in ("tags", "body")]),
        toArrow=lambda: pa.table({"tags": [*tags], "body": [*tags]}),
    )


def test_a_row_that_a_table_cannot_take_and_other_partitions_are_named(tmp_path: Path) -> None:
    """The texts speak of no option of a command. An existing table needs the same columns, or none."""
    append = TableAppender("delta", str(tmp_path / "t"), partition_by=["tags"])
    append(frame("a"), 0)
    with pytest.raises(RowRejected, match=r"cannot take a row of micro-batch 1: .* by tags, .*'жж") as rejected:
        append(frame("b", "ж" * 60), 1)
    TableAppender("delta", str(tmp_path / "t"))(frame("b"), 1)
    TableAppender("delta", str(tmp_path / "t"), partition_by=["tags"])(frame("c"), 2)
    TableAppender("delta", str(tmp_path / "n"))(frame("a"), 0)
    with pytest.raises(OtherPartitions, match="is partitioned by nothing, not by tags") as other:
        TableAppender("delta", str(tmp_path / "n"), partition_by=["tags"])(frame("b"), 1)
    assert "--" not in f"{rejected.value} {other.value}"
    assert {path.name for path in (tmp_path / "t").glob("tags=*")} == {"tags=a", "tags=b", "tags=c"}


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_time_after_the_year_9999_is_appended(table_format: str, tmp_path: Path) -> None:
    """Such as one in microseconds that was taken for milliseconds: it ended the stream with each batch."""
    pytest.importorskip("pyiceberg")
    times = pa.array([0, 1_700_000_000_000_000_000], pa.timestamp("us", "UTC"))
    rows = frame("a", "b")
    rows.schema = types.StructType([types.StructField("at", types.TimestampType())])
    rows.toArrow = lambda: pa.table({"at": times})
    TableAppender(table_format, str(tmp_path / "t"))(rows, 0)
    found = import_module("support.lake_tables").read(table_format, tmp_path / "t")
    assert found["at"].combine_chunks().cast(pa.int64()).equals(times.cast(pa.int64()))
