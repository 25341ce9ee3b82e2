"""`make bench KIND=lakehouse`: a directory to Parquet files, a Delta table and an Iceberg table, by the job `archive`.

    python benchmarks/lakehouse.py [--messages 1000000] [--size 300] [--rounds 3] [--batch 2000000]

Each run is a process; that of a run with nothing to copy is subtracted from its times. The formats alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from spark_source import fill

FORMATS = ("parquet", "delta", "iceberg")


class Run(NamedTuple):
    """What one process took."""

    elapsed_s: float
    cpu_s: float
    peak_mib: float
    rows: int


def main() -> None:
    """Fill a directory, measure, print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--messages", type=int, default=1_000_000)
    arguments.add_argument("--size", type=int, default=300, help="bytes of a body, about")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--batch", type=int, default=2_000_000, help="messages of a commit")
    given = arguments.parse_args()
    print(f"{platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(prefix="reput-bench-") as directory:
        root = Path(directory)
        fill(root / "store", given.messages, given.size)
        runs: dict[str, list[Run]] = {name: [] for name in FORMATS}
        for _ in range(given.rounds):
            for name in FORMATS:
                runs[name].append(_measure(root, name, given.messages, given.batch))
        print(f"load {os.getloadavg()[0]:.1f}")
        base = statistics.median(run.cpu_s for run in runs["parquet"])
    print(f"{'':10}{'rows/s':>10}{'us/row':>9}{'CPU us/row':>12}{'of Parquet':>12}{'peak MiB':>10}")
    for name, found in runs.items():
        elapsed, cpu = (statistics.median(run[at] for run in found) for at in (0, 1))
        print(
            f"{name:10}{given.messages / elapsed:10.0f}{elapsed / given.messages * 1e6:9.2f}"
            f"{cpu / given.messages * 1e6:12.2f}{cpu / base:12.2f}{max(run.peak_mib for run in found):10.0f}"
        )


def _measure(root: Path, name: str, messages: int, batch: int) -> Run:
    target = root / "out"
    shutil.rmtree(target, ignore_errors=True)
    command = [sys.executable, "-m", "reput_cli", "pipeline", "archive", "--path", str(root / "store")]
    command += ["--to", str(target), "--format", name, "--quiet", "--batch-messages", str(batch)]
    command += ["--master", "none"]
    full, nothing = _run(command), _run(command)
    if (full.rows, nothing.rows) != (messages, 0):
        raise SystemExit(f"{name}: {full.rows} rows of {messages}, then {nothing.rows}")
    return Run(full.elapsed_s - nothing.elapsed_s, full.cpu_s - nothing.cpu_s, full.peak_mib, full.rows)


def _run(command: list[str]) -> Run:
    since = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(output.decode())
    cpu = usage.ru_utime + usage.ru_stime
    rows = int(json.loads(output.splitlines()[-1])["rows"])
    return Run(time.monotonic() - since, cpu, usage.ru_maxrss / 1024, rows)


if __name__ == "__main__":
    main()
