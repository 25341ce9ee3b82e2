"""The Spark sink, compared with Parquet and a sink that only receives Arrow batches; a part of `spark_run.py`.

The broker is a process of its own that syncs its log. Its CPU is included only in figures that say so. `stalls.py`
measures what the sink costs another producer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from reput_client.blocking import Admin
from reput_client.blocking.bulk import BulkReader
from servers import RunningBroker
from spark_measure import Counted, Line, Turns, Way, compared, per_cpu_second, rows_of

TOPIC = "sunk"
QUEUES = 8


class NothingWriter(DataSourceArrowWriter):
    """Only receives Arrow batches."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Count the rows of every batch."""
        return Received(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Check that all rows have come."""
        seen = sum(message.rows for message in messages if isinstance(message, Received))
        assert seen == self._rows, f"{seen} rows of {self._rows} came"


class Received(WriterCommitMessage):
    """The number of rows that a task has received."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


class NothingSource(DataSource):
    """The format of that writer; the option `rows` is the expected number of rows."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "nothing"

    def writer(self, schema: Any, overwrite: bool) -> Any:  # noqa: ARG002
        """Return the writer."""
        return NothingWriter(int(self.options["rows"]))


class SinkBench:
    """The measurements.

    Args:
        spark: the session.
        root: where the Parquet files are written.
        broker: an empty broker.
        messages: number of messages of each run.
        size: bytes of a body.
        turns: runs the measurements.
    """

    def __init__(self, spark: Any, root: Path, broker: RunningBroker, messages: int, size: int, turns: Turns) -> None:
        self._spark = spark
        self._parquet = root / "sink.parquet"
        self._broker = broker
        self._messages = messages
        self._size = size
        self._turns = turns
        self._published = 0

    def sink(self) -> Iterator[Line]:
        """Measure writing the same DataFrame to each sink."""
        self._spark.dataSource.register(NothingSource)
        with Admin(self._broker.address) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        ways: dict[str, Way] = {
            "nothing": self._receive,
            "parquet": self._write_parquet,
            "at-least-once": partial(self._send, "at-least-once"),
            "exactly-once": partial(self._send, "exactly-once"),
        }
        spent = self._turns.take(self._messages, ways, but=self._broker.pid)
        base, rows = spent["nothing"], self._messages
        for name, goal in (("at-least-once", 0.7), ("exactly-once", 0.4)):
            yield compared(f"sink, {name} / only receiving", rows, spent[name], base, goal=goal)
        for name, goal in (("at-least-once", 0.8), ("exactly-once", 0.6)):
            yield compared(f"sink, {name} / Parquet", rows, spent[name], spent["parquet"], goal=goal)
        yield per_cpu_second("only receiving Arrow", rows, base)
        for name in ("at-least-once", "exactly-once"):
            yield per_cpu_second(f"sink, {name}, without the broker", rows, spent[name])

    def _writer(self) -> Any:
        rows = self._spark.range(0, self._messages, 1, os.cpu_count()).selectExpr(
            # Cheap to make, so that Spark's own work does not hide the cost of the sink.
            f"concat(CAST(id AS STRING), '{'x' * self._size}') AS body",
            "concat('t', id % 5) AS tags",
            "concat('k', id) AS keys",
        )
        return rows.write.mode("append")

    def _receive(self) -> int:
        self._writer().format("nothing").option("rows", str(self._messages)).save()
        return self._messages

    def _write_parquet(self) -> Counted:
        self._writer().mode("overwrite").option("compression", "zstd").parquet(str(self._parquet))
        return self._rows_of_parquet

    def _rows_of_parquet(self) -> int:
        return sum(map(rows_of, self._parquet.glob("*.parquet")))

    def _send(self, semantics: str) -> Counted:
        self._writer().format("reput").options(nameServer=self._broker.address, topic=TOPIC, semantics=semantics).save()
        return self._newly_published

    def _newly_published(self) -> int:
        with BulkReader(self._broker.address) as reader:
            bounds = reader.queue_bounds([TOPIC]).topics[TOPIC]
        before, self._published = self._published, sum(high - low for _, low, high in bounds)
        return self._published - before
