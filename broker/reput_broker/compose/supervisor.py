"""Starts a child process again when it ends: brokers side by side, the proxy of a broker, `make cluster`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

PAUSE_S: Final = 1.0
_PAUSE_MAX_S: Final = 30.0
_STEADY_S: Final = 60.0
"""A process that has run that long is started again without a long pause."""


async def supervise(
    run: Callable[[], Awaitable[int]],
    on_end: Callable[[int, float], bool],
    stopping: trio.Event,
    *,
    pause_s: float | None = None,
) -> None:
    """Run a process, and again when it ends, until `stopping` is set and the process has ended.

    Args:
        run: runs the process until it ends, and returns its exit code. When `stopping` is set, the caller ends the
            process.
        on_end: called with the exit code and the seconds until the next start; returns whether there is one. Not
            called for an end after `stopping`.
        pause_s: seconds before the next start; None: 1 s, and twice as long after each end up to 30 s.
    """
    next_s = PAUSE_S
    while not stopping.is_set():
        started_at = trio.current_time()
        code = await run()
        if stopping.is_set():
            return
        if trio.current_time() - started_at >= _STEADY_S:
            next_s = PAUSE_S
        wait_s = next_s if pause_s is None else pause_s
        if not on_end(code, wait_s):
            return
        with trio.move_on_after(wait_s):
            await stopping.wait()
        next_s = min(2 * next_s, _PAUSE_MAX_S)
