"""Which records of the log belong to the ranges of a query."""

from __future__ import annotations

from collections.abc import Sequence

from reput_pipeline.offline_plan import WantedRange
from reput_protocol.record_columns import RecordColumns
from reput_protocol.record_layout import TRANSACTION_BITS, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK


class WantedRecords:
    """The ranges of a query by topic and queue id.

    A record is of a queue if it has its topic and number, is between the first and the last record of the range,
    and is no prepared or rolled back message: those are in the log, but in no queue (RocketMQ:
    CommitLogDispatcherBuildConsumeQueue). Its place tells a queue from one of the same name, deleted before.
    """

    def __init__(self, wanted: Sequence[WantedRange]) -> None:
        self._ranges = {(part.queue.topic.encode(), part.queue.queue_id): part for part in wanted}

    def has(self, columns: RecordColumns, row: int, place: int) -> bool:
        """Tell whether a record, which is at `place` in the log, is wanted."""
        part = self._ranges.get((bytes(columns.topic(row)), int(columns.queue_id[row])))
        if part is None or int(columns.sys_flag[row]) & TRANSACTION_BITS in _IN_NO_QUEUE:
            return False
        number = int(columns.queue_offset[row])
        return part.start <= number < part.end and part.log_start <= place < part.log_end


_IN_NO_QUEUE = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
