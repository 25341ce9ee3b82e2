"""`python tests/hostile/run.py`: two lists of hostile clients against one broker, next to a well-behaved client.

For each list the well-behaved client is measured alone, then during the attacks, then alone again. The run fails if the
broker ends or is not ready afterwards, if its private memory exceeds the limit, if a request of the well-behaved client
fails, or if that client's p99 exceeds three times its value alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from hostile import attacks
from reput_client.blocking import Producer
from support.broker_process import BrokerProcess

MEMORY_LIMIT_MIB = 200.0
P99_RATIO_LIMIT = 3.0
_OLD_MESSAGES = 16_000
_OLD_BODY = 4096


@dataclass(frozen=True, slots=True)
class Times:
    """Latencies of the well-behaved client, in milliseconds."""

    p50: float
    p99: float
    most: float
    count: int

    @classmethod
    def of(cls, latencies: Sequence[float]) -> Times:
        """Return the percentiles of latencies."""
        ordered = sorted(latencies)
        return cls(ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1], len(ordered))

    def __str__(self) -> str:
        return f"p50 {self.p50:.2f} ms, p99 {self.p99:.2f} ms, max {self.most:.1f} ms, {self.count} requests"


class Behaved(NamedTuple):
    """The well-behaved client, and the file for its latencies."""

    process: subprocess.Popen[bytes]
    latencies: IO[str]


def main() -> int:
    """Parse the arguments, run both lists, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="of attacks, for each list (10)")
    parser.add_argument("--rate", type=float, default=50.0, help="requests of the well-behaved client a second")
    parser.add_argument("--list", choices=[*attacks.LISTS], help="only this list")
    arguments = parser.parse_args()
    names = [arguments.list] if arguments.list else [*attacks.LISTS]
    with tempfile.TemporaryDirectory(prefix="reput-hostile-") as directory:
        failures = [
            fault
            for name in names
            for fault in _run(name, Path(directory) / name, arguments.minutes * 60, arguments.rate)
        ]
    print("\n".join(f"FAILED: {failure}" for failure in failures) or "all held")
    return 1 if failures else 0


def _run(name: str, directory: Path, seconds: float, rate: float) -> list[str]:
    directory.mkdir()
    alone_s = min(60.0, max(5.0, seconds / 10))
    with BrokerProcess(directory / "store", environment={"REPUT_TOPICS__DEFAULT_QUEUES": "1"}) as broker:
        with Producer(broker.address, group="old") as producer:
            producer.send_many(attacks.OLD_TOPIC, [bytes(_OLD_BODY)] * _OLD_MESSAGES)
        before = _finish(_start_behaved(broker, rate, alone_s))
        report = directory / "outcomes.json"
        command = [sys.executable, "-m", "hostile.attacks", name, str(broker.port), str(broker.http_port)]
        hostile = subprocess.Popen([*command, str(report)], env=_environment())
        most = 0.0
        try:
            behaved = _start_behaved(broker, rate, seconds)
            while behaved.process.poll() is None and broker.running:
                most = max(most, _private_mib(broker.pid))
                time.sleep(0.25)
            during = _finish(behaved)
        finally:
            hostile_ended = hostile.poll()
            hostile.kill()
            hostile.wait()
        faults = [] if broker.running else [f"{name}: the broker ended:\n{broker.log_tail()}"]
        after = _finish(_start_behaved(broker, rate, alone_s)) if broker.running else []
        if broker.running and (trouble := broker.trouble()):
            faults.append(f"{name}: the broker is not ready: {trouble}")
    if hostile_ended is not None:
        faults.append(f"{name}: the attacks ended by themselves with {hostile_ended}")
    if min(len(before), len(during), len(after)) == 0:
        return [*faults, f"{name}: a request of the well-behaved client failed"]
    alone, beside = Times.of([*before, *after]), Times.of(during)
    ratio = beside.p99 / alone.p99
    print(f"{name}, {seconds / 60:g} min of attacks")
    print(f"  client alone:          {alone}")
    print(f"  during the attacks:    {beside}")
    print(f"  p99 ratio:             {ratio:.2f} (limit {P99_RATIO_LIMIT})")
    print(f"  most private memory:   {most:.0f} MiB (limit {MEMORY_LIMIT_MIB:g})")
    for outcome, number in sorted(json.loads(report.read_text()).items()):
        print(f"    {outcome}: {number}")
    if ratio > P99_RATIO_LIMIT:
        faults.append(f"{name}: p99 during the attacks is {ratio:.2f} times its value alone")
    if most > MEMORY_LIMIT_MIB:
        faults.append(f"{name}: private memory reached {most:.0f} MiB")
    return faults


def _start_behaved(broker: BrokerProcess, rate: float, seconds: float) -> Behaved:
    command = [sys.executable, "-m", "hostile.behaved", broker.address, str(rate), str(seconds)]
    # A file: a pipe that is read only at the end would hold up the client before it ends.
    latencies = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it closes with its owner
    return Behaved(subprocess.Popen(command, env=_environment(), stdout=latencies), latencies)


def _finish(behaved: Behaved) -> list[float]:
    failed = behaved.process.wait()
    behaved.latencies.seek(0)
    return [] if failed else [float(line) for line in behaved.latencies]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}


def _private_mib(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else 0.0


if __name__ == "__main__":
    sys.exit(main())
