"""Waiting for what a broker, another process or a thread does."""

from __future__ import annotations

import time
from collections.abc import Callable

import trio


def wait_until(
    condition: Callable[[], object], within_s: float = 60.0, *, what: str = "waited in vain"
) -> None:
    """Wait until a condition holds; fail with `what` after `within_s`."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


async def until(condition: Callable[[], object], *, within_s: float = 60.0, step_s: float = 0.005) -> None:
    """Wait until a condition holds, looking at it every `step_s` of trio's clock; fail after `within_s`."""
    with trio.fail_after(within_s):
        while not condition():
            await trio.sleep(step_s)
