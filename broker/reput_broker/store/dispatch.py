"""From the log to everything that is derived from it: the batch that reput hands to its dispatchers.

RocketMQ builds one DispatchRequest per record. Here a step of reput makes one `DispatchBatch` of all records that
it read, with the rows of each queue together, so that a dispatcher works per batch and not per message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from reput_protocol.record_batch import DispatchRows

IntArray = NDArray[np.int64]


class QueueRows(NamedTuple):
    """The records of one queue in one batch, in log order, with consecutive queue offsets.

    Only records that consumers may see: prepared and rolled back transaction records take no place in a queue.
    """

    topic: str
    queue_id: int
    first_queue_offset: int
    physical_offsets: IntArray
    """Where each record starts in the log, in bytes."""
    sizes: IntArray
    """Whole record sizes in bytes."""
    tags_codes: IntArray
    """Signed 64-bit tags codes as a queue entry keeps them (RocketMQ: MessageExtBrokerInner)."""
    store_timestamp_ms: int
    """Store time of the last record."""

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

    def arriving(
        self,
        topic: str,
        queue_id: int,
        max_queue_offset: int,
        tags_codes: Sequence[int] | NDArray[Any],
        store_timestamp_ms: int,
    ) -> None:
        """Note that a queue now ends at `max_queue_offset`; called once per queue and step, after all dispatchers."""
