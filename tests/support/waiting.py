"""Waiting for what a broker, another process or a thread does, and a clock for those who must not wait."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Protocol, TypeVar

import anyio

T = TypeVar("T")


class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...


@dataclass
class FakeSeconds:
    """A monotonic clock that stands still until it is moved."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


def wait_until(
    condition: Callable[[], T],
    within_s: float = 60.0,
    *,
    what: str | Callable[[], object] = "waited in vain",
    step_s: float = 0.02,
) -> T:
    """Wait until a condition holds, looking every `step_s`, and return it; fail with `what` after `within_s`."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(step_s)
    return found


def can_read(*sources: int | _HasDescriptor, within_s: float) -> bool:
    """Wait until one of these has bytes to read or has been closed by the far end; False if none has.

    `select.select` refuses descriptors over 1,023, which a process with many tests behind it has.
    """
    poller = select.poll()
    for source in sources:
        poller.register(source, select.POLLIN)
    return bool(poller.poll(within_s * 1000))


async def until(condition: Callable[[], object], *, within_s: float = 60.0, step_s: float = 0.005) -> None:
    """Wait until a condition, or what it awaits, holds; look every `step_s` of the event loop's clock."""
    with anyio.fail_after(within_s):
        while not (await found if isawaitable(found := condition()) else found):
            await anyio.sleep(step_s)
