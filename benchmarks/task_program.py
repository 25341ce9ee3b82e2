"""The Celery program that `tasks` measures: `task_program.py TASKS SECONDS` sends tasks, and prints what that took."""

from __future__ import annotations

import os
import sys
import time

from celery import Celery

import reput_client.tasks.celery  # noqa: F401 - makes the scheme reput:// known

URL = os.environ["BENCH_URL"]
app = Celery("task_program", broker=URL)
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
if URL.startswith("reput"):
    app.conf.broker_transport_options = {"ack": os.environ["BENCH_ACK"]}
elif URL.startswith("amqp"):
    app.conf.broker_transport_options = {"confirm_publish": os.environ["BENCH_ACK"] == "flushed"}
_done = os.open(os.environ["BENCH_DONE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


@app.task
def work(takes_s: float) -> None:
    """Take so long, and add a byte to the file of what is done."""
    if takes_s:
        time.sleep(takes_s)
    os.write(_done, b".")


def main() -> None:
    """Send tasks."""
    tasks, takes_s = int(sys.argv[1]), float(sys.argv[2])
    work.apply_async((takes_s,), queue="warm-up")
    began_at, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(tasks):
        work.delay(takes_s)
    print(time.perf_counter() - began_at, time.process_time() - cpu_s)


if __name__ == "__main__":
    main()
