"""From the log to everything that is derived from it: the batch that reput hands to its dispatchers.

RocketMQ builds one DispatchRequest per record. Here a step of reput makes one `DispatchBatch` of all records that
it read, with the rows of each queue together, so that a dispatcher works per batch and not per message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from reput_broker.store.deleted_topics import DeletedTopics
from reput_protocol.dispatch_rows import Row
from reput_protocol.record_batch import DispatchRows, DispatchRun
from reput_protocol.record_layout import TRANSACTION_BITS, TRANSACTION_COMMIT
from reput_protocol.record_tail import properties_of

Column = Sequence[int] | NDArray[Any]
"""Integers of one field, one per record: a list or tuple of few, an array of 64-bit integers where many."""

FEW_ROWS = 24
"""Up to so many records lists are faster than arrays."""


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
        return int(self.store_timestamps_ms[-1])

    @property
    def end_queue_offset(self) -> int:
        """The queue offset after the last record."""
        return self.first_queue_offset + len(self.physical_offsets)


@dataclass(slots=True)
class DispatchBatch:
    """All records of the log's bytes `[start_offset, end_offset)`, which `data` begins with."""

    start_offset: int
    end_offset: int
    data: bytes
    rows: DispatchRows
    """Every record in log order; positions count from the start of `data`."""
    queues: list[QueueRows]
    """The records that get queue entries, by queue."""

    def properties(self, rows: QueueRows) -> Iterator[bytes | None]:
        """The properties text of each of these records; None for one that has none that could be read."""
        for physical_offset, size in zip(rows.physical_offsets, rows.sizes, strict=True):
            yield properties_of(self.data, int(physical_offset) - self.start_offset, int(size))


def rows_by_queue(rows: DispatchRows, deleted: DeletedTopics | None) -> list[QueueRows]:
    """Put the rows of each queue together, without records of deleted topics and those that get no queue entry.

    A queue whose offsets do not follow each other, which a healthy log never has, comes in several parts.
    """
    few = rows.few
    if few is not None and len(few) <= FEW_ROWS:
        return _few_by_queue(few, rows.runs, deleted)
    return _many_by_queue(rows, deleted)


def _few_by_queue(rows: list[Row], runs: list[DispatchRun], deleted: DeletedTopics | None) -> list[QueueRows]:
    if len(rows) == 1:  # which is a step of its own for each message that is sent alone
        ((_, physical_offset, size, queue_offset, code, stored_at, sys_flag, _, _),) = rows
        topic, queue_id, _, _ = runs[0]
        if _is_seen(topic, physical_offset, sys_flag, deleted):
            return [
                QueueRows(topic, queue_id, queue_offset, (physical_offset,), (size,), (code,), (stored_at,))
            ]
        return []
    parts: list[tuple[str, int, int, list[int], list[int], list[int], list[int]]] = []
    latest: dict[tuple[str, int], tuple[str, int, int, list[int], list[int], list[int], list[int]]] = {}
    for topic, queue_id, start, stop in runs:
        for _, physical_offset, size, queue_offset, code, stored_at, sys_flag, _, _ in rows[start:stop]:
            if not _is_seen(topic, physical_offset, sys_flag, deleted):
                continue
            part = latest.get((topic, queue_id))
            if part is None or queue_offset != part[2] + len(part[3]):
                part = (topic, queue_id, queue_offset, [], [], [], [])
                latest[topic, queue_id] = part
                parts.append(part)
            part[3].append(physical_offset)
            part[4].append(size)
            part[5].append(code)
            part[6].append(stored_at)
    return [QueueRows(*part) for part in parts]


def _is_seen(topic: str, physical_offset: int, sys_flag: int, deleted: DeletedTopics | None) -> bool:
    """Whether consumers may see a record."""
    transaction = sys_flag & TRANSACTION_BITS
    if transaction and transaction != TRANSACTION_COMMIT:
        return False
    return deleted is None or not deleted.hides(topic, physical_offset)


def _many_by_queue(rows: DispatchRows, deleted: DeletedTopics | None) -> list[QueueRows]:
    indexed = None if rows.all_indexed else rows.indexed
    found: list[QueueRows] = []
    for topic, queue_id, group in rows.groups():
        physical_offsets = rows.physical_offset[group]
        hides = deleted is not None and deleted.hides(topic, int(physical_offsets[0]))
        if indexed is None and not hides:
            _add_parts(found, topic, queue_id, rows, group)
            continue
        selected = np.arange(len(rows))[group]
        if indexed is not None:
            selected = selected[indexed[selected]]
        if deleted is not None and hides:
            selected = selected[rows.physical_offset[selected] >= deleted.end_offset(topic)]
        if len(selected):
            _add_parts(found, topic, queue_id, rows, selected)
    return found


def _add_parts(
    found: list[QueueRows], topic: str, queue_id: int, rows: DispatchRows, group: slice | NDArray[Any]
) -> None:
    queue_offsets = rows.queue_offset[group]
    physical_offsets = rows.physical_offset[group]
    sizes = rows.size[group]
    tags_codes = rows.tags_code[group]
    timestamps = rows.store_timestamp_ms[group]
    first, last = int(queue_offsets[0]), int(queue_offsets[-1])
    if last - first == len(queue_offsets) - 1 and (queue_offsets[1:] > queue_offsets[:-1]).all():
        # They ascend, and by no more than one each: the usual case.
        found.append(QueueRows(topic, queue_id, first, physical_offsets, sizes, tags_codes, timestamps))
        return
    breaks = (np.flatnonzero(queue_offsets[1:] - queue_offsets[:-1] != 1) + 1).tolist()
    for start, stop in pairwise([0, *breaks, len(queue_offsets)]):
        found.append(
            QueueRows(
                topic,
                queue_id,
                int(queue_offsets[start]),
                physical_offsets[start:stop],
                sizes[start:stop],
                tags_codes[start:stop],
                timestamps[start:stop],
            )
        )


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
