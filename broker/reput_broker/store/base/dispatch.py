"""The batch of records that reput hands to its dispatchers, and their interfaces.

RocketMQ builds one DispatchRequest per record. Here a step makes one `DispatchBatch` of all records that it read,
grouped by queue.

Deleting a topic removes its queues, but its records stay in the log until their file expires, and a recovery that reads
them would bring the queues back. So a deletion leaves a mark: records of the topic below an offset do not count. The
marks are in `deletedTopics`, a JSON object from topic to log offset, which RocketMQ ignores.
"""

from __future__ import annotations

import json
import os
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias

from reput_broker.store.base.errors import ForeignFile
from reput_protocol.buffers import Buffer
from reput_protocol.kernel.tables import columns_of_runs
from reput_protocol.record.layout import properties_of
from reput_protocol.record.scan import SEEN, DispatchRows


@dataclass(eq=False, repr=False)
class DeletedTopics:
    """The marks of one directory, in memory and on disk."""

    _path: Path
    _deleted_below: dict[str, int] = field(default_factory=dict, init=False)

    def load(self) -> None:
        """Read the marks; a missing file means that there are none.

        Raises:
            ForeignFile: the file was not written by this class.
        """
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return
        try:
            marks = json.loads(text)
        except ValueError:
            marks = None
        if not isinstance(marks, dict) or not all(type(offset) is int for offset in marks.values()):
            raise ForeignFile(self._path, "it is not a JSON object from topic names to log offsets")
        self._deleted_below = marks

    def __len__(self) -> int:
        return len(self._deleted_below)

    def items(self) -> list[tuple[str, int]]:
        """Every deleted topic with the log offset below which its records do not count."""
        return list(self._deleted_below.items())

    def hides(self, topic: str, physical_offset: int) -> bool:
        """Whether a record of `topic` at this log offset belongs to a deleted topic."""
        return physical_offset < self._deleted_below.get(topic, 0)

    def end_offset(self, topic: str) -> int:
        """Records of the topic before this log offset are deleted; 0 if the topic was never deleted."""
        return self._deleted_below.get(topic, 0)

    def add(self, topics: Collection[str], end_offset: int) -> None:
        """Durably mark the records of topics below `end_offset` as deleted. Raises OSError if that fails."""
        before = self._deleted_below
        self._deleted_below = {**before, **dict.fromkeys(topics, end_offset)}
        try:
            self._save()
        except OSError:
            self._deleted_below = before
            raise

    def forget_below(self, min_offset: int) -> None:
        """Drop marks whose records have all left the log, which now starts at `min_offset`."""
        kept = {topic: end for topic, end in self._deleted_below.items() if end > min_offset}
        if len(kept) != len(self._deleted_below):
            self._deleted_below = kept
            self._save()

    def end_at(self, max_offset: int) -> None:
        """Limit every mark to the end of the log.

        A power failure may take back records that a deletion covered; those that replace them are not deleted.
        """
        if any(end > max_offset for end in self._deleted_below.values()):
            self._deleted_below = {topic: min(end, max_offset) for topic, end in self._deleted_below.items()}
            self._save()

    def _save(self) -> None:
        temporary = self._path.with_name(self._path.name + ".tmp")
        with temporary.open("wb") as file:
            file.write(json.dumps(self._deleted_below, sort_keys=True).encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


Column: TypeAlias = "array[int]"
"""64-bit integers of one field, one per record."""


class QueueRows(NamedTuple):
    """The records of one queue in one batch, in log order, with consecutive queue offsets.

    Without prepared and rolled back transaction records, which consumers do not see.
    """

    topic: str
    queue_id: int
    first_queue_offset: int
    physical_offsets: Column
    """Start of each record in the log, in bytes."""
    sizes: Column
    """Whole record sizes in bytes."""
    tags_codes: Column
    """Signed 64-bit tags codes as in a queue entry (RocketMQ: MessageExtBrokerInner)."""
    store_timestamps_ms: Column

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
    """All records in the log's bytes `[start_offset, end_offset)`, with which `data` begins."""

    start_offset: int
    end_offset: int
    data: Buffer
    rows: DispatchRows
    """Every record in log order; positions count from the start of `data`."""
    queues: list[QueueRows]

    def properties(self, rows: QueueRows) -> Iterator[bytes | None]:
        """Yield the properties text of each record; None if a record has none that is readable."""
        for physical_offset, size in zip(rows.physical_offsets, rows.sizes, strict=True):
            yield properties_of(self.data, physical_offset - self.start_offset, size)


def rows_by_queue(rows: DispatchRows, deleted: DeletedTopics | None) -> list[QueueRows]:
    """Group the rows by queue, without records of deleted topics and records that get no queue entry.

    A queue whose offsets are not consecutive, which does not happen in a healthy log, comes in
    several parts.
    """
    queue_offsets, physical_offsets = rows.column("queue_offset"), rows.column("physical_offset")
    parts: list[tuple[str, int, int, array[int]]] = []
    # For each queue: the queue offset that follows, and its rows as (start, stop) pairs.
    latest: dict[tuple[str, int], tuple[int, array[int]]] = {}
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


class CommitLogDispatcher(Protocol):
    """Keeps something that is derived from the log up to date.

    A batch may be offered again, in full or in part, after a crash or another dispatcher's failure: what was already
    applied must be recognised and skipped. After an exception dispatch stops at the batch and offers it again later.
    """

    def dispatch(self, batch: DispatchBatch) -> None:
        """Apply every record of the batch.

        Raises:
            DiskFull: there is no room now; dispatch waits and offers the same batch again.
        """


class MessageArrivingListener(Protocol):
    """Notified of new messages once they can be read (RocketMQ: MessageArrivingListener)."""

    def arriving(self, rows: QueueRows, batch: DispatchBatch) -> None:
        """Note that a queue has grown by `rows` of `batch`, up to `rows.end_queue_offset`.

        Called once per queue and step, after all dispatchers.
        """
