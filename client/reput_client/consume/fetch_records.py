"""FETCH_RECORDS: blocks of the log, raw for bulk readers or as columns, and requests for the next messages ahead.

Bulk readers read the bounds of many queues at once, and ranges of a queue as blocks of records. They are for programs
that read much and keep their own progress, such as the Spark source. There is no group and no waiting for messages;
only durable messages are returned.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from reput_client.consume.offsets import OffsetRequests
from reput_client.consume.pull import PULL_BYTES_MAX, PullStatus
from reput_client.errors import BrokerNotFound, DamagedMessage
from reput_client.transport.channel import RequestTemplate
from reput_client.transport.client import Client
from reput_client.transport.connection import BrokerConnection
from reput_client.transport.options import ClientOptions, takes
from reput_client.transport.session import Session, is_not_master
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.pull import FETCH_BYTES, FetchRecordsHeader, FetchRecordsResult, QueueBoundsTable
from reput_protocol.commands.topic import ClusterInfo
from reput_protocol.errors import TopicNotFound, error_from_response
from reput_protocol.filter.tags import TagFilter
from reput_protocol.kernel.records import checksum_faults, queue_records, record_starts
from reput_protocol.record.message import MessageQueue
from reput_protocol.record.scan import QUEUE_OFFSET, WIDTH
from reput_protocol.wire.channel import Call, Waiter
from reput_protocol.wire.header import Value

if TYPE_CHECKING:
    from reput_client.consume.columns import MessageColumns

_ANSWERS: Final = (ResponseCode.SUCCESS.value, ResponseCode.PULL_NOT_FOUND.value, ResponseCode.PULL_OFFSET_MOVED.value)
COLUMN_BYTES: Final = 1 << 20
"""Default size of a pull of columns; larger answers exceed the processor's caches."""
NO_END: Final = (1 << 62) - 1
"""End of an unbounded range."""


class FetchedBlock(NamedTuple):
    """The result of one fetch."""

    records: memoryview
    """Records back to back, not verified."""
    next_offset: int
    """All wanted records before it are in `records`."""
    min_offset: int
    max_offset: int
    """Bounds of the queue's durable part."""
    moved: bool
    """Whether the requested messages are not in the queue."""


def fetch_ext(
    topic: str, queue_id: int, start: int, end: int, max_bytes: int, tags: str, generation: str | None = None
) -> dict[str, Value]:
    """Return the header fields of a fetch of `[start, end)`."""
    subscription = None if tags == "*" else tags
    header = FetchRecordsHeader(topic, queue_id, start, end, max_bytes, subscription, generation)
    return header.to_ext()


def fetched_block(call: Call) -> FetchedBlock:
    """Return the result of an answered fetch; raises `BrokerError` if refused."""
    header = call.answer
    if header.code not in _ANSWERS:
        raise error_from_response(header.code, header.remark, header.ext)
    result = FetchRecordsResult.from_ext(header.ext)
    moved = header.code == ResponseCode.PULL_OFFSET_MOVED
    return FetchedBlock(call.body, result.next_offset, result.min_offset, result.max_offset, moved)


class ColumnsResult(NamedTuple):
    """The result of a pull of columns."""

    status: PullStatus
    columns: MessageColumns
    """Empty unless `status` is FOUND."""
    next_begin_offset: int
    """The queue offset of the next pull, also if nothing was found."""
    min_offset: int
    max_offset: int
    """Bounds of the queue; may or may not include messages that are not durable."""


def fetched(topic: str, queue_id: int, offset: int, call: Call, tag_filter: TagFilter) -> ColumnsResult:
    """Return the columns of an answered FETCH_RECORDS.

    Raises:
        BrokerError: the broker refused.
        DamagedMessage: the first message, at its offset, cannot be read.
    """
    found = fetched_block(call)
    return columns_result(
        topic,
        queue_id,
        offset,
        b"" if found.moved else found.records,
        ColumnsResult(
            PullStatus.OFFSET_ILLEGAL if found.moved else PullStatus.NO_NEW_MESSAGE,
            no_columns(topic, queue_id),
            found.next_offset,
            found.min_offset,
            found.max_offset,
        ),
        tag_filter,
    )


def columns_result(
    topic: str, queue_id: int, offset: int, records: bytes | memoryview, empty: ColumnsResult, tag_filter: TagFilter
) -> ColumnsResult:
    """Return `empty`, completed with the received records.

    Their sizes and checksums are verified, and that they are the requested messages. Those before the first damaged one
    are returned, and the next pull begins with the damaged one.

    Raises:
        DamagedMessage: the first message is damaged; to continue after it, pull from its offset + 1.
    """
    next_offset = empty.next_begin_offset
    if not len(records):
        skipped = empty.status is PullStatus.NO_NEW_MESSAGE and next_offset > offset
        return empty._replace(status=PullStatus.NO_MATCHED_MESSAGE) if skipped else empty
    every = tag_filter.matches_all
    table, end = queue_records(records, 0, len(records), topic.encode(), queue_id, offset, every)
    faults = checksum_faults(records, table)
    if faults or end < len(records):
        good, reason = faults[0] if faults else (len(table) // WIDTH, _what_follows(records, end))
        if faults:
            next_offset = table[WIDTH * good + QUEUE_OFFSET]
        else:  # the offset of an unreadable record is known only from the record before it
            next_offset = table[QUEUE_OFFSET - WIDTH] + 1 if good else offset
        if not good:
            raise DamagedMessage(topic, queue_id, next_offset, reason)
        del table[WIDTH * good :]
    messages = _columns(topic, queue_id, records, table)
    if not every:
        messages.records = messages.records.with_tag(tag_filter.tags)
    status = PullStatus.FOUND if len(messages) else PullStatus.NO_MATCHED_MESSAGE
    return ColumnsResult(status, messages, next_offset, empty.min_offset, empty.max_offset)


def require_columns() -> None:
    """Import NumPy, which only programs that pull columns need.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    try:
        import reput_client.consume.columns  # noqa: F401
    except ModuleNotFoundError as missing:
        if missing.name != "numpy":
            raise
        raise ModuleNotFoundError(
            "columns are NumPy arrays, and NumPy is not installed: pip install numpy", name="numpy"
        ) from missing


def _what_follows(records: bytes | memoryview, end: int) -> str:
    if record_starts(records, end, len(records)):
        return "its record is damaged, or is another message"
    return "what follows is not a record"


def no_columns(topic: str, queue_id: int) -> MessageColumns:
    """Return columns without messages."""
    return _columns(topic, queue_id, b"", array("q"))


def _columns(topic: str, queue_id: int, records: bytes | memoryview, table: array[int]) -> MessageColumns:
    from reput_client.consume.columns import MessageColumns
    from reput_protocol.record.columns import RecordColumns

    return MessageColumns(topic, queue_id, RecordColumns(records, table))


AHEAD_BYTES_MAX: Final = 32 << 20
"""How much a consumer keeps of what it has requested ahead, in bytes of records."""
_UNUSED_S: Final = 10.0
"""An answer that was not taken for this long makes room for others."""
_CHECKED_AFTER_S: Final = 0.05
"""What was requested longer ago is taken only after its connection was read to the end."""


class _Ahead(NamedTuple):
    """A request ahead.

    Attributes:
        epoch: of the connection.
        asked_bytes: how large the answer of a broker with ordinary limits may be.
    """

    what: object
    connection: BrokerConnection
    epoch: int
    call: Call
    asked_at: float
    asked_bytes: int

    @property
    def held_bytes(self) -> int:
        return len(self.call.body) if self.call.done else self.asked_bytes


class ReadAhead:
    """At most one request ahead for each queue; its answer is kept until taken, replaced or dropped.

    Only an identical request takes it; any other drops it. It is not taken if its connection has ended since, or is not
    the one to the master any more: another master may have other messages at these offsets.

    Args:
        session: has the connections and waits for answers.
        code: PULL_MESSAGE or FETCH_RECORDS.
        bytes_max: of all answers. Without room there is no request, unless others were not taken for a while.

    Attributes:
        asked: the requests by queue, the oldest first.
    """

    def __init__(
        self, session: Session, code: RequestCode = RequestCode.PULL_MESSAGE, *, bytes_max: float = math.inf
    ) -> None:
        self._session = session
        self._code = code
        self._bytes_max = bytes_max
        self.asked: dict[MessageQueue, _Ahead] = {}

    def start(
        self,
        queue: MessageQueue,
        what: object,
        ext: Mapping[str, Value],
        connection: BrokerConnection | None,
        max_bytes: int,
    ) -> None:
        """Send the request `ext` for `max_bytes` without waiting; does nothing without an open connection or room.

        `what` is equal for equal requests, and may be `ext`.
        """
        self.drop(queue)
        now, size = self._session.runtime.now(), min(max_bytes, PULL_BYTES_MAX)
        if connection is not None and connection.usable() and self._make_room(size, now):
            call = connection.start_template(RequestTemplate(self._code, ext), Waiter())
            connection.flush_now()
            self.asked[queue] = _Ahead(what, connection, connection.epoch, call, now, size)

    def _make_room(self, size: int, now: float) -> bool:
        """Return whether there is room, if need be without answers that were not taken for a while.

        Those of queues that are read one after the other are not dropped: each would be, just before it is taken.
        """
        held = size + sum(ahead.held_bytes for ahead in self.asked.values())
        for queue, ahead in list(self.asked.items()):
            if held <= self._bytes_max or now - ahead.asked_at < _UNUSED_S:
                break
            held -= ahead.held_bytes
            self.drop(queue)
        return held <= self._bytes_max

    async def take(self, queue: MessageQueue, what: object, deadline: float) -> Call | None:
        """Return the answered request for `what`; None if there is none, it failed, or `deadline` passed."""
        ahead = self.asked.pop(queue, None)
        if ahead is None:
            return None
        session, call = self._session, ahead.call
        if session.runtime.now() - ahead.asked_at > _CHECKED_AFTER_S:
            session.poll(to_the_end=True)  # a connection that has ended is known to have
        is_good = False
        try:
            if ahead.what == what and self._is_of_master(ahead, queue):
                await session.pump.wait(call.waiter, deadline)
                is_good = call.done and call.error is None and self._is_of_master(ahead, queue)
        finally:
            if not call.done:
                ahead.connection.abandon(call)
        return call if is_good else None

    def _is_of_master(self, ahead: _Ahead, queue: MessageQueue) -> bool:
        connection = ahead.connection
        return (
            connection.is_open
            and connection.epoch == ahead.epoch
            and self._session.known_connection(queue) is connection
        )

    def drop(self, queue: MessageQueue) -> None:
        """Abandon the request of a queue."""
        ahead = self.asked.pop(queue, None)
        if ahead is not None and not ahead.call.done:
            ahead.connection.abandon(ahead.call)


class BulkReader(Client):
    """Reads queues of a cluster's brokers in bulk. An async context manager.

    Methods take the name of the broker that has the queue; it may be left out if there is only one.

    Args:
        address: `host:port` of a broker or a name server, or several of one cluster separated by commas.
        timeout_s: seconds a request may take, including reconnecting.
    """

    @takes(ClientOptions)
    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options)
        self._offsets = OffsetRequests(self._session)
        self._ahead = self._new_ahead()

    def _after_fork(self) -> None:
        """In a forked child: abandon the parent's connections."""
        super()._after_fork()
        self._ahead = self._new_ahead()

    def _new_ahead(self) -> ReadAhead:
        return ReadAhead(self._session, RequestCode.FETCH_RECORDS)

    # -- topics and offsets ----------------------------------------------------------------------------------------

    async def cluster(self) -> ClusterInfo:
        """Return the brokers of the cluster, also those without a master; requests to them wait for one.

        Raises:
            BrokerNotFound: there is none.
        """
        found = await self._session.cluster(self._session.deadline(None))
        if not found.broker_addr_table:
            raise BrokerNotFound("", "")
        return found

    async def brokers(self, topic: str | None = None) -> list[str]:
        """Return the names of the brokers, sorted: those on which `topic`, if it exists, can be written, or all.

        Raises:
            BrokerNotFound: there is none.
        """
        deadline = self._session.deadline(None)
        if topic is not None:
            with suppress(TopicNotFound):
                route = await self._session.fetch_route(topic, deadline)
                return sorted({queue.broker_name for queue in route.writable})
        return await self._session.broker_names(deadline)

    async def topics(self) -> list[str]:
        """Return all topics, including system topics."""
        return await self._session.topic_names(self._session.deadline(None))

    async def queue_bounds(self, topics: Sequence[str], broker_name: str | None = None) -> QueueBoundsTable:
        """Return the bounds of every readable queue of those topics that exist on a broker."""
        return await self._offsets.queue_bounds(topics, broker_name)

    async def offset_by_time(self, topic: str, queue_id: int, when_ms: int, broker_name: str | None = None) -> int:
        """Return the offset of the first message stored at or after a time, or the end of the queue."""
        return await self._offsets.offset_by_time(await self._session.queue(topic, queue_id, broker_name), when_ms)

    async def committed(self, group: str, topic: str, queue_id: int, broker_name: str | None = None) -> int | None:
        """Return a group's committed offset, or None if it has none."""
        return await self._offsets.committed(group, await self._session.queue(topic, queue_id, broker_name))

    async def commit(self, group: str, topic: str, queue_id: int, offset: int, broker_name: str | None = None) -> None:
        """Commit that a group continues at `offset`."""
        await self._offsets.commit(group, await self._session.queue(topic, queue_id, broker_name), offset)

    # -- records ---------------------------------------------------------------------------------------------------

    async def fetch(
        self,
        topic: str,
        queue_id: int,
        start: int,
        end: int,
        *,
        max_bytes: int = FETCH_BYTES,
        tags: str = "*",
        generation: str | None = None,
        broker_name: str | None = None,
    ) -> FetchedBlock:
        """Return the first records of `[start, end)` of a queue: as many as fit into `max_bytes`, at least one.

        The records after them are requested at once; a reader that continues at `next_offset` with the same arguments
        gets them.

        Args:
            tags: `*`, or tags joined by `||`; may return records whose tag only has the same hash.
            generation: of the topic, as `queue_bounds` returned it; a topic of another generation is not found.

        Raises:
            TopicNotFound, PermissionDenied, BrokerError: refused.
            RequestTimeout, ConnectFailed: no answer in time.
        """
        deadline = self._session.deadline(None)
        queue = await self._session.queue(topic, queue_id, broker_name, deadline)
        ext = fetch_ext(topic, queue_id, start, end, max_bytes, tags, generation)
        call = await self._ahead.take(queue, ext, deadline)
        if call is None or is_not_master(call):
            call = await self._session.ask(
                RequestCode.FETCH_RECORDS, ext, what=f"fetch from {topic}/{queue_id}", queue=queue, deadline=deadline
            )
        found = fetched_block(call)
        if not found.moved and start < found.next_offset < min(end, found.max_offset):
            await self._ask_ahead(
                queue,
                fetch_ext(topic, queue_id, found.next_offset, end, max_bytes, tags, generation),
                max_bytes,
                deadline,
            )
        return found

    async def prefetch(
        self,
        topic: str,
        queue_id: int,
        start: int,
        end: int,
        *,
        max_bytes: int = FETCH_BYTES,
        tags: str = "*",
        generation: str | None = None,
        broker_name: str | None = None,
    ) -> None:
        """Request what a `fetch` with the same arguments will return, without waiting; one request per queue.

        Raises:
            ConnectFailed: no connection can be made in time.
        """
        deadline = self._session.deadline(None)
        queue = await self._session.queue(topic, queue_id, broker_name, deadline)
        ext = fetch_ext(topic, queue_id, start, end, max_bytes, tags, generation)
        await self._ask_ahead(queue, ext, max_bytes, deadline)

    async def _ask_ahead(self, queue: MessageQueue, ext: Mapping[str, Value], max_bytes: int, deadline: float) -> None:
        self._ahead.drop(queue)
        self._ahead.start(queue, ext, ext, await self._session.open_for(queue, deadline), max_bytes)
