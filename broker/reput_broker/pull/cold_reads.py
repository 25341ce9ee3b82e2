"""Reading messages outside the page cache in worker threads: a page fault in the event loop would stall all clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from reput_broker.remoting.request import Client, Refusal
from reput_broker.store.message_reader import FilteredGet, HeldExtents
from reput_protocol.errors import ErrorCode

T = TypeVar("T")


class ColdReads:
    """Cold reads for one kind of request.

    Args:
        at_once: reads that run concurrently.
        remedy: what a client does after a failed read.
    """

    def __init__(self, at_once: int, remedy: str) -> None:
        self._places = trio.CapacityLimiter(at_once)
        self._remedy = remedy

    async def read(self, client: Client, held: HeldExtents | FilteredGet, read: Callable[[], T]) -> T:
        """Call `read` in a worker thread, once the client has read its earlier answers; then release `held`.

        Args:
            read: a method of `held`.

        Raises:
            Refusal: the read failed.
        """
        try:
            while True:
                async with self._places:
                    if not client.is_crowded:
                        return await trio.to_thread.run_sync(read)
                await client.drained()
        except Exception as error:
            raise Refusal(
                ErrorCode.INTERNAL, f"reading old messages failed: {error}; {self._remedy}"
            ) from error
        finally:
            held.release()
