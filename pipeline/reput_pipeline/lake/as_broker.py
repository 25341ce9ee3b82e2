"""A table that counts the queues of a store directory as those of its broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from reput_client.arrow.queues import Generations, QueueKey
from reput_pipeline.lake.table import LakeTable, Progress

_COLUMN = "brokerName"


class AsBroker(LakeTable):
    """Wraps a table: rows and progress get the broker's name, so that a job that reads from the broker continues.

    Args:
        table: the table.
        broker: the broker whose directory is read; the directory does not name it.
    """

    def __init__(self, table: LakeTable, broker: str) -> None:
        self._table = table
        self._broker = broker

    @property
    def where(self) -> str:
        """That of the table."""
        return self._table.where

    def load(self, queues: list[QueueKey], generations: Generations) -> Progress:
        """Return the broker's progress as the directory's."""
        found = self._table.load(
            [queue._replace(broker=self._broker) for queue in queues], self._named(generations)
        )
        ends = {
            queue._replace(broker=""): end
            for queue, end in found.ends.items()
            if queue.broker == self._broker
        }
        known = {
            (topic, ""): generation
            for (topic, broker), generation in found.generations.items()
            if broker == self._broker
        }
        return Progress(ends, known)

    def append(self, rows: pa.RecordBatchReader, progress: Progress) -> None:
        """Commit rows and progress under the broker's name."""
        ends = {queue._replace(broker=self._broker): end for queue, end in progress.ends.items()}
        named = pa.RecordBatchReader.from_batches(rows.schema, self._rows(rows))
        self._table.append(named, Progress(ends, self._named(progress.generations)))

    def figures(self) -> dict[str, Any]:
        """Return those of the table."""
        return self._table.figures()

    def tidy(self, keep_s: float) -> str:
        """Tidy the table."""
        return self._table.tidy(keep_s)

    def _named(self, generations: Generations) -> Generations:
        return {(topic, self._broker): generation for (topic, _), generation in generations.items()}

    def _rows(self, rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        at = rows.schema.get_field_index(_COLUMN)
        for batch in rows:
            name = pa.scalar(self._broker, pa.string())
            yield (
                batch if at < 0 else batch.set_column(at, batch.schema.field(at), pa.repeat(name, len(batch)))
            )
