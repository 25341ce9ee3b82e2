"""A Celery program for tests; `REPUT_URL` and `MARKS`, a file to which tasks write, are in the environment."""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

import reput_client.tasks.celery  # noqa: F401 - registers the URL's scheme

URL = os.environ.get("REPUT_URL", "reput://127.0.0.1:10911//")

app = Celery("celery_app", broker=URL, backend=URL)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"invisible_s": 2.0},
    worker_prefetch_multiplier=1,
    worker_send_task_events=True,
    task_send_sent_event=True,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(acks_late=True)
def mark(text: str, takes_s: float = 0.0) -> None:
    note(f"begin {text}")
    time.sleep(takes_s)
    note(f"end {text}")


@app.task(bind=True, max_retries=3)
def third_time(self: Any) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    return int(self.request.retries)


@app.task
def wrong() -> None:
    raise KeyError("no such order")


def note(text: str) -> None:
    """Add a line to the file of marks."""
    with open(os.environ["MARKS"], "a") as file:
        file.write(f"{text}\n")
