"""`python tests/round_trip/run.py`: archive, replay, archive again; equal in all but offsets and store fields.

A store directory of `--messages` messages is archived; the archive is replayed to a broker; the broker's topics are
archived. Every job runs in its own process, as a person would start it. Then both archives are read without Spark
and compared queue by queue. Exit code 0 if every message is there once, in its place, and equal.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from reput_broker.store.base.options import StoreOptions
from reput_client.blocking import Admin
from round_trip.compare import COMPARED, NOT_COMPARED, compared, distinct_ids
from round_trip.messages import QUEUES, fill
from support.broker_process import BrokerProcess
from support.stores import opened


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description="Archive, replay, archive again, and compare.")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--master", default="local[2]", help="where Spark runs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reput-round-trip-") as name:
        return run(Path(name), given.messages, given.seed, given.master)


def run(work: Path, messages: int, seed: int, master: str) -> int:
    """Go there and back in a directory; return the exit code."""
    since = time.monotonic()
    store = opened(StoreOptions(work / "store", commit_log_file_size=64 << 20, flush_sync=False, index_enabled=False))
    fill(store, messages, seed)
    assert store.close()
    print(f"{messages} messages in {work / 'store'}: {time.monotonic() - since:.1f} s", flush=True)
    job("archive", "--path", work / "store", "--to", work / "first", "--master", master)
    shutil.rmtree(work / "store")
    with BrokerProcess(work / "broker") as broker:
        with Admin(broker.address) as admin:
            for topic, queues in QUEUES.items():
                admin.create_topic(topic, queues=queues)
        job("replay", "--archive", work / "first", "--server", broker.address, "--master", master)
        job("archive", "--server", broker.address, "--to", work / "second", "--master", master)
    return report(work / "first", work / "second", messages)


def job(name: str, *arguments: object) -> dict[str, Any]:
    """Run a job in its own process; return its last line.

    Raises:
        SystemExit: it failed.
    """
    command = [sys.executable, "-m", f"reput_pipeline.jobs.{name}", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{name}: {result.get('rows')} rows, exit code {done.returncode}, {result['elapsed_s']} s", flush=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {result.get('error')}")
    return result


def report(first: Path, second: Path, messages: int) -> int:
    """Compare two archives and print what was found; return the exit code."""
    counts = compared(first, second)
    print(f"\n{'topic':10}{'queues':>8}{'first':>12}{'second':>12}{'equal':>12}")
    for topic in QUEUES:
        of_topic = [each for (name, _), each in counts.items() if name == topic]
        sums = [sum(column) for column in zip(*of_topic, strict=True)] or [0, 0, 0]
        print(f"{topic:10}{len(of_topic):8}" + "".join(f"{value:12}" for value in sums))
    distinct = distinct_ids(second)
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    equal = [*totals, distinct] == [messages] * 4
    print(f"{'all':10}{len(counts):8}" + "".join(f"{value:12}" for value in totals))
    print(f"{distinct} different unique ids; compared: place in the queue, {', '.join(COMPARED)}")
    print(f"not compared: {', '.join(NOT_COMPARED)}")
    print("equal" if equal else "NOT EQUAL")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
