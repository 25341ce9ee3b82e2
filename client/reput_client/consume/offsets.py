"""Requests about offsets: a group's progress, the bounds of a queue, offsets by time.

Each goes to the broker that the queue names: several brokers may have a queue of one topic and number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from reput_client.transport.address import Address
from reput_client.transport.client import Client
from reput_client.transport.session import Session, raise_refusal
from reput_client.transport.standbys import read
from reput_protocol.codes import Boundary, BoundaryType, RequestCode, ResponseCode
from reput_protocol.commands.base import CommandHeader
from reput_protocol.commands.offset import (
    EarliestTimeResult,
    OffsetResult,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from reput_protocol.commands.pull import QueryQueueBoundsHeader, QueueBoundsRequest, QueueBoundsTable
from reput_protocol.names import check_topic
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call


@dataclass(eq=False, repr=False)
class OffsetRequests:
    """Offset requests of one session. `timeout_s` None means the client's timeout.

    The bounds of queues and offsets by time are read from a slave while the master cannot be reached.
    """

    _session: Session

    async def committed(
        self,
        group: str,
        queue: MessageQueue,
        *,
        set_zero_if_not_found: bool = False,
        slave: Address | None = None,
        or_slave: bool = False,
    ) -> int | None:
        """Return the committed offset of `group`, or None.

        A `slave`, if given, is asked, and with `or_slave` any slave if the master cannot be reached. It may not have
        the last commits.

        With `set_zero_if_not_found` the broker answers 0, as for RocketMQ's clients, for a group without an offset if
        the queue still has all its messages and they are recent.
        """
        header = QueryConsumerOffsetHeader(group, queue.topic, queue.queue_id, None if set_zero_if_not_found else False)
        code = RequestCode.QUERY_CONSUMER_OFFSET
        what = f"committed offset of {group}"
        if or_slave:
            call = await self._read(code, header, queue, what)
        else:
            call = await self._ask(code, header, queue, what, slave=slave)
        if call.answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return _offset(call)

    async def commit(
        self,
        group: str,
        queue: MessageQueue,
        offset: int,
        *,
        increase_only: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Commit that `group` continues at `offset`. Once this returns, the commit survives a killed broker.

        With `increase_only` an offset below the committed one is ignored.

        Raises:
            ValueError: the offset is negative.
        """
        if offset < 0:
            raise ValueError(f"cannot commit offset {offset}; offsets start at 0")
        header = UpdateConsumerOffsetHeader(group, queue.topic, queue.queue_id, offset, increase_only or None)
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        raise_refusal(await self._ask(code, header, queue, f"commit of {group}", timeout_s))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message still in the queue."""
        header = QueueHeader(queue.topic, queue.queue_id)
        return _offset(await self._read(RequestCode.GET_MIN_OFFSET, header, queue, "first offset"))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        header = QueueHeader(queue.topic, queue.queue_id)
        return _offset(await self._read(RequestCode.GET_MAX_OFFSET, header, queue, "last offset"))

    async def queue_bounds(self, topics: Sequence[str], broker_name: str | None = None) -> QueueBoundsTable:
        """Return the bounds of the durable part of every readable queue of those topics that exist on a broker."""
        call = await self._session.ask_ok(
            RequestCode.QUERY_QUEUE_BOUNDS,
            QueryQueueBoundsHeader().to_ext(),
            what="bounds of queues",
            queue=None if broker_name is None else MessageQueue("", broker_name, 0),
            body=QueueBoundsRequest(list(topics)).to_json(),
        )
        return QueueBoundsTable.from_json(call.body)

    async def offset_by_time(
        self, queue: MessageQueue, when: datetime | int, boundary: Boundary = BoundaryType.LOWER
    ) -> int:
        """Return the offset of the first message stored at or after `when`.

        Args:
            when: a datetime (a naive one is local time) or milliseconds since 1970.
            boundary: of several messages in that millisecond, `LOWER` means the first, `UPPER` the last.
        """
        header = SearchOffsetHeader(queue.topic, queue.queue_id, timestamp_ms(when), BoundaryType(boundary))
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return _offset(await self._read(code, header, queue, "offset by time"))

    async def earliest_time_ms(self, queue: MessageQueue) -> int | None:
        """Return when the first message was stored, in ms since 1970, or None if the queue is empty."""
        header = QueueHeader(queue.topic, queue.queue_id)
        call = await self._read(RequestCode.GET_EARLIEST_MSG_STORETIME, header, queue, "first message")
        raise_refusal(call)
        timestamp = EarliestTimeResult.from_ext(call.answer.ext).timestamp
        return None if timestamp < 0 else timestamp

    async def _read(self, code: RequestCode, header: CommandHeader, queue: MessageQueue, what: str) -> Call:
        return await read(
            self._session,
            code,
            header.to_ext(),
            what=f"{what} in {queue.topic}/{queue.queue_id}",
            queue=queue,
            deadline=self._session.deadline(None),
        )

    async def _ask(
        self,
        code: RequestCode,
        header: CommandHeader,
        queue: MessageQueue,
        what: str,
        timeout_s: float | None = None,
        slave: Address | None = None,
    ) -> Call:
        return await self._session.ask(
            code,
            header.to_ext(),
            what=f"{what} in {queue.topic}/{queue.queue_id}",
            address=slave,
            queue=None if slave is not None else queue,
            deadline=self._session.deadline(timeout_s),
        )


def _offset(call: Call) -> int:
    raise_refusal(call)
    return OffsetResult.from_ext(call.answer.ext).offset


def timestamp_ms(when: datetime | int) -> int:
    """Return `when` in milliseconds since 1970."""
    return when if isinstance(when, int) else round(when.timestamp() * 1000)


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
        boundary: Boundary = BoundaryType.LOWER,
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
