"""Where queues begin and end, and which offset belongs to a store time."""

from __future__ import annotations

from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.queue.table import ConsumeQueueTable
from reput_protocol.codes import BoundaryType
from reput_protocol.store.unit import ConsumeQueueUnit, unpack_units

_NEAR_END_UNITS = 1024
_SAMPLED_UNITS = 16


class QueueOffsets:
    """Looks up queue offsets, for the owner of the store."""

    def __init__(self, log: CommitLog, queues: ConsumeQueueTable, memory_bytes: int) -> None:
        self._log = log
        self._queues = queues
        self._memory_bytes = memory_bytes

    def min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """The queue offset of the first message that is still in the log, 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.min_queue_offset

    def max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """The queue offset of the next readable message, 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_queue_offset

    def durable_max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """The queue offset after the last message that is on disk, 0 for an unknown queue.

        Under SYNC_FLUSH readers see nothing else; otherwise a power failure may take back the end of a queue.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return 0
        low, high = queue.min_queue_offset, queue.max_queue_offset
        flushed = self._log.flushed_offset
        if flushed >= self._log.max_offset:
            return high
        # The boundary is near the end; reading units far before it may need the disk.
        step = _NEAR_END_UNITS
        while high - step > low:
            unit = queue.get_unit(high - step)
            if unit is None or unit.end_offset <= flushed:
                low = high - step
                break
            high, step = high - step, 2 * step
        while low < high:
            middle = (low + high) // 2
            unit = queue.get_unit(middle)
            if unit is not None and unit.end_offset > flushed:
                high = middle
            else:
                low = middle + 1
        return high

    def offset_by_timestamp(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """The queue offset for a store time (RocketMQ: getOffsetInQueueByTime).

        LOWER: the first message stored at or after the time, the end of the queue if there is none.
        UPPER: the last one stored at or before it. 0 for an unknown queue.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return 0
        return queue.offset_by_timestamp(
            timestamp_ms,
            "lower" if boundary is BoundaryType.LOWER else "upper",
            self._store_time_of,
            self._log.min_offset,
        )

    def earliest_message_time(self, topic: str, queue_id: int) -> int:
        """The store time of the first message still in the log, in milliseconds; -1 if there is none."""
        return self.store_timestamp(topic, queue_id, self.min_offset_in_queue(topic, queue_id))

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """The store time of one message in milliseconds, -1 if there is no such message."""
        physical_offset = self._physical_offset_of(topic, queue_id, offset)
        return -1 if physical_offset is None else self._log.store_timestamp_at(physical_offset)

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message is within 40 % of the machine's memory of the log's end (RocketMQ's estimate)."""
        physical_offset = self._physical_offset_of(topic, queue_id, offset)
        return physical_offset is not None and self._log.max_offset - physical_offset <= self._memory_bytes

    def estimated_bytes(self, topic: str, queue_id: int) -> int:
        """Return what the messages of a queue take in the log, estimated from the sizes of the last ones."""
        queue = self._queues.get(topic, queue_id)
        count = 0 if queue is None else queue.max_queue_offset - queue.min_queue_offset
        if queue is None or count <= 0:
            return 0
        start = max(queue.min_queue_offset, queue.max_queue_offset - _SAMPLED_UNITS)
        units = unpack_units(queue.read_units(start, _SAMPLED_UNITS))
        return count * sum(unit.size for unit in units) // len(units) if units else 0

    def queue_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[ConsumeQueueUnit]:
        """Return at most `count` entries of a queue from a queue offset on, with their tags codes.

        Fewer if a file of the queue ends; none below the queue's minimum.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None or offset < queue.min_queue_offset:
            return []
        return unpack_units(queue.with_tags_codes(queue.read_units(offset, count)))

    def _physical_offset_of(self, topic: str, queue_id: int, offset: int) -> int | None:
        queue = self._queues.get(topic, queue_id)
        unit = None if queue is None else queue.get_unit(offset)
        return None if unit is None else unit.physical_offset

    def _store_time_of(self, physical_offset: int, size: int) -> int:
        del size
        return self._log.store_timestamp_at(physical_offset)
