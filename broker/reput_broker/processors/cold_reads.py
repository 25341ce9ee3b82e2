"""Reading messages that are not in memory, in worker threads: a page fault in the event loop would stop everybody."""

from __future__ import annotations

from collections.abc import Callable

import trio

from reput_broker.request import Client, Refusal, Response
from reput_broker.store.get_message import FilteredGet
from reput_broker.store.held_extents import HeldExtents
from reput_protocol.errors import ErrorCode


class ColdReads:
    """Such reads for one kind of request.

    Args:
        at_once: reads that run at the same time; the others wait.
        remedy: what a client does whose read has failed.
    """

    def __init__(self, at_once: int, remedy: str) -> None:
        self._places = trio.CapacityLimiter(at_once)
        self._remedy = remedy

    async def read(
        self, client: Client, read: Callable[[], Response], held: HeldExtents | FilteredGet
    ) -> Response:
        """Read in a worker thread, once the client has taken the answers that it has; then let go of `held`."""
        try:
            while True:
                async with self._places:
                    if not client.is_crowded:
                        return await trio.to_thread.run_sync(read)
                await client.drained()
        except Exception as error:
            return Refusal(
                ErrorCode.INTERNAL, f"reading old messages failed: {error}; {self._remedy}"
            ).response()
        finally:
            held.release()  # the client left before the read began
