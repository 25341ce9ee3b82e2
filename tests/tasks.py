"""Services of the broker while a test looks on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def running(*services: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run services beside the body; its end cancels them."""
    async with trio.open_nursery() as nursery:
        for service in services:
            nursery.start_soon(service)
        yield
        nursery.cancel_scope.cancel()
