"""From the log to everything that is derived from it: the batch that reput hands to its dispatchers.

RocketMQ builds one DispatchRequest per record. Here a step of reput makes one `DispatchBatch` of all records that
it read, with the rows of each queue together, so that a dispatcher works per batch and not per message.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

from reput_broker.store.deleted_topics import DeletedTopics
from reput_protocol.buffers import Buffer
from reput_protocol.kernel.tables import columns_of_runs
from reput_protocol.record.dispatch_rows import SEEN, DispatchRows
from reput_protocol.record.layout import properties_of

Column: TypeAlias = "array[int]"
"""64-bit integers of one field, one per record."""


class QueueRows(NamedTuple):
    """The records of one queue in one batch, in log order, with consecutive queue offsets.

    Only records that consumers may see: prepared and rolled back transaction records take no place in a queue.
    """

    topic: str
    queue_id: int
    first_queue_offset: int
    physical_offsets: Column
    """Where each record starts in the log, in bytes."""
    sizes: Column
    """Whole record sizes in bytes."""
    tags_codes: Column
    """Signed 64-bit tags codes as a queue entry keeps them (RocketMQ: MessageExtBrokerInner)."""
    store_timestamps_ms: Column
    """Store time of each record."""

    @property
    def store_timestamp_ms(self) -> int:
        """Store time of the last record."""
        return self.store_timestamps_ms[-1]

    @property
    def end_queue_offset(self) -> int:
        """The queue offset after the last record."""
        return self.first_queue_offset + len(self.physical_offsets)


@dataclass(slots=True)
class DispatchBatch:
    """All records of the log's bytes `[start_offset, end_offset)`, which `data` begins with."""

    start_offset: int
    end_offset: int
    data: Buffer
    rows: DispatchRows
    """Every record in log order; positions count from the start of `data`."""
    queues: list[QueueRows]
    """The records that get queue entries, by queue."""

    def properties(self, rows: QueueRows) -> Iterator[bytes | None]:
        """The properties text of each of these records; None for one that has none that could be read."""
        for physical_offset, size in zip(rows.physical_offsets, rows.sizes, strict=True):
            yield properties_of(self.data, physical_offset - self.start_offset, size)


def rows_by_queue(rows: DispatchRows, deleted: DeletedTopics | None) -> list[QueueRows]:
    """Put the rows of each queue together, without records of deleted topics and those that get no queue entry.

    A queue whose offsets do not follow each other, which a healthy log never has, comes in several parts.
    """
    queue_offsets, physical_offsets = rows.column("queue_offset"), rows.column("physical_offset")
    parts: list[tuple[str, int, int, array[int]]] = []
    latest: dict[
        tuple[str, int], tuple[int, array[int]]
    ] = {}  # the queue offset that follows, and which rows
    for topic, queue_id, start, stop, transaction in rows.runs:
        if transaction not in SEEN:
            continue
        if deleted is not None and deleted.hides(topic, physical_offsets[start]):
            start = bisect_left(physical_offsets, deleted.end_offset(topic), start, stop)
            if start == stop:
                continue
        first = queue_offsets[start]
        part = latest.get((topic, queue_id))
        if part is not None and part[0] == first:
            runs = part[1]
        else:
            runs = array("q")
            parts.append((topic, queue_id, first, runs))
        runs.extend((start, stop))
        latest[topic, queue_id] = first + stop - start, runs
    return [
        _queue_rows((topic, queue_id, first, *columns_of_runs(rows.table, rows.tags_codes, runs)))
        for topic, queue_id, first, runs in parts
    ]


_queue_rows: Final = partial(tuple.__new__, QueueRows)  # skips the Python-level constructor of a named tuple


class Dispatcher(Protocol):
    """Keeps something derived from the log up to date.

    A batch may come again, whole or in part, after a crash or after another dispatcher failed: what has been applied
    already must be recognised and skipped. An exception stops dispatch at the batch, which is offered again later.
    """

    def dispatch(self, batch: DispatchBatch) -> None:
        """Apply every record of the batch.

        Raises:
            DiskFull: there is no room now; dispatch stands still and comes back with the same batch.
        """


class MessageArrivingListener(Protocol):
    """Told about new messages once they can be read (RocketMQ: MessageArrivingListener). Long polling hangs on it."""

    def arriving(self, rows: QueueRows, batch: DispatchBatch) -> None:
        """Note that a queue has grown by `rows` of `batch`, up to `rows.end_queue_offset`.

        Called once per queue and step, after all dispatchers.
        """
