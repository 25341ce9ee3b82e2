"""From the log to everything that is derived from it: the batch that reput hands to its dispatchers.

RocketMQ builds one DispatchRequest per record. Here a step of reput makes one `DispatchBatch` of all records that
it read, already cut into runs of one queue each, so that a dispatcher works per batch and not per message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class QueueRun(NamedTuple):
    """Records of one queue in one batch, in log order, with consecutive queue offsets.

    Only records that consumers may see: prepared and rolled back transaction records take part in no run.
    """

    topic: str
    queue_id: int
    first_queue_offset: int
    physical_offsets: Sequence[int]
    """Where each record starts in the log, in bytes."""
    sizes: Sequence[int]
    """Whole record sizes in bytes."""
    tags_codes: Sequence[int]
    """Signed 64-bit tags codes as a queue entry keeps them (RocketMQ: MessageExtBrokerInner)."""
    store_timestamp_ms: int
    """Store time of the last record of the run."""

    @property
    def end_queue_offset(self) -> int:
        """The queue offset after the last record of the run."""
        return self.first_queue_offset + len(self.physical_offsets)


@dataclass(slots=True)
class DispatchBatch:
    """All records of the log's bytes `[start_offset, end_offset)`.

    `data` holds these bytes and is valid only during the dispatch call: it may look straight into a mapped file.
    """

    start_offset: int
    end_offset: int
    count: int
    runs: list[QueueRun]
    data: memoryview
    positions: Sequence[int]
    """Where each record starts in `data`."""
    store_timestamp_ms: int
    """Store time of the last record, 0 in an empty batch."""


class Dispatcher(Protocol):
    """Keeps something derived from the log up to date.

    A batch may come again, whole or in part, after a crash or after another dispatcher failed: what has been applied
    already must be recognised and skipped. An exception stops dispatch at the batch, which is offered again later.
    """

    def dispatch(self, batch: DispatchBatch) -> None:
        """Apply every record of the batch."""


class MessageArrivingListener(Protocol):
    """Told about new messages once they can be read (RocketMQ: MessageArrivingListener). Long polling hangs on it."""

    def arriving(
        self,
        topic: str,
        queue_id: int,
        max_queue_offset: int,
        tags_codes: Sequence[int],
        store_timestamp_ms: int,
    ) -> None:
        """Note that a queue now ends at `max_queue_offset`; called once per queue and step, after all dispatchers."""
