"""`make bench KIND=spark`: the pipeline on Spark, as one table of ratios.

    python benchmarks/spark_run.py [--messages 300000] [--size 300] [--rounds 3] [--cores 2]
        [--only scan,arrow,short,stream,parts,sink,archive,audit,memory,workers]

Everything runs in one session, both sides of a ratio alternately; only ratios can be compared across machines. `ratio`
is of elapsed time, `ratio, CPU` of the CPU seconds of Spark and its workers, which other load on the machine changes
less. A run that loses rows has no figure, and the program then exits with 1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pyspark

from reput_pipeline.data_source import register
from reput_pipeline.jobs.run import run_job
from reput_pipeline.spark.session import make_session
from servers import RunningBroker, broker, broker_on
from spark_measure import Line, LostRows, Turns, Way, WorkerMemory, compared, per_cpu_second, print_table, rows_of
from spark_sink import SinkBench
from spark_source import LOG_FILE_BYTES, SHORT, TOPIC, SourceBench, fill, read_through
from verify import crc_loop

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from support.spark_cluster import SparkCluster

AUDITED = 3
"""Factor for the number of messages of the audit, which is faster than the other jobs."""
_FILE_BYTES = 64 << 20
MEASURES = ("scan", "arrow", "short", "stream", "parts", "sink", "archive", "audit", "memory", "workers")
WORKER_MIB = 200.0
Measure = Callable[[], Iterator[Line]]


def main() -> None:
    """Fill a store, measure, print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--messages", type=int, default=300_000)
    arguments.add_argument("--size", type=int, default=300, help="bytes of a body, about")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="tasks at once")
    arguments.add_argument("--only", default=",".join(MEASURES), help="measurements, separated by commas")
    given = arguments.parse_args()
    only = given.only.split(",")
    if unknown := sorted(set(only) - set(MEASURES)):
        arguments.error(f"no measurement {unknown[0]!r}; there are {', '.join(MEASURES)}")
    # The workers have to import the baseline's sink from this directory.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        (str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", ""))
    ).rstrip(os.pathsep)
    started_at, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="reput-bench-") as name:
        bench = Bench(Path(name), given)
        bench.run(only)
    print(
        f"\nSpark {pyspark.__version__}, Python {platform.python_version()}, local[{given.cores}] on {os.cpu_count()} "
        f"cores, {given.messages:,} messages of {given.size} to {given.size + 96} bytes, load {load:.1f} before and "
        f"{os.getloadavg()[0]:.1f} after, {time.monotonic() - started_at:.0f} s\n"
    )
    print_table(bench.lines)
    for reason in bench.lost:
        print(f"NO FIGURE: {reason}")
    sys.exit(1 if bench.lost else 0)


class Bench:
    """A run of the benchmark: the lines so far, and the lost rows."""

    def __init__(self, root: Path, given: argparse.Namespace) -> None:
        self.lines: list[Line] = []
        self.lost: list[str] = []
        self._root = root
        self._given = given
        self._memory = WorkerMemory()
        self._turns = Turns(given.rounds, self._memory)

    def run(self, only: list[str]) -> None:
        """Run the measurements named in `only`."""
        given, root = self._given, self._root
        fill(root / "store", given.messages, given.size)
        if set(only) - {"workers"}:
            spark = make_session(
                "bench", master=f"local[{given.cores}]", conf={"spark.driver.memory": "1g"}, quiet=True
            )
            register(spark)
            try:
                self._in_session(spark, only)
            finally:
                spark.stop()
        if "workers" in only:
            with self._serving() as serving:
                self._take("workers", lambda: measure_workers(root, serving, given.messages, self._turns))

    def _in_session(self, spark: Any, only: list[str]) -> None:
        given, root, turns = self._given, self._root, self._turns
        if {"scan", "arrow", "short", "stream", "parts"} & set(only):
            if "short" in only:
                fill(root / "short", given.messages, SHORT)
            with self._serving() as serving:
                source = SourceBench(spark, root, serving, given.messages, turns)
                for name in ("scan", "arrow", "short", "stream", "parts"):
                    if name in only:
                        self._take(name, getattr(source, name))
        if "sink" in only:
            with broker("sync", STORE__COMMIT_LOG_FILE_SIZE="256MiB") as running:
                sink = SinkBench(spark, root, running, given.messages, given.size, turns)
                self._take("sink", sink.sink)
        jobs = JobBench(spark, root, given.messages, given.size, turns)
        for name in ("archive", "audit"):
            if name in only:
                self._take(name, getattr(jobs, name))
        if "memory" in only:
            most = self._memory.most_mib
            self.lines.append(Line("private memory of a Python worker", "MiB", most, goal=WORKER_MIB, at_most=True))

    def _take(self, name: str, measure: Measure) -> None:
        print(f"measuring: {name}", file=sys.stderr, flush=True)
        try:
            self.lines += measure()
        except LostRows as error:
            self.lost.append(str(error))

    def _serving(self) -> AbstractContextManager[RunningBroker]:
        """Run a broker on the store."""
        size = f"{LOG_FILE_BYTES >> 20}MiB"
        return broker_on(self._root / "store", "async", STORE__COMMIT_LOG_FILE_SIZE=size)


class JobBench:
    """The jobs `archive` and `audit`. No broker may have the directory `root/store` open.

    `archive` of a store directory is compared with a DataFrame of the directory that Spark writes as zstd Parquet,
    `audit`, per core, with a loop in one process that checks only the CRC of every body.

    Args:
        spark: the active session.
        root: has the directory `store`.
        messages: number of messages in it.
        size: bytes of a body.
        turns: runs the measurements.
    """

    def __init__(self, spark: Any, root: Path, messages: int, size: int, turns: Turns) -> None:
        self._spark = spark
        self._store = root / "store"
        self._audited = root / "audited"
        self._size = size
        self._out = root / "out"
        self._messages = messages
        self._turns = turns

    def archive(self) -> Iterator[Line]:
        """Measure a directory to Parquet."""
        ways = {
            "writer": self._writer,
            "archive": lambda: int(self._job("archive", self._store, "--to", str(self._out))["rows"]),
        }
        spent = self._turns.take(self._messages, ways)
        yield compared(
            "archive / source and Spark's writer", self._messages, spent["archive"], spent["writer"], goal=1.7
        )

    def audit(self) -> Iterator[Line]:
        """Measure the verification of a directory."""
        messages = AUDITED * self._messages
        fill(self._audited, messages, self._size, _FILE_BYTES)
        ways = {
            "loop": lambda: crc_loop(self._audited),
            "audit": lambda: int(self._job("audit", self._audited)["figures"]["records"]),
        }
        spent = self._turns.take(messages, ways)
        yield compared(
            "audit, per core / CRC loop", messages, spent["audit"], spent["loop"], cores=os.cpu_count() or 1, goal=0.4
        )

    def _writer(self) -> int:
        shutil.rmtree(self._out, ignore_errors=True)
        frame = self._spark.read.format("reput").options(path=str(self._store), subscribe=TOPIC).load()
        frame.write.option("compression", "zstd").parquet(str(self._out))
        return sum(rows_of(path) for path in self._out.glob("*.parquet"))

    def _job(self, name: str, directory: Path, *arguments: str) -> dict[str, Any]:
        shutil.rmtree(self._out, ignore_errors=True)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = run_job(name, ["--path", str(directory), "--quiet", *arguments], stop_session=False)
        if code:
            raise SystemExit(output.getvalue())
        result: dict[str, Any] = json.loads(output.getvalue().splitlines()[-1])
        return result


def measure_workers(root: Path, broker: RunningBroker, messages: int, turns: Turns) -> Iterator[Line]:
    """Measure rows per CPU second on a standalone master with two workers, on loopback.

    No other session may be active.

    Args:
        root: has the directory `store`; the cluster's logs are next to it.
        broker: one that serves the directory.
        messages: number of messages in it.
        turns: runs the measurements.
    """
    with SparkCluster(root / "cluster") as cluster:
        conf = {"spark.executor.memory": "1g", "spark.driver.host": "127.0.0.1"}
        spark = make_session("bench", master=cluster.master, conf=conf, quiet=True)
        try:
            sources = {
                "offline, 2 workers": {"path": str(root / "store")},
                "live, 2 workers, broker included": {"nameServer": broker.address},
            }
            ways: dict[str, Way] = {
                name: partial(read_through, spark.read.format("reput").options(subscribe=TOPIC, **options).load)
                for name, options in sources.items()
            }
            for name, spent in turns.take(messages, ways, broker=broker.pid).items():
                yield per_cpu_second(name, messages, spent)
        finally:
            spark.stop()


if __name__ == "__main__":
    main()
