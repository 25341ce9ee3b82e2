"""Tasks of the Django project of the tests."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import django

if django.VERSION >= (6,):
    from django.tasks import task
else:
    from django_tasks import task

done: list[Any] = []
go_on = threading.Event()


@task
def add(x: int, y: int) -> int:
    return x + y


@task
async def add_async(x: int, y: int) -> int:
    return x + y


@task
def note(what: str) -> None:
    done.append(what)


@task(takes_context=True)
def attempt(context: Any) -> list[Any]:
    return [context.attempt, context.task_result.id]


@task
def wrong() -> None:
    raise KeyError("no such order")


@task
def returns(kind: str) -> Any:
    if kind == "object":
        return object()
    return "x" * 5_000_000


@task
def slow(what: str) -> None:
    done.append(what)
    go_on.wait(20)


@task
def write(path: str, wait_s: float = 0.0) -> None:
    """Write a line when the task begins, and one when it ends."""
    with Path(path).open("a") as file:
        file.write(f"begin {os.getpid()}\n")
        file.flush()
        time.sleep(wait_s)
        file.write(f"end {os.getpid()}\n")
