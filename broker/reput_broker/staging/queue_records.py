"""Read the records of a queue from an offset on, at a start."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import trio

from reput_broker.store.base.results import GetStatus, TransferLimits
from reput_broker.store.message_store import MessageStore
from reput_protocol.record.record import RecordView, record_views
from reput_protocol.store.unit import UNIT_BYTES

_MESSAGES: Final = 4096
_BYTES: Final = 1 << 20
_LIMITS: Final = TransferLimits(_BYTES, _MESSAGES, _BYTES, _MESSAGES, _MESSAGES * UNIT_BYTES)


async def records_from(
    store: MessageStore, topic: str, queue_id: int, offset: int
) -> AsyncGenerator[RecordView]:
    """Yield all dispatched records of a queue from `offset` on.

    Raises:
        StoreError: they cannot be read.
    """
    while True:
        result = store.get_message(topic, queue_id, offset, _MESSAGES, _BYTES, None, limits=_LIMITS)
        data = b""
        if result.status is GetStatus.FOUND:
            with store.hold_extents(result.extents) as held:
                data = await trio.to_thread.run_sync(held.read)
        if result.next_begin_offset <= offset:
            return
        for record in record_views(data):
            yield record
        offset = result.next_begin_offset
