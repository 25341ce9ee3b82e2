"""The blocking reader in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from reput_client import bulk as asynchronous
from reput_client.backoff import Backoff
from reput_client.blocking.client import BlockingClient
from reput_client.blocking.runtime import BlockingRuntime
from reput_client.fetching import FetchedBlock
from reput_client.session import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S
from reput_protocol.bodies_bounds import QueueBoundsTable
from reput_protocol.bodies_route import ClusterInfo
from reput_protocol.commands_fetch import FETCH_BYTES


class BulkReader(BlockingClient):
    """Reads queues in bulk; a context manager. Arguments and errors are those of `reput_client.bulk.BulkReader`."""

    def __init__(
        self,
        address: str | Iterable[str],
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        new_backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        runtime = BlockingRuntime()
        self._reader = asynchronous.BulkReader(
            address,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            new_backoff=new_backoff,
            runtime=runtime,
        )
        super().__init__(self._reader, runtime)

    def cluster(self) -> ClusterInfo:
        """Return the brokers of the cluster."""
        return self._runtime.run(self._reader.cluster())

    def topics(self) -> list[str]:
        """Return the names of all topics, system ones included."""
        return self._runtime.run(self._reader.topics())

    def queue_bounds(self, topics: Sequence[str]) -> QueueBoundsTable:
        """Return the bounds of every readable queue of those of the topics that the broker has."""
        return self._runtime.run(self._reader.queue_bounds(topics))

    def offset_by_time(self, topic: str, queue_id: int, when_ms: int) -> int:
        """Return the offset of the first message stored at or after a time; the end of the queue without one."""
        return self._runtime.run(self._reader.offset_by_time(topic, queue_id, when_ms))

    def committed(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return a group's committed offset, or None if it has none."""
        return self._runtime.run(self._reader.committed(group, topic, queue_id))

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit that a group goes on at `offset`."""
        self._runtime.run(self._reader.commit(group, topic, queue_id, offset))

    def fetch(
        self,
        topic: str,
        queue_id: int,
        start: int,
        end: int,
        *,
        max_bytes: int = FETCH_BYTES,
        tags: str = "*",
        generation: str | None = None,
    ) -> FetchedBlock:
        """Return the first records of `[start, end)` of a queue; see `reput_client.bulk.BulkReader.fetch`."""
        return self._runtime.run(
            self._reader.fetch(
                topic, queue_id, start, end, max_bytes=max_bytes, tags=tags, generation=generation
            )
        )

    def prefetch(
        self,
        topic: str,
        queue_id: int,
        start: int,
        end: int,
        *,
        max_bytes: int = FETCH_BYTES,
        tags: str = "*",
        generation: str | None = None,
    ) -> None:
        """Ask for what a `fetch` with the same arguments will want, without waiting."""
        self._runtime.run(
            self._reader.prefetch(
                topic, queue_id, start, end, max_bytes=max_bytes, tags=tags, generation=generation
            )
        )
