"""Bulk reads: the bounds of many queues at once, and ranges of a queue as blocks of records.

For programs that read much and keep their own progress, such as the Spark source. There is no group and no waiting for
messages; only durable messages are returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from reput_client.consume.fetch_records import FetchedBlock, fetch_ext, fetched_block
from reput_client.consume.offsets import OffsetRequests
from reput_client.consume.read_ahead import ReadAhead
from reput_client.errors import BrokerNotFound
from reput_client.transport.client import Client
from reput_client.transport.options import ClientOptions, takes
from reput_client.transport.session import is_not_master
from reput_protocol.codes import RequestCode
from reput_protocol.commands.pull import (
    FETCH_BYTES,
    QueueBoundsTable,
)
from reput_protocol.commands.topic import ClusterInfo
from reput_protocol.errors import TopicNotFound
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.header import Value


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

    async def offset_by_time(
        self, topic: str, queue_id: int, when_ms: int, broker_name: str | None = None
    ) -> int:
        """Return the offset of the first message stored at or after a time, or the end of the queue."""
        return await self._offsets.offset_by_time(
            await self._session.queue(topic, queue_id, broker_name), when_ms
        )

    async def committed(
        self, group: str, topic: str, queue_id: int, broker_name: str | None = None
    ) -> int | None:
        """Return a group's committed offset, or None if it has none."""
        return await self._offsets.committed(group, await self._session.queue(topic, queue_id, broker_name))

    async def commit(
        self, group: str, topic: str, queue_id: int, offset: int, broker_name: str | None = None
    ) -> None:
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
                RequestCode.FETCH_RECORDS,
                ext,
                what=f"fetch from {topic}/{queue_id}",
                queue=queue,
                deadline=deadline,
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

    async def _ask_ahead(
        self, queue: MessageQueue, ext: Mapping[str, Value], max_bytes: int, deadline: float
    ) -> None:
        self._ahead.drop(queue)
        self._ahead.start(queue, ext, ext, await self._session.open_for(queue, deadline), max_bytes)
