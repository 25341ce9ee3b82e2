"""When messages were stored, looked up without stopping the event loop.

A record near the end of the log is in memory, and reading its head costs a microsecond. One that is not could bring a
page fault, for which everybody would wait; such heads are read in a worker thread.
"""

from __future__ import annotations

import trio

from reput_broker.store.errors import FileMissing
from reput_broker.store.message_store import MessageStore
from reput_broker.store.results import Extent, GetStatus
from reput_protocol.record.layout import BORN_HOST_AT, BORN_HOST_IPV6, I32, I64, SYS_FLAG_AT

_HEAD_BYTES = BORN_HOST_AT + 20 + I64.size
_LOOKS_AT_ONCE = 2


class StoreTimes:
    """Looks up store times of single messages."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._cold_looks = trio.CapacityLimiter(_LOOKS_AT_ONCE)

    async def at(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the store time of one message in milliseconds, -1 if there is no such message."""
        store = self._store
        if store.is_in_memory(topic, queue_id, offset):
            return store.store_timestamp(topic, queue_id, offset)
        found = store.get_message(topic, queue_id, offset, 1, 1)
        if found.status is not GetStatus.FOUND:
            return -1
        physical_offset, size = found.extents[0]
        try:
            held = store.hold_extents([Extent(physical_offset, min(size, _HEAD_BYTES))])
        except FileMissing:
            return -1

        def read() -> bytes:
            with held:
                return held.read()

        try:
            head = await trio.to_thread.run_sync(read, limiter=self._cold_looks)
        finally:
            held.release()
        (sys_flag,) = I32.unpack_from(head, SYS_FLAG_AT)
        (timestamp_ms,) = I64.unpack_from(head, BORN_HOST_AT + (20 if sys_flag & BORN_HOST_IPV6 else 8))
        return int(timestamp_ms)
