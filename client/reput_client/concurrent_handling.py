"""Several messages of one consumer in the hands of handlers at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from reput_client.received import ReceivedMessage

if TYPE_CHECKING:
    from reput_client.consumer import Consumer


async def handle_concurrently(
    consumer: Consumer, handler: Callable[[ReceivedMessage], Awaitable[object]], concurrency: int
) -> None:
    """Call `handler` with each message, `concurrency` at a time, until the consumer is closed or a handler fails.

    One task takes messages and starts a task for each, so a slow handler holds up nobody while a slot is free.
    """
    slots = anyio.Semaphore(concurrency)

    async def handle(message: ReceivedMessage) -> None:
        try:
            await consumer.handle(message, handler)
        finally:
            slots.release()

    async with anyio.create_task_group() as tasks:
        while True:
            await slots.acquire()
            message = await consumer.take()
            if message is None:
                return
            tasks.start_soon(handle, message)
