"""Several messages of one consumer in the hands of handlers at the same time."""

from __future__ import annotations

import math

import anyio

from reput_client.consume.group.handling import Handler, Handling
from reput_client.consume.group.taking import Taking


async def handle_concurrently(taking: Taking, handling: Handling, handler: Handler, concurrency: int) -> None:
    """Call `handler` with each message, `concurrency` at a time, until no more is handed out or a handler fails.

    Each of so many tasks takes a message and handles it, so that a slow handler holds up nobody while a task is free.
    """
    gate = anyio.Lock(fast_acquire=True)

    hands = handling.hands
    hands.begin(concurrency)
    slots = hands.slots

    async def work(number: int) -> None:
        while True:
            taken = taking.take_at_hand()
            if taken is None:
                slots[number] = None
                async with gate:
                    taken = await taking.take(math.inf)
                if taken is None:
                    return
            slots[number] = taken[1]
            await handling.handle(taken, handler)

    try:
        async with anyio.create_task_group() as tasks:
            for number in range(concurrency):
                tasks.start_soon(work, number)
    finally:
        hands.end()
