"""The blocking writer in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from reput_client import batch_writer as asynchronous
from reput_client.backoff import Backoff
from reput_client.batch_writer import WINDOW_BYTES, WRITE_TIMEOUT_S, StagingScope
from reput_client.blocking.client import BlockingClient
from reput_client.blocking.runtime import BlockingRuntime
from reput_client.session import CONNECT_TIMEOUT_S
from reput_protocol.bodies_stage import StagedPart
from reput_protocol.buffers import Buffer
from reput_protocol.codes import AckLevel
from reput_protocol.commands_stage import CommitStagedResult, QueryStagedResult


class BatchWriter(BlockingClient):
    """Writes blocks in bulk; a context manager. Arguments and errors are those of `reput_client.batch_writer`."""

    def __init__(
        self,
        address: str | Iterable[str],
        *,
        timeout_s: float = WRITE_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        window_bytes: int = WINDOW_BYTES,
        new_backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        runtime = BlockingRuntime()
        self._writer = asynchronous.BatchWriter(
            address,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            window_bytes=window_bytes,
            new_backoff=new_backoff,
            runtime=runtime,
        )
        super().__init__(self._writer, runtime)

    def write_queues(self, topic: str) -> list[int] | None:
        """Return the queues of a topic that take messages; None for one that is made at the first message."""
        return self._runtime.run(self._writer.write_queues(topic))

    def begin(self, scope: StagingScope) -> None:
        """Stage for `scope` from now on."""
        self._runtime.call(lambda: self._writer.begin(scope))

    def stage(self, topic: str, queue_id: int, count: int, block: Buffer) -> None:
        """Stage a block of records; see `reput_client.batch_writer.BatchWriter.stage`."""
        self._runtime.run(self._writer.stage(topic, queue_id, count, block))

    def end(self) -> StagedPart:
        """Wait until all that was staged is on the broker's disk, and return what to commit it by."""
        return self._runtime.run(self._writer.end())

    def commit(
        self, query_id: str, batch_id: int, parts: Sequence[StagedPart], timeout_s: float | None = None
    ) -> CommitStagedResult:
        """Publish stagings as one batch; see `reput_client.batch_writer.BatchWriter.commit`."""
        return self._runtime.run(self._writer.commit(query_id, batch_id, parts, timeout_s))

    def abort(self, query_id: str, batch_id: int) -> QueryStagedResult:
        """Drop what is staged for a batch, and return what is left of its query."""
        return self._runtime.run(self._writer.abort(query_id, batch_id))

    def staged(self, query_id: str | None = None) -> QueryStagedResult:
        """Return what the broker knows of a query, or how much is staged in all."""
        return self._runtime.run(self._writer.staged(query_id))

    def put(
        self, topic: str, queue_id: int, count: int, block: Buffer, ack: AckLevel = AckLevel.FLUSHED
    ) -> None:
        """Put a block of records at least once; see `reput_client.batch_writer.BatchWriter.put`."""
        self._runtime.run(self._writer.put(topic, queue_id, count, block, ack))

    def drain(self) -> None:
        """Wait until everything that was sent is answered."""
        self._runtime.run(self._writer.drain())
