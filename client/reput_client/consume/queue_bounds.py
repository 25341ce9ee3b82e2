"""What pull consumers and `Admin` ask about one queue: its bounds, and offsets by time."""

from __future__ import annotations

from datetime import datetime
from functools import cached_property

from reput_client.consume.offsets import OffsetRequests
from reput_client.transport.client import Client
from reput_protocol.codes import BoundaryType
from reput_protocol.names import check_topic
from reput_protocol.record.message import MessageQueue


class QueueBounds(Client):
    """The methods for the bounds of a queue; `broker_name` is required if several brokers have one of that number."""

    @cached_property
    def _offsets(self) -> OffsetRequests:
        return OffsetRequests(self._session)

    async def min_offset(self, topic: str, queue_id: int, *, broker_name: str | None = None) -> int:
        """Return the offset of the first message still in the queue."""
        return await self._offsets.min_offset(await self._queue(topic, queue_id, broker_name))

    async def max_offset(self, topic: str, queue_id: int, *, broker_name: str | None = None) -> int:
        """Return the offset that the queue's next message will get."""
        return await self._offsets.max_offset(await self._queue(topic, queue_id, broker_name))

    async def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        when: datetime | int,
        boundary: str = BoundaryType.LOWER,
        *,
        broker_name: str | None = None,
    ) -> int:
        """Return the offset of the first message stored at or after `when` (datetime, or ms since 1970).

        Returns the end of the queue if all messages are older, its start if all are newer. With `boundary="UPPER"` it
        is the last of several messages of that millisecond.
        """
        queue = await self._queue(topic, queue_id, broker_name)
        return await self._offsets.offset_by_time(queue, when, boundary)

    async def _queue(self, topic: str, queue_id: int, broker_name: str | None) -> MessageQueue:
        return await self._session.queue(check_topic(topic), queue_id, broker_name)
