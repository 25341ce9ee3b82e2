"""Listeners for streaming queries, in the driver: the progress of a consumer group, and how far a query is behind.

With the option `groupId` the source itself commits each batch, but only when the next trigger fires. A listener is
called right after every batch.
"""

from __future__ import annotations

import json
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from reput_client.arrow.queues import QueueKey
from reput_client.blocking.bulk import BulkReader
from reput_client.security import TLS
from reput_pipeline.source.stream_offsets import OffsetsUnreadable, decode_offsets
from reput_pipeline.spark.errors import note
from reput_protocol.errors import ReputError
from reput_protocol.printable import counted
from reput_protocol.record.record import record_views


@dataclass(frozen=True)
class Batch:
    """A batch of a query, and what it read from one of its sources."""

    query: str
    """The query's name, or its id."""
    batch_id: int
    ends: dict[QueueKey, int]
    """The next offset of each queue of the source."""
    messages: int
    """The number of messages read from the source."""
    seconds: float
    """The duration of the trigger."""
    observed: Mapping[str, Any]
    """The observations of the program (`DataFrame.observe`) by name."""
    is_first: bool
    """Whether this is the first of the query's sources over this format."""


class BatchListener(StreamingQueryListener):
    """Is called with each batch of a query.

    With access control the user is the environment's, as for the source without the option `user`.

    Args:
        name_server: address of the broker.
        query: name of the query; None: every query over this source.
        tls: how to encrypt; None: not at all.
    """

    def __init__(self, name_server: str, query: str | None, tls: TLS | None) -> None:
        self._name_server = name_server
        self._tls = tls
        self._query = query

    def reader(self, timeout_s: float = 60.0) -> BulkReader:
        """Connect to the broker; a context manager."""
        return BulkReader(self._name_server, timeout_s=timeout_s, tls=self._tls)

    @abstractmethod
    def ended(self, batch: Batch, /) -> None:
        """Handle a batch; called for each source of the format `reput`. An error of the client is logged."""

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 (Spark's name)
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Handle the batch."""
        progress = event.progress
        if self._query is not None and progress.name != self._query:
            return
        query = progress.name or str(progress.id)
        seconds = progress.durationMs.get("triggerExecution", 0) / 1000
        is_first = True
        for source in progress.sources:
            try:
                ends = decode_offsets(json.loads(source.endOffset or "null") or {}).queues
            except (ValueError, AttributeError, OffsetsUnreadable):
                continue
            batch = Batch(
                query, progress.batchId, ends, source.numInputRows, seconds, progress.observedMetrics, is_first
            )
            is_first = False
            try:
                self.ended(batch)
            except ReputError as error:  # of one of several clusters, perhaps
                note(f"{type(self).__name__} of {self._name_server}: {error}")

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Do nothing: the last batch has been handled."""


class GroupProgress(BatchListener):
    """Commits offsets after each batch: `spark.streams.addListener(GroupProgress(...))`.

    A failure is logged; the next batch commits again.

    Args:
        name_server: address of the broker.
        group: the consumer group.
        query: name of the query; None: every query over this source.
        tls: how to encrypt; None: not at all.
    """

    def __init__(self, name_server: str, group: str, query: str | None = None, tls: TLS | None = None) -> None:
        super().__init__(name_server, query, tls)
        self._group = group

    def ended(self, batch: Batch) -> None:
        """Commit the ends."""
        with self.reader() as reader:
            for queue, offset in batch.ends.items():
                reader.commit(self._group, queue.topic, queue.queue_id, offset, queue.broker)


@dataclass(frozen=True)
class Lag:
    """How far a query is behind the ends of a topic's queues, as `reput pipeline lag` has it for a group."""

    topic: str
    queues: int
    messages: int
    """Unread messages of all queues."""
    seconds: float
    """Age of the oldest unread message; 0 without one."""


def lags(reader: BulkReader, ends: dict[QueueKey, int], give_up_at: float = math.inf) -> list[Lag]:
    """Ask the brokers how far they are ahead of offsets; by topic.

    Args:
        reader: connected to the cluster.
        ends: the next offset of each queue.
        give_up_at: when to stop asking, on the clock of `time.monotonic`.

    Raises:
        ReputError: a broker cannot be reached.
        TimeoutError: it is too late.
    """
    found: dict[str, Lag] = {}
    for broker in sorted({queue.broker for queue in ends}):
        topics = sorted({queue.topic for queue in ends if queue.broker == broker})
        for topic, queues in reader.queue_bounds(topics, broker).topics.items():
            for queue_id, low, high in queues:
                if time.monotonic() > give_up_at:
                    raise TimeoutError("the brokers respond too slowly to measure the lag")
                first = max(low, ends.get(QueueKey(topic, broker, queue_id), low))
                age_s = _age_s(reader, topic, queue_id, first, broker) if first < high else 0.0
                lag = found.get(topic, Lag(topic, 0, 0, 0.0))
                messages = lag.messages + max(0, high - first)
                found[topic] = Lag(topic, lag.queues + 1, messages, max(lag.seconds, age_s))
    return list(found.values())


def _age_s(reader: BulkReader, topic: str, queue_id: int, offset: int, broker: str) -> float:
    """Return the age of a message; 0 if it expires meanwhile."""
    block = reader.fetch(topic, queue_id, offset, offset + 1, max_bytes=1, broker_name=broker)
    for view in record_views(block.records):
        return max(0.0, time.time() - view.store_timestamp_ms / 1000)
    return 0.0


def _write(query: str, batch_id: int, lag: Lag) -> None:
    behind = f"{counted(lag.messages, 'message')} and {lag.seconds:.1f} s"
    note(f"query {query}, batch {batch_id}: {behind} behind in {counted(lag.queues, 'queue')} of {lag.topic}")


class QueryLag(BatchListener):
    """Measures how far a query is behind after each batch: `spark.streams.addListener(QueryLag(...))`.

    A failure to ask the broker is logged.

    Args:
        name_server: address of the broker.
        on_lag: called with the query's name, or its id, the batch and the lag, for each topic; writes a line to stderr
            by default.
        query: name of the query; None: every query over this source.
        tls: how to encrypt; None: not at all.
    """

    def __init__(
        self,
        name_server: str,
        on_lag: Callable[[str, int, Lag], None] = _write,
        query: str | None = None,
        tls: TLS | None = None,
    ) -> None:
        super().__init__(name_server, query, tls)
        self._on_lag = on_lag

    def ended(self, batch: Batch) -> None:
        """Measure."""
        with self.reader() as reader:
            for lag in lags(reader, batch.ends):
                self._on_lag(batch.query, batch.batch_id, lag)
