"""`python tests/task_faults/memory.py`: the memory of a Celery worker while tasks with an ETA wait, on Reput and Redis.

Prints the private memory of the worker's three processes and of the broker, before the tasks were sent and when nothing
changes any more, and how long the sending took.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from task_faults.scene import BROKERS, Scene

_SPREAD_S = 200_000.0
"""Few of the tasks are due while this runs."""
_QUIET_S = 10.0


def private_mib(pids: Iterable[int]) -> float:
    """Return the private memory of processes together, in MiB."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                total += int(line.split()[1])
    return total / 1024


def measure(place: Path, name: str, tasks: int) -> None:
    """Send tasks with one worker running, and print what its memory was before and after."""
    broker = BROKERS[name](place)
    scene = Scene(place, broker, tasks, _SPREAD_S, 2 * _SPREAD_S, None)
    worker = scene.workers[0]
    broker.start()
    try:
        worker.start()
        while len(worker.children) < 2:
            time.sleep(0.1)
        time.sleep(_QUIET_S)

        def now() -> tuple[float, float]:
            return private_mib([worker.pid, *worker.children]), private_mib([broker.pid])

        before, began = now(), time.monotonic()
        scene.send()
        took_s = time.monotonic() - began
        last, since = now(), time.monotonic()
        while time.monotonic() - since < _QUIET_S:
            time.sleep(0.5)
            if abs((found := now())[0] - last[0]) > 0.5:
                last, since = found, time.monotonic()
        print(
            f"{name}: {tasks} tasks sent in {took_s:.0f} s; worker {before[0]:.0f} MiB, then {last[0]:.0f} MiB; "
            f"broker {before[1]:.0f} MiB, then {last[1]:.0f} MiB",
            flush=True,
        )
    finally:
        worker.kill()
        broker.kill()


def main() -> None:
    """Parse the arguments, measure each broker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000, help="tasks to send (100,000)")
    parser.add_argument("--broker", choices=[*BROKERS], action="append", help="default: each")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores", flush=True)
    for name in arguments.broker or BROKERS:
        with tempfile.TemporaryDirectory(prefix="reput-task-memory-") as place:
            measure(Path(place), name, arguments.messages)


if __name__ == "__main__":
    main()
