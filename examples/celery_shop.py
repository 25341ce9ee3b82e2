"""A Celery program: orders are billed by workers, and who has not paid is reminded later.

    pip install './client[celery]'
    celery --workdir examples -A celery_shop worker
    python examples/celery_shop.py

It runs on a broker of Reput at 127.0.0.1:10911. With the variable CELERY_URL it runs on another one, or on Redis as it
did before: CELERY_URL=redis://127.0.0.1:6379/0.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from celery import Celery, chord

import reput_client.tasks.celery  # noqa: F401 - makes URLs with reput:// known

URL = os.environ.get("CELERY_URL", "reput://127.0.0.1:10911//")

app = Celery("celery_shop", broker=URL, backend=URL)
app.conf.update(
    task_acks_late=True,  # the task of a worker that is killed is done by another one
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
)


@app.task
def bill(order: int) -> int:
    """Bill an order; return the cents."""
    return 1000 + order


@app.task
def add_up(cents: list[int]) -> int:
    """Add up what was billed."""
    return sum(cents)


@app.task(bind=True, max_retries=5)
def ask_bank(self: Any, order: int) -> str:
    """Ask whether an order is paid; the bank answers only the second time."""
    if not self.request.retries:
        raise self.retry(countdown=0.5)
    return f"order {order} is paid"


@app.task
def remind(order: int) -> str:
    """Write to a customer."""
    return f"order {order} is not paid"


def main() -> None:
    """Send tasks, and print their results."""
    later = remind.apply_async((7,), countdown=2.0)  # it waits in the broker: no worker has it until then
    total = chord((bill.s(order) for order in range(3)), add_up.s())()
    print(f"billed {total.get(timeout=60)} cents")
    print(ask_bank.delay(1).get(timeout=60))
    print(later.get(timeout=60))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
