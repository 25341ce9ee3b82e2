"""Services of the broker during a test, under a fake clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import inf
from typing import Any
from unittest import mock

import outcome
import trio
import trio.testing


@asynccontextmanager
async def running(*services: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run services while the body runs; its end cancels them."""
    async with trio.open_nursery() as nursery:
        for service in services:
            nursery.start_soon(service)
        yield
        nursery.cancel_scope.cancel()


@contextmanager
def threads_inline() -> Iterator[None]:
    """Run what goes to worker threads in the event loop, since the fake clock would not wait for a thread."""
    with (
        mock.patch.object(trio.to_thread, "run_sync", _inline),
        mock.patch.object(trio.lowlevel, "start_thread_soon", _inline_soon),
    ):
        yield


async def _inline(work: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
    await trio.lowlevel.checkpoint()
    return work(*arguments)


def _inline_soon(work: Callable[[], Any], deliver: Callable[[outcome.Outcome[Any]], object]) -> None:
    deliver(outcome.capture(work))


def run_by_the_clock(function: Callable[[], Awaitable[Any]], *, within_s: float = inf, **options: Any) -> Any:
    """`trio.run` with a clock that jumps over every wait, and with worker threads run in its own time."""

    async def limited() -> Any:
        with trio.fail_after(within_s):
            return await function()

    options["clock"] = trio.testing.MockClock(autojump_threshold=0)
    with threads_inline():
        return trio.run(limited, **options)
