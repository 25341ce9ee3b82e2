"""Which records of the log belong to the ranges of a query, for many records and many queues at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reput_client.arrow_slices import gather_slices
from reput_pipeline.offline_plan import WantedRange
from reput_protocol.columns import IntArray, RecordColumns
from reput_protocol.record_layout import TRANSACTION_BITS, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK


class WantedRecords:
    """The ranges of a query as tables by topic and queue id.

    A record is of a queue if it has its topic and number, lies between the first and the last record of the range,
    and is no prepared or rolled back message: those are in the log, but in no queue (RocketMQ:
    CommitLogDispatcherBuildConsumeQueue). Where it lies tells a queue from one of the same name, deleted before.
    """

    def __init__(self, wanted: Sequence[WantedRange]) -> None:
        topics = sorted({part.queue.topic for part in wanted})
        self._topics = pa.array([topic.encode() for topic in topics], pa.binary())
        number_of = {topic: number for number, topic in enumerate(topics)}
        self._width = np.zeros(len(topics) + 1, np.int64)
        for part in wanted:
            number = number_of[part.queue.topic]
            self._width[number] = max(self._width[number], part.queue.queue_id + 1)
        self._base = np.concatenate(([0], np.cumsum(self._width[:-1])))
        self._table = np.zeros((int(self._width.sum()) + 1, 4), np.int64)
        for part in wanted:
            slot = int(self._base[number_of[part.queue.topic]]) + part.queue.queue_id
            self._table[slot] = part.start, part.end, part.log_start, part.log_end

    def rows(self, columns: RecordColumns, base: int, log_end: int) -> IntArray:
        """Return the rows of records that are wanted and lie before an offset of the log.

        Args:
            columns: of records in their places.
            base: log offset of position 0 of their buffer.
            log_end: where the task's part of the log ends.
        """
        head = columns.head
        found = gather_slices(
            pa.py_buffer(columns.buffer),
            columns.topic_position,
            columns.topic_position + columns.topic_size,
            pa.binary(),
        )
        topic = pc.fill_null(pc.index_in(found, value_set=self._topics), len(self._topics))
        number = topic.to_numpy(zero_copy_only=False)
        queue_id = head["queue_id"].astype(np.int64)
        known = queue_id < self._width[number]
        slot = np.where(known, self._base[number] + queue_id, len(self._table) - 1)
        start, end, first, last = self._table[slot].T
        offset = head["queue_offset"].astype(np.int64)
        at = columns.position + base
        kind = head["sys_flag"] & TRANSACTION_BITS
        return np.flatnonzero(
            (offset >= start)
            & (offset < end)
            & (at >= first)
            & (at < np.minimum(last, log_end))
            & (kind != TRANSACTION_PREPARED)
            & (kind != TRANSACTION_ROLLBACK)
        )
