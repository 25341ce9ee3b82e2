"""The Spark source, compared with Spark's reading of the same rows from zstd Parquet and with its rate source.

A part of `spark_run.py`. Bodies are pieces of the standard library's source text.
"""

from __future__ import annotations

import json
import statistics
import sysconfig
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from filled_store import dispatch, opened, options_for, put
from reput_client.arrow import read_arrow
from reput_pipeline.source.readers import PlainReader
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from servers import RunningBroker
from spark_measure import Line, LostRows, Turns, Way, compared, compared_by_cpu, ns_per_row, per_cpu_second
from spark_ready import BATCH_ROWS, ReadySource, keep_ready

TOPIC = "bench"
QUEUES = 8
BLOCK = 64
LOG_FILE_BYTES = 64 << 20
SHORT = 9
"""Bytes of a short body, about: with the 0 to 96 that `fill` adds, 57 on average."""
THREE = "topic string, queueOffset long, tags string"
NINE = (
    "topic string, queueId int, queueOffset long, keys string, tags string, body binary, "
    "bornTimestamp timestamp, storeTimestamp timestamp, physicalOffset long"
)
"""The columns of most queries; without the properties, the most expensive ones on both sides, and rare ones."""
_FIRST_BATCHES = 5
_BATCHES = 25
_PATIENCE_S = 120.0


def fill(root: Path, messages: int, size: int, file_bytes: int = LOG_FILE_BYTES) -> None:
    """Create a store with `messages` messages, in blocks to alternating queues."""
    text = b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
    store = opened(options_for(root, file_size=file_bytes))
    for start in range(0, messages, BLOCK):
        numbers = range(start, min(start + BLOCK, messages))
        queue_id = start // BLOCK % QUEUES
        rows = [
            Message(
                TOPIC,
                text[(start := number * size % (len(text) - size)) : start + size + number % 97],
                tag=f"tag{number % 8}",
                keys=[f"order-{number}"],
                properties={"source": f"module-{number % 50}"},
            )
            for number in numbers
        ]
        ids = [f"{number:032X}" for number in numbers]
        put(store, queue_id, len(rows), bytearray(encode_put_block(rows, TOPIC, queue_id, 1_700_000_000_000, ids)))
        if start % 4096 == 0:
            dispatch(store)
    dispatch(store)
    store.close()


def read_through(make: Callable[[], Any]) -> int:
    """Plan and read a DataFrame; return its number of rows."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    seen = Observation()
    frame = make().observe(seen, count(lit(1)).alias("rows"))
    frame.write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


def _arrow_rows(source: str, columns: list[str] | None = None) -> int:
    return sum(batch.num_rows for batch in read_arrow(source, TOPIC, columns=columns))


class SourceBench:
    """The measurements.

    Args:
        spark: the session.
        root: has the directories `store` and `short`; Parquet and checkpoints are next to them.
        broker: one that serves the directory.
        messages: number of messages in it.
        turns: runs the measurements.
    """

    def __init__(self, spark: Any, root: Path, broker: RunningBroker, messages: int, turns: Turns) -> None:
        self._spark = spark
        self._root = root
        self._broker = broker.pid
        self._offline = self._directory("store")
        self._live = {"nameServer": broker.address, "subscribe": TOPIC}
        self._messages = messages
        self._turns = turns

    def _directory(self, name: str) -> dict[str, str]:
        return {"path": str(self._root / name), "subscribe": TOPIC}

    def _parquet(self, name: str) -> str:
        """Write the rows of a directory as Parquet."""
        path = str(self._root / f"{name}.parquet")
        self._frame(**self._directory(name)).write.option("compression", "zstd").parquet(path)
        return path

    def _frame(self, schema: str | None = None, **options: str) -> Any:
        reader = self._spark.read.format("reput").options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def _ready(self, name: str, schema: str | None = None) -> Callable[[], Any]:
        """Return what makes a frame of the rows of the directory, which have been decoded before."""
        spark_schema = self._frame(schema, **self._offline).schema
        path = keep_ready(PlainReader(self._offline, spark_schema), spark_schema, self._root / name)
        return lambda: self._spark.read.format("ready").schema(spark_schema).option("path", path).load()

    def scan(self) -> Iterator[Line]:
        """Measure reading everything."""
        parquet = self._parquet("store")
        self._spark.dataSource.register(ReadySource)
        ready, three_ready = self._ready("ready"), self._ready("three-ready", THREE)
        ways: dict[str, Way] = {
            name: partial(read_through, make)
            for name, make in {
                "parquet": lambda: self._spark.read.parquet(parquet),
                "offline": lambda: self._frame(**self._offline),
                "nine of parquet": lambda: self._spark.read.schema(NINE).parquet(parquet),
                "nine": lambda: self._frame(NINE, **self._offline),
                "three of parquet": lambda: self._spark.read.schema(THREE).parquet(parquet),
                "three": lambda: self._frame(THREE, **self._offline),
                "live": lambda: self._frame(**self._live),
                "three live": lambda: self._frame(THREE, **self._live),
                "ready": ready,
                "three ready": three_ready,
            }.items()
        }
        spent = self._turns.take(self._messages, ways, broker=self._broker)
        base, rows = spent["parquet"], self._messages
        yield compared("offline source / Parquet", rows, spent["offline"], base, goal=0.85, floor=0.7)
        yield compared(
            "offline, nine columns / Parquet", rows, spent["nine"], spent["nine of parquet"], goal=0.8, floor=0.7
        )
        yield compared("offline, three columns / Parquet", rows, spent["three"], spent["three of parquet"], goal=0.6)
        yield compared("live source / Parquet", rows, spent["live"], base, goal=0.7, floor=0.45)
        for name, ours, baseline, goal in (
            ("offline source / ready rows", "offline", "ready", 0.9),
            ("offline, three columns / ready rows", "three", "three ready", 0.9),
            ("live source / ready rows", "live", "ready", 0.9),
            ("live, three columns / ready rows", "three live", "three ready", 0.9),
            ("ready rows / Parquet", "ready", "parquet", None),
            ("ready rows, three columns / Parquet", "three ready", "three of parquet", None),
        ):
            yield compared_by_cpu(name, rows, spent[ours], spent[baseline], goal)
        yield compared("three columns / all, offline", rows, spent["three"], spent["offline"], goal=1.0)
        yield per_cpu_second("Parquet", rows, base)
        yield per_cpu_second("offline source", rows, spent["offline"])
        yield per_cpu_second("offline, three columns", rows, spent["three"])
        yield per_cpu_second("live source, broker included", rows, spent["live"])

    def arrow(self) -> Iterator[Line]:
        """Measure `read_arrow`, which has one thread, compared with Spark's reading of the same columns."""
        path, address = self._offline["path"], self._live["nameServer"]
        three = [column.split()[0] for column in THREE.split(", ")]
        spent = self._turns.take(
            self._messages,
            {
                "spark": partial(read_through, lambda: self._frame(**self._offline)),
                "arrow": partial(_arrow_rows, path),
                "three of spark": partial(read_through, lambda: self._frame(THREE, **self._offline)),
                "three": partial(_arrow_rows, path, three),
                "live": partial(_arrow_rows, address),
            },
            broker=self._broker,
        )
        rows = self._messages
        yield compared("read_arrow / Spark, offline", rows, spent["arrow"], spent["spark"], goal=3.0)
        yield compared(
            "read_arrow / Spark, offline, three columns", rows, spent["three"], spent["three of spark"], goal=3.0
        )
        yield ns_per_row("read_arrow, offline", rows, spent["arrow"])
        yield ns_per_row("read_arrow, offline, three columns", rows, spent["three"], goal=600)
        yield ns_per_row("read_arrow, live, broker included", rows, spent["live"])

    def short(self) -> Iterator[Line]:
        """Measure reading short bodies, whose records are mostly fields and properties."""
        parquet, short = self._parquet("short"), self._directory("short")
        ways: dict[str, Way] = {
            name: partial(read_through, make)
            for name, make in {
                "parquet": lambda: self._spark.read.parquet(parquet),
                "offline": lambda: self._frame(**short),
                "three of parquet": lambda: self._spark.read.schema(THREE).parquet(parquet),
                "three": lambda: self._frame(THREE, **short),
            }.items()
        }
        spent = self._turns.take(self._messages, ways, broker=self._broker)
        for name, ours, base, goal in (
            ("short bodies / Parquet", "offline", "parquet", 0.85),
            ("short bodies, three columns / Parquet", "three", "three of parquet", 0.6),
        ):
            yield compared(name, self._messages, spent[ours], spent[base], goal=goal)

    def parts(self) -> Iterator[Line]:
        """Measure rows per CPU second by the number of partitions."""
        ways: dict[str, Way] = {
            f"offline, {parts} partition{'s'[: parts > 1]}": partial(
                read_through, partial(self._frame, **self._offline, minPartitions=str(parts))
            )
            for parts in (1, 2, 4)
        }
        for name, spent in self._turns.take(self._messages, ways, broker=self._broker).items():
            yield per_cpu_second(name, self._messages, spent)

    def stream(self) -> Iterator[Line]:
        """Measure micro-batches of 1,000 rows in one partition, compared with Spark's rate source."""
        ours = self._spark.readStream.format("reput").options(
            **self._live, startingOffsets="earliest", maxOffsetsPerTrigger=str(BATCH_ROWS), minPartitions="1"
        )
        theirs = self._spark.readStream.format("rate-micro-batch").options(
            rowsPerBatch=str(BATCH_ROWS), numPartitions="1"
        )
        self._spark.dataSource.register(ReadySource)
        ready = self._spark.readStream.format("ready")
        found: dict[str, list[float]] = {"rate": [], "ready": [], "live": []}
        for number in range(self._turns.rounds + 1):
            for name, reader in (("rate", theirs), ("ready", ready), ("live", ours)):
                times = self._batches(reader, self._root / f"checkpoint-{name}-{number}")
                if number:
                    found[name].append(statistics.median(times))
        for name, base, what, goal in (
            ("live", "rate", "micro-batch of 1,000 rows / rate source", 1.6),
            ("live", "ready", "micro-batch of 1,000 rows / ready rows of a Python source", 1.2),
        ):
            yield Line(
                what,
                "ms",
                statistics.median(found[name]),
                statistics.median(found[base]),
                [mine / theirs for mine, theirs in zip(found[name], found[base], strict=True)],
                goal=goal,
                at_most=True,
            )

    def _batches(self, reader: Any, checkpoint: Path) -> list[float]:
        """Return the times of micro-batches in ms, without the first ones."""
        query = reader.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
        until = time.monotonic() + _PATIENCE_S
        while query.lastProgress is None or query.lastProgress["batchId"] < _BATCHES:
            if time.monotonic() > until:
                raise LostRows(f"{_BATCHES} micro-batches took more than {_PATIENCE_S:.0f} s")
            time.sleep(0.1)
        self._spark.sparkContext.setLogLevel("OFF")  # stopping the query interrupts a batch, which is not an error
        query.stop()
        self._spark.sparkContext.setLogLevel("ERROR")
        batches = [progress for progress in query.recentProgress if progress["numInputRows"]][_FIRST_BATCHES:]
        for batch in batches:
            planned = _planned(batch["sources"][0])
            if batch["numInputRows"] != planned or planned < BATCH_ROWS - QUEUES:
                raise LostRows(f"a micro-batch of {planned} rows had {batch['numInputRows']}")
        return [float(batch["durationMs"]["triggerExecution"]) for batch in batches]


def _planned(source: Any) -> int:
    """Return the expected rows of a micro-batch; the live source rounds the shares of queues down."""
    start, end = json.loads(source["startOffset"]), json.loads(source["endOffset"])
    if "topics" not in end:
        return BATCH_ROWS
    return sum(
        offset - start["topics"][topic][broker][queue_id]
        for topic, brokers in end["topics"].items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    )
