"""Where a group begins in a queue of which it has no offset (RocketMQ: ConsumeFromWhere)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeAlias

from reput_client.consume.offsets import OffsetRequests
from reput_protocol.group_terms import ConsumeFromWhere
from reput_protocol.message import MessageQueue

Start: TypeAlias = "str | datetime | int | Callable[[MessageQueue], int]"

_WHERE = {
    "earliest": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    "latest": ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
}


def checked_start(start: Start) -> Start:
    """Return `start` if it is one. Raises ValueError."""
    if isinstance(start, str) and start not in _WHERE:
        raise ValueError(f"start is 'earliest', 'latest', a datetime or a queue offset, not {start!r}")
    if isinstance(start, int) and start < 0:
        raise ValueError(f"start {start} is below 0, the first offset of every queue")
    return start


def consume_from_where(start: Start) -> ConsumeFromWhere:
    """Return what a heartbeat says of `start`; RocketMQ has no word for an offset."""
    if isinstance(start, datetime):
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    return _WHERE.get(start if isinstance(start, str) else "", ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)


class StartingPoints:
    """Finds out where a group begins in a queue."""

    def __init__(self, offsets: OffsetRequests, start: Start, retry: str | None) -> None:
        self.late_topics: set[str] = set()
        """Topics that came into being after this member: it has missed nothing of them."""
        self._offsets = offsets
        self._start = start
        self._retry = retry

    async def first(self, queue: MessageQueue) -> int:
        """Return where a group begins that has no offset. What comes back is never skipped."""
        start = self._start
        if queue.topic == self._retry or start == "earliest":
            return await self._offsets.min_offset(queue)
        if callable(start):
            return start(queue)
        if isinstance(start, int):
            return start
        if isinstance(start, datetime):
            return await self._offsets.offset_by_time(queue, start)
        if queue.topic in self.late_topics:
            return await self._offsets.min_offset(queue)
        return await self._offsets.max_offset(queue)
