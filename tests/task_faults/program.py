"""The Celery program of these runs: `program.py FIRST COUNT SPREAD_S` sends tasks, each with a time of its own.

What was sent and what has run is a line each in files of `MARKS`, written with one system call, so that a killed
process leaves whole lines.
"""

from __future__ import annotations

import os
import random
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from celery import Celery

import reput_client.tasks.celery  # noqa: F401 - makes the scheme reput:// known

URL = os.environ.get("TASKS_URL", "reput://127.0.0.1:10911//")
INVISIBLE_S = float(os.environ.get("TASKS_INVISIBLE_S", "20"))

app = Celery("program", broker=URL)
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_connection_timeout=60.0,
    broker_transport_options=(
        {"visibility_timeout": INVISIBLE_S} if URL.startswith("redis") else {"invisible_s": INVISIBLE_S}
    ),
    task_publish_retry_policy={"max_retries": 300, "interval_step": 0.1, "interval_max": 0.5},
)
if "TASKS_BUG" in os.environ:
    from task_faults import planted

    planted.BUGS[os.environ["TASKS_BUG"]].plant()
_files: dict[int, int] = {}


def note(line: str) -> None:
    """Add a line to this process's file."""
    if os.getpid() not in _files:
        path = Path(os.environ["MARKS"], str(os.getpid()))
        _files[os.getpid()] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(_files[os.getpid()], f"{line}\n".encode())


@app.task(name="at")  # the sender is __main__, and the worker is not
def at(number: int, due: float) -> None:
    """Note that this task has run, when it was due and when it runs."""
    note(f"ran {number} {due} {time.time()}")


def main() -> None:
    """Send tasks, and note each that `apply_async` has accepted."""
    first, count, spread_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    rng = random.Random(first)
    for number in range(first, first + count):
        due = time.time() + rng.uniform(2.0, spread_s)
        at.apply_async((number, due), eta=datetime.fromtimestamp(due, UTC))
        note(f"sent {number} {due} {time.time()}")


if __name__ == "__main__":
    main()
