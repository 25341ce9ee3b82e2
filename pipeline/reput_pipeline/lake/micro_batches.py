"""Append micro-batches of a Spark stream to a Delta or Iceberg table, each once, without Spark classes for tables.

A commit has a batch's rows and its number, as the progress of a queue named after the query. So a batch that Spark runs
again after a failure is found in the table, whichever process or connection was lost after the commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from reput_client.arrow.queues import QueueKey
from reput_pipeline.lake.copying import COMMIT_ATTEMPTS, open_table
from reput_pipeline.lake.table import LIBRARIES, LakeTable, Progress, TableChanged, TableError, TableOptions
from reput_pipeline.source.options import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY_ID: Final = "sql.streaming.queryId"


class TableAppender:
    """A function for `foreachBatch`: appends each micro-batch of its query to a table, exactly once.

    The rows of a batch are collected in the driver's memory. The table is opened with the first batch, and created if
    it does not exist; columns are found by their names, as by `reput pipeline archive`. A query is known by the id in
    its checkpoint: with another checkpoint everything is appended again.

    Args:
        table_format: `delta` or `iceberg`; needs the extra of that name.
        place: directory or URL of the table, or of the warehouse (Iceberg).
        name: namespace and name in the catalog (Iceberg).
        partition_by: columns of a new Delta table; empty, or the same ones in the same order, for an existing table. A
            text in them must not be too long for the name of a directory.
        compression: of the Parquet files.
        evolve: whether columns that the table lacks are added.
        settings: options of the storage (Delta) or properties of the catalog (Iceberg).

    Raises:
        ValueError: there is no such format.
    """

    def __init__(
        self,
        table_format: str,
        place: str,
        *,
        name: str = TableOptions.name,
        partition_by: Sequence[str] = (),
        compression: str = TableOptions.compression,
        evolve: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        if table_format not in LIBRARIES:
            raise ValueError(f"there is no format {table_format!r}; there are {', '.join(LIBRARIES)}")
        self._format = table_format
        self._options = partial(
            TableOptions,
            place,
            name=name,
            partition_by=tuple(partition_by),
            compression=compression,
            evolve=evolve,
            settings=dict(settings or {}),
        )
        self._table: LakeTable | None = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Append a micro-batch, unless the table has it.

        Raises:
            TableError: the table cannot be opened or take the rows, or is partitioned by other columns; other commits
                reject this one again and again; or this is not a batch of `foreachBatch` in the driver.
        """
        query_id = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if query_id is None:
            raise TableError("a frame that is not of a stream has no batch; use the format's own writer")
        query = QueueKey(f"query {query_id}", "", 0)
        schema = _columns_of(frame)
        if self._table is None:
            self._table = open_table(self._format, self._options(schema))
        table = self._table
        rows: pa.Table | None = None
        for _ in range(COMMIT_ATTEMPTS):
            if table.load([query], {}).ends.get(query, 0) > batch_id:
                return
            if rows is None:
                rows = frame.toArrow().cast(schema)
                for part in rows.to_batches():
                    table.check(part, lambda _row: f"a row of micro-batch {batch_id}")
            try:
                table.append(
                    rows.to_reader(), Progress({query: batch_id + 1}, {}, {}), rows.nbytes // max(1, rows.num_rows)
                )
            except TableChanged as changed:
                reason = changed
            else:
                return
        raise TableError(f"{table.where}: commits of others prevented this one {COMMIT_ATTEMPTS} times: {reason}")


def _columns_of(frame: DataFrame) -> pa.Schema:
    """Return the columns of a table for a frame's rows; the source's metadata is of no use there."""
    return pa.schema([field.remove_metadata().with_nullable(True) for field in arrow_schema(frame.schema)])
