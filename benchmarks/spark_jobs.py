"""The jobs `archive` and `audit` against what they are to be compared with, in one run.

    python benchmarks/spark_jobs.py [--messages 600000] [--size 300] [--rounds 3] [--cores 1,2,4] [--only archive,audit]

`archive` of a store directory is compared with reading the same directory as a frame and having Spark write it as zstd
Parquet; `audit` with a loop in one process that does nothing but check the CRC of every body. Rows per second of the
clock, and per second of CPU that this process, the JVM and all Python workers have used together. With several numbers
of cores, a session of each: how the cost of a row grows with tasks that run at once. Bodies are slices of the standard
library's source text.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from reput_pipeline.jobs.frame import run_job
from reput_pipeline.session import make_session
from reput_pipeline.source import register
from spark_source import TOPIC, cpu_s, fill
from verify import crc_loop

CRC, WRITER, ARCHIVE, AUDIT = "CRC loop", "source, Spark's writer", "archive", "audit"


class Rate(NamedTuple):
    """Rows per second of the clock, and of CPU."""

    wall: float
    cpu: float


def main() -> None:
    """Fill a store, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=600_000)
    parser.add_argument("--size", type=int, default=300, help="bytes of a body, about")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", default="1,2,4", help="tasks at once, a session of each")
    parser.add_argument("--only", default="archive,audit")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reput-bench-") as name:
        root = Path(name)
        fill(root / "store", given.messages, given.size)
        crc_loop(root / "store")  # into the page cache
        print(
            f"\n{'cores':8}{'way':26}{'rows/s':>12}{'rows per CPU s':>16}{'ratio, clock':>14}{'ratio, CPU':>12}"
        )
        for cores in map(int, given.cores.split(",")):
            ways = Ways(root, given.messages, given.only.split(","))
            report(cores, ways.measured(cores, given.rounds))


class Ways:
    """What is measured."""

    def __init__(self, root: Path, messages: int, only: list[str]) -> None:
        self._root = root
        self._only = only
        self._messages = messages
        self._out = root / "out"
        self._spark: Any = None

    def measured(self, cores: int, rounds: int) -> dict[str, Rate]:
        """Run every way in turn, with so many tasks at once; return medians."""
        self._spark = make_session(
            "bench", master=f"local[{cores}]", conf={"spark.driver.memory": "1g"}, quiet=True
        )
        register(self._spark)
        ways: dict[str, Callable[[], None]] = {}
        if ARCHIVE in self._only:
            ways |= {WRITER: self._writer, ARCHIVE: lambda: self._job("archive", "--to", str(self._out))}
        if AUDIT in self._only:
            ways |= {CRC: lambda: crc_loop(self._root / "store"), AUDIT: lambda: self._job("audit")}
        try:
            rates: dict[str, list[Rate]] = {name: [] for name in ways}
            for _ in range(rounds + 1):  # the first starts workers
                for name, way in ways.items():
                    rates[name].append(self._rate(way))
        finally:
            self._spark.stop()
        return {
            name: Rate(*(statistics.median(column) for column in zip(*found[1:], strict=True)))
            for name, found in rates.items()
        }

    def _rate(self, way: Callable[[], None]) -> Rate:
        cpu, since = cpu_s() + time.process_time(), time.perf_counter()
        way()
        wall = time.perf_counter() - since
        used = cpu_s() + time.process_time() - cpu
        shutil.rmtree(self._out, ignore_errors=True)
        return Rate(self._messages / wall, self._messages / used)

    def _writer(self) -> None:
        frame = (
            self._spark.read.format("reput").options(path=str(self._root / "store"), subscribe=TOPIC).load()
        )
        frame.write.option("compression", "zstd").parquet(str(self._out))

    def _job(self, name: str, *arguments: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = run_job(
                name, ["--path", str(self._root / "store"), "--quiet", *arguments], stop_session=False
            )
        if code:
            raise SystemExit(output.getvalue())


def report(cores: int, rates: dict[str, Rate]) -> None:
    """Print the rates; the ratios are to Spark's writer, and for the audit to the loop on one core."""
    first = next(iter(rates))
    for name, rate in rates.items():
        base = rates[CRC] if name in (CRC, AUDIT) else rates[WRITER]
        used = min(cores, os.cpu_count() or 1) if name == AUDIT else 1
        print(
            f"{cores if name == first else '':<8}{name:26}{rate.wall:12.0f}{rate.cpu:16.0f}"
            f"{rate.wall / base.wall / used:14.2f}{rate.cpu / base.cpu:12.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
