"""Listeners for streaming queries, in the driver: the progress of a consumer group, and how far a query is behind.

With the option `groupId` the source itself commits each batch, but only when the next trigger fires. A listener is
called right after every batch.
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from reput_client.arrow.queues import QueueKey
from reput_client.blocking.bulk import BulkReader
from reput_client.tls import TLS
from reput_pipeline.source.stream_offsets import OffsetsUnreadable, decode_offsets
from reput_pipeline.spark.notes import note
from reput_protocol.errors import ReputError
from reput_protocol.record.view import record_views


class _BatchListener(StreamingQueryListener):
    """Is called with the ends of each batch of a query.

    Args:
        name_server: address of the broker.
        query: name of the query; None: every query over this source.
        tls: how to encrypt; None: not at all.
    """

    def __init__(self, name_server: str, query: str | None, tls: TLS | None) -> None:
        self._name_server = name_server
        self._tls = tls
        self._query = query

    @abstractmethod
    def ended(self, reader: BulkReader, query: str, batch_id: int, ends: dict[QueueKey, int], /) -> None:
        """Handle a batch."""

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 (Spark's name)
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Handle the batch."""
        progress = event.progress
        if self._query is not None and progress.name != self._query:
            return
        for source in progress.sources:
            self.batch(source.endOffset, progress.name or str(progress.id), progress.batchId)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Do nothing: the last batch has been handled."""

    def batch(self, end_offset: str | None, query: str = "", batch_id: int = 0) -> None:
        """Handle a batch by its end as JSON of a checkpoint or progress event; other sources' are ignored."""
        try:
            ends = decode_offsets(json.loads(end_offset or "null") or {}).queues
        except (ValueError, AttributeError, OffsetsUnreadable):
            return
        try:
            with BulkReader(self._name_server, tls=self._tls) as reader:
                self.ended(reader, query, batch_id, ends)
        except ReputError as error:
            note(f"{type(self).__name__} of {self._name_server}: {error}")


class GroupProgress(_BatchListener):
    """Commits offsets after each batch: `spark.streams.addListener(GroupProgress(...))`.

    A failure is logged; the next batch commits again.

    Args:
        name_server: address of the broker.
        group: the consumer group.
        query: name of the query; None: every query over this source.
        tls: how to encrypt; None: not at all.
    """

    def __init__(
        self, name_server: str, group: str, query: str | None = None, tls: TLS | None = None
    ) -> None:
        super().__init__(name_server, query, tls)
        self._group = group

    def ended(self, reader: BulkReader, _query: str, _batch_id: int, ends: dict[QueueKey, int]) -> None:
        """Commit the ends."""
        for queue, offset in ends.items():
            reader.commit(self._group, queue.topic, queue.queue_id, offset, queue.broker)


@dataclass(frozen=True)
class Lag:
    """How far a query was behind the ends of its queues after a batch."""

    query: str
    """The query's name, or its id."""
    batch_id: int
    queues: int
    messages_average: float
    """Unread messages of a queue."""
    messages_most: int
    seconds_average: float
    """Age of a queue's oldest unread message; 0 without one."""
    seconds_most: float

    def __str__(self) -> str:
        return (
            f"query {self.query}, batch {self.batch_id}: behind in {self.queues} queues by "
            f"{self.messages_average:.1f} messages on average and {self.messages_most} at most, "
            f"{self.seconds_average:.1f} s on average and {self.seconds_most:.1f} s at most"
        )


def _write(lag: Lag) -> None:
    note(str(lag))


class QueryLag(_BatchListener):
    """Measures how far a query is behind after each batch: `spark.streams.addListener(QueryLag(...))`.

    A failure to ask the broker is logged.

    Args:
        name_server: address of the broker.
        on_lag: called with each measurement; writes a line to stderr by default.
        query: name of the query; None: every query over this source.
        tls: how to encrypt; None: not at all.
    """

    def __init__(
        self,
        name_server: str,
        on_lag: Callable[[Lag], None] = _write,
        query: str | None = None,
        tls: TLS | None = None,
    ) -> None:
        super().__init__(name_server, query, tls)
        self._on_lag = on_lag

    def ended(self, reader: BulkReader, query: str, batch_id: int, ends: dict[QueueKey, int]) -> None:
        """Measure."""
        messages: list[int] = []
        seconds: list[float] = []
        for broker in sorted({queue.broker for queue in ends}):
            topics = sorted({queue.topic for queue in ends if queue.broker == broker})
            table = reader.queue_bounds(topics, broker)
            for topic, queues in table.topics.items():
                for queue_id, low, high in queues:
                    first = max(low, ends.get(QueueKey(topic, broker, queue_id), low))
                    messages.append(max(0, high - first))
                    seconds.append(_age_s(reader, topic, queue_id, first, broker) if first < high else 0.0)
        if messages:
            self._on_lag(
                Lag(
                    query,
                    batch_id,
                    len(messages),
                    fmean(messages),
                    max(messages),
                    fmean(seconds),
                    max(seconds),
                )
            )


def _age_s(reader: BulkReader, topic: str, queue_id: int, offset: int, broker: str) -> float:
    """Return the age of a message; 0 if it expires meanwhile."""
    block = reader.fetch(topic, queue_id, offset, offset + 1, max_bytes=1, broker_name=broker)
    for view in record_views(block.records):
        return max(0.0, time.time() - view.store_timestamp_ms / 1000)
    return 0.0
