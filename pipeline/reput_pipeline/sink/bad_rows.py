"""Rows that cannot be messages, as messages of another topic (`onBadRow=dead-letter`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from reput_pipeline.sink.record_blocks import Columns
from reput_pipeline.sink.schema import SinkColumns
from reput_pipeline.spark.errors import SinkError
from reput_protocol.printable import printable

REASON: Final = "BAD_ROW_REASON"
COLUMNS: Final = "BAD_ROW_COLUMNS"
"""Properties of a dead letter: the error, and the row's other columns as JSON."""
_REASON_MAX: Final = 2000
_COLUMNS_MAX: Final = 8000
"""Characters, at most three bytes each, so that both fit into a message's properties."""


class BadRows:
    """Separates the rows of batches.

    Args:
        columns: the names of the columns.
        check: raises `SinkError` if a row of a batch cannot be a message; its second argument is the number of the
            first row.
    """

    def __init__(self, columns: SinkColumns, check: Callable[[pa.RecordBatch, int], None]) -> None:
        self._columns = columns
        self._check = check
        self._kept: list[tuple[pa.RecordBatch, SinkError]] = []

    def sift(self, batch: pa.RecordBatch, first: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the parts of a batch that are messages, each with the number of its first row; keep the other rows."""
        if not batch.num_rows:
            return
        try:
            self._check(batch, first)
        except SinkError as error:
            if batch.num_rows == 1:
                self._kept.append((batch, error))
                return
            half = batch.num_rows // 2
            yield from self.sift(batch.slice(0, half), first)
            yield from self.sift(batch.slice(half), first + half)
        else:
            yield batch, first

    def take(self, body_max: int) -> Columns | None:
        """Return the kept rows as messages, and forget them; None without any. A longer body is cut to `body_max`."""
        kept, self._kept = self._kept, []
        if not kept:
            return None
        rows = [row.to_pylist()[0] for row, _ in kept]
        bodies = [row.pop(self._columns.body) or b"" for row in rows]
        texts = [body.encode() if isinstance(body, str) else body for body in bodies]
        return Columns(
            body=pa.array([text[:body_max] for text in texts], pa.binary()),
            properties=pa.array(
                [
                    [
                        (REASON, printable(str(error))[:_REASON_MAX]),
                        (COLUMNS, json.dumps(row, default=_shown)[:_COLUMNS_MAX]),
                    ]
                    for row, (_, error) in zip(rows, kept, strict=True)
                ],
                pa.map_(pa.string(), pa.string()),
            ),
        )


def _shown(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
