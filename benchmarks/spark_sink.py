"""The Spark sink against a sink that does nothing but receive Arrow, and what a commit costs other producers.

    python benchmarks/spark_sink.py [--messages 600000] [--size 300] [--rounds 3] [--only sink,producer]

Everything is measured in one session in turn, so that the ratios of one run can be compared; only ratios are meant to
be. On a machine that others use, rows per second of processor time tell more: those of Spark alone, JVM and Python
workers, and with the broker's. Broker and the other producer are processes of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from reput_client.batch_writer import StagingScope
from reput_client.blocking import Admin, Message, Producer
from reput_client.blocking.batch_writer import BatchWriter
from reput_pipeline.session import make_session
from reput_protocol.record_batch import encode_put_block
from servers import RunningBroker, broker

TOPIC = "bench"
QUEUES = 8
BLOCK = 256


class NothingWriter(DataSourceArrowWriter):
    """Receives Arrow, and that is all."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Look at every batch."""
        for batch in iterator:
            assert batch.num_rows >= 0
        return WriterCommitMessage()


class NothingSource(DataSource):
    """The format with that writer."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "nothing"

    def writer(self, schema: Any, overwrite: bool) -> Any:  # noqa: ARG002
        """Return the writer."""
        return NothingWriter()


def main() -> None:
    """Start a broker, measure, print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--messages", type=int, default=600_000)
    arguments.add_argument("--size", type=int, default=300, help="bytes of a body")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--only", default="sink,producer")
    given = arguments.parse_args()
    with broker("sync", STORE__COMMIT_LOG_FILE_SIZE="256MiB") as running:
        with Admin(running.address) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
            admin.create_topic("others", queues=1)
        if "producer" in given.only:
            measure_producer(running.address, given.messages, given.size)
        if "sink" in given.only:
            measure_sink(running, given.messages, given.size, given.rounds)


class Spent(NamedTuple):
    """What one round of one way took, in seconds."""

    elapsed: float
    spark: float
    broker: float


def measure_sink(running: RunningBroker, messages: int, size: int, rounds: int) -> None:
    """Print rows per second of each way, and its ratio to receiving alone; the same per second of processor time."""
    spark = make_session("bench", master=f"local[{os.cpu_count()}]", conf={"spark.driver.memory": "1g"})
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(NothingSource)
    frame = spark.range(0, messages, 1, os.cpu_count()).selectExpr(
        f"rpad(CAST(id AS STRING), {size}, 'x') AS body",
        "concat('t', id % 5) AS tags",
        "concat('k', id) AS keys",
    )
    options = {"nameServer": running.address, "topic": TOPIC}
    ways: dict[str, Any] = {
        "receive Arrow": lambda: frame.write.format("nothing").mode("append").save(),
        "at-least-once": lambda: (
            frame.write.format("reput").options(**options, semantics="at-least-once").mode("append").save()
        ),
        "exactly-once": lambda: frame.write.format("reput").options(**options).mode("append").save(),
    }
    for way in ways.values():
        way()  # the first of each starts workers
    took: dict[str, list[Spent]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            before = Spent(time.monotonic(), _cpu_of_children(but=running.pid), running.cpu_s())
            way()
            after = Spent(time.monotonic(), _cpu_of_children(but=running.pid), running.cpu_s())
            took[name].append(Spent(*(now - then for now, then in zip(after, before, strict=True))))
    figures = {
        name: (
            statistics.median(spent.elapsed for spent in rounds_of),
            statistics.median(spent.spark for spent in rounds_of),
            statistics.median(spent.spark + spent.broker for spent in rounds_of),
        )
        for name, rounds_of in took.items()
    }
    base = figures["receive Arrow"]
    for name, found in figures.items():
        rates = [
            f"{messages / one:>10,.0f} {what} {first / one:.2f}"
            for what, one, first in zip(
                ("rows/s", "a CPU second", "with the broker's"), found, base, strict=True
            )
        ]
        print(f"{name:>16}: {'  '.join(rates)}", flush=True)
    spark.stop()


def _cpu_of_children(but: int) -> float:
    """Return the processor seconds of all processes under this one, those that have ended and been waited for as well.

    Args:
        but: a process under this one that does not count.
    """
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rsplit(")", 1)[1].split()
            pid = int(path.parent.name)
            parents[pid] = int(fields[1])
            spent[pid] = sum(int(field) for field in fields[11:15])
    total = 0
    for pid in spent:
        above, line = pid, []
        while above in parents and above != os.getpid():
            line.append(above)
            above = parents[above]
        if above == os.getpid() and line and but not in line:
            total += spent[pid]
    return total / os.sysconf("SC_CLK_TCK")


def measure_producer(address: str, messages: int, size: int) -> None:
    """Print how long another producer's flushed sends take: alone, and while a batch is staged and published."""
    alone = Sender(address)
    time.sleep(4.0)
    quiet = alone.stop()
    query_id = f"bench:{uuid.uuid4()}"
    body = bytes(size)
    block = [Message(TOPIC, body, tag="t", keys=["k"]) for _ in range(BLOCK)]
    with BatchWriter(address, timeout_s=600) as writer:
        writer.begin(StagingScope(query_id, 0, 0, uuid.uuid4().hex))
        beside = Sender(address)
        for number in range(messages // BLOCK):
            ids = [f"{query_id}-{number}-{index}" for index in range(BLOCK)]
            queue_id = number % QUEUES
            writer.stage(TOPIC, queue_id, BLOCK, encode_put_block(block, TOPIC, queue_id, 1, ids))
        part = writer.end()
        staging = beside.stop()
        beside = Sender(address)
        started_at = time.monotonic()
        writer.commit(query_id, 0, [part], 600)
        took = time.monotonic() - started_at
        publishing = beside.stop()
    print(f"commit of {part.messages:,} messages beside a producer: {part.messages / took:,.0f} messages/s")
    for name, times in (("alone", quiet), ("staging", staging), ("publishing", publishing)):
        p50, p99 = (statistics.quantiles(times, n=100)[at] for at in (49, 98))
        base = statistics.quantiles(quiet, n=100)[98]
        print(
            f"{name:>16}: {len(times)} sends, p50 {p50 * 1000:.2f} ms, p99 {p99 * 1000:.2f} ms ({p99 / base:.2f})",
            flush=True,
        )


class Sender:
    """Another producer in a process of its own: one message at a time, flushed, some hundred a second."""

    def __init__(self, address: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._ended = context.Event()
        self._begun = context.Event()
        self._times = context.Queue()
        self._process = context.Process(target=_send, args=(address, self._begun, self._ended, self._times))
        self._process.start()
        self._begun.wait()

    def stop(self) -> list[float]:
        """End it, and return how long each send took."""
        self._ended.set()
        times: list[float] = self._times.get()
        self._process.join()
        return times


def _send(address: str, begun: Any, ended: Any, result: Any) -> None:
    times = []
    with Producer(address, group="other", timeout_s=60) as producer:
        message = Message("others", bytes(300))
        producer.send(message)
        begun.set()
        while not ended.is_set():
            started_at = time.perf_counter()
            producer.send(message)
            times.append(time.perf_counter() - started_at)
            time.sleep(0.002)
    result.put(times)


if __name__ == "__main__":
    main()
