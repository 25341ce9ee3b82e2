"""The task of an order, which records each of its runs in a file of its process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import django

if django.VERSION >= (6,):
    from django.tasks import task
else:
    from django_tasks import task


@task
def ship(reference: str) -> None:
    with (Path(os.environ["ORDERS_RUNS"]) / str(os.getpid())).open("a") as file:
        file.write(f"{reference} {time.time()}\n")
