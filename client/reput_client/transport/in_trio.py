"""Waits of trio's tasks, imported only where trio runs: other programs do not need it."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from typing import Any

import trio
from trio import CancelScope as CancelScope
from trio import ClosedResourceError as ClosedResourceError
from trio.lowlevel import Abort, Task, current_task, reschedule, wait_task_rescheduled
from trio.lowlevel import wait_readable as wait_readable
from typing_extensions import override

from reput_client.transport.runtime import Event, Sleeper


class TrioEvent(Event):
    """An event of trio's loop."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = trio.Event()

    @override
    def set(self) -> None:
        self._event.set()

    @override
    async def wait(self, timeout_s: float) -> None:
        if timeout_s == math.inf:
            await self._event.wait()
            return
        with trio.move_on_after(timeout_s):
            await self._event.wait()


class TrioSleeper(Sleeper):
    """A task that sleeps, without an event's set of tasks."""

    __slots__ = ("task",)

    def __init__(self) -> None:
        self.task: Task | None = None

    def __await__(self) -> Generator[Any, Any, None]:
        self.task = current_task()
        return wait_task_rescheduled(self._abort).__await__()  # noqa: ASYNC105  # awaited by who awaits this

    def _abort(self, _raise_cancel: object) -> Abort:
        self.task = None
        return Abort.SUCCEEDED


def wake(sleepers: Iterable[TrioSleeper]) -> None:
    """Wake the tasks that were not cancelled meanwhile."""
    for sleeper in sleepers:
        task, sleeper.task = sleeper.task, None
        if task is not None:
            reschedule(task)
