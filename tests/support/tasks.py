"""Services of the broker during a test, under a fake clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Any
from unittest import mock

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


async def inline(work: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
    """Instead of a thread, whose time the fake clock would not wait for."""
    await trio.lowlevel.checkpoint()
    return work(*arguments)


def run_by_the_clock(function: Callable[[], Awaitable[Any]], *, within_s: float = inf, **options: Any) -> Any:
    """`trio.run` with a clock that jumps over every wait, and with worker threads run in its own time."""

    async def limited() -> Any:
        with trio.fail_after(within_s):
            return await function()

    options["clock"] = trio.testing.MockClock(autojump_threshold=0)
    with mock.patch.object(trio.to_thread, "run_sync", inline):
        return trio.run(limited, **options)
