"""Requests about offsets: a group's progress, the bounds of a queue, a queue by time."""

from __future__ import annotations

from datetime import datetime

from reput_client.session import Session, raise_refusal
from reput_protocol.codes import BoundaryType, RequestCode, ResponseCode
from reput_protocol.commands_offset import (
    OffsetResult,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from reput_protocol.header import HeaderType

_MSGPACK = HeaderType.MSGPACK


class OffsetRequests:
    """Asks for offsets on behalf of one session. `timeout_s` None is the client's own timeout."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def committed(
        self, group: str, topic: str, queue_id: int, *, timeout_s: float | None = None
    ) -> int | None:
        """Return the offset that `group` has committed, or None."""
        deadline = self._session.deadline(timeout_s)
        _, address = await self._session.queue(topic, queue_id, deadline)
        header = QueryConsumerOffsetHeader(group, topic, queue_id, set_zero_if_not_found=False)
        call = await self._session.ask(
            RequestCode.QUERY_CONSUMER_OFFSET,
            header.to_ext(_MSGPACK),
            what=f"committed offset of {group} in {topic}/{queue_id}",
            address=address,
            deadline=deadline,
        )
        if call.answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        raise_refusal(call)
        return OffsetResult.from_ext(call.answer.ext).offset

    async def commit(
        self,
        group: str,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        increase_only: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Commit: `group` goes on at `queue_offset`. Once this returns, the commit survives a killed broker.

        With `increase_only` an offset below the committed one changes nothing.

        Raises:
            ValueError: a negative offset.
        """
        if queue_offset < 0:
            raise ValueError(f"cannot commit offset {queue_offset}; offsets start at 0")
        deadline = self._session.deadline(timeout_s)
        _, address = await self._session.queue(topic, queue_id, deadline)
        header = UpdateConsumerOffsetHeader(group, topic, queue_id, queue_offset, increase_only or None)
        await self._session.ask_ok(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            header.to_ext(_MSGPACK),
            what=f"commit of {group} in {topic}/{queue_id}",
            address=address,
            deadline=deadline,
        )

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the first message that is still there."""
        return await self._bound(RequestCode.GET_MIN_OFFSET, topic, queue_id)

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset that the next message will get."""
        return await self._bound(RequestCode.GET_MAX_OFFSET, topic, queue_id)

    async def _bound(self, code: RequestCode, topic: str, queue_id: int) -> int:
        deadline = self._session.deadline(None)
        _, address = await self._session.queue(topic, queue_id, deadline)
        call = await self._session.ask_ok(
            code,
            QueueHeader(topic, queue_id).to_ext(_MSGPACK),
            what=f"bounds of {topic}/{queue_id}",
            address=address,
            deadline=deadline,
        )
        return OffsetResult.from_ext(call.answer.ext).offset

    async def offset_by_time(
        self, topic: str, queue_id: int, when: datetime | int, boundary: str = BoundaryType.LOWER
    ) -> int:
        """Return the offset of the first message stored at or after `when`.

        Args:
            when: a datetime (a naive one is local time) or milliseconds since 1970.
            boundary: which of several messages of that very millisecond: `LOWER` the first, `UPPER` the last.
        """
        deadline = self._session.deadline(None)
        _, address = await self._session.queue(topic, queue_id, deadline)
        header = SearchOffsetHeader(topic, queue_id, timestamp_ms(when), BoundaryType(boundary))
        call = await self._session.ask_ok(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            header.to_ext(_MSGPACK),
            what=f"offset by time in {topic}/{queue_id}",
            address=address,
            deadline=deadline,
        )
        return OffsetResult.from_ext(call.answer.ext).offset


def timestamp_ms(when: datetime | int) -> int:
    """Return `when` in milliseconds since 1970."""
    return when if isinstance(when, int) else round(when.timestamp() * 1000)
