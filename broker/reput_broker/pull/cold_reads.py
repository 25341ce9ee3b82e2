"""Reading messages outside the page cache in worker threads: a page fault in the event loop would stall all clients."""

from __future__ import annotations

from collections.abc import Callable

import trio

from reput_broker.request import Client, Refusal, Response
from reput_broker.store.held_extents import HeldExtents
from reput_broker.store.message_store import MessageStore
from reput_broker.store.results import GetMessageResult, TransferLimits
from reput_broker.store.select_entries import FilteredGet
from reput_protocol.errors import ErrorCode
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.filter.tags import MessageFilter


def get_unless_cold(
    store: MessageStore,
    place: tuple[str, int, int],
    count: int,
    size: int,
    message_filter: MessageFilter | None,
    limits: TransferLimits,
) -> GetMessageResult | FilteredGet:
    """Read messages, or return a get for a worker thread, because it filters cold messages.

    Args:
        place: topic, queue and the queue offset to begin at.
    """
    if not isinstance(message_filter, SqlFilter):
        return store.get_message(*place, count, size, message_filter, limits=limits)
    found = store.get_filtered(*place, count, size, message_filter, limits=limits)
    if isinstance(found, GetMessageResult) or found.cold:
        return found
    with found:
        result = found.run()
    store.count_get(result)
    return result


class ColdReads:
    """Cold reads for one kind of request.

    Args:
        at_once: reads that run concurrently.
        remedy: what a client does after a failed read.
    """

    def __init__(self, at_once: int, remedy: str) -> None:
        self._places = trio.CapacityLimiter(at_once)
        self._remedy = remedy

    async def read(
        self, client: Client, read: Callable[[], Response], held: HeldExtents | FilteredGet
    ) -> Response:
        """Read in a worker thread, once the client has read its earlier answers; then release `held`."""
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
            held.release()  # in case the read did not begin
