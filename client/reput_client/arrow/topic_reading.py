"""Read ranges of queues from brokers as Arrow batches."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa

from reput_client.arrow.batches import LOG_BATCH_ROWS, BatchMaker
from reput_client.arrow.queues import Generations, QueueKey, QueueRange, Unreadable
from reput_client.blocking.bulk import Attempts, BulkReader
from reput_protocol.errors import TopicNotFound
from reput_protocol.filter.tags import TagFilter
from reput_protocol.kernel.records import queue_records
from reput_protocol.record.columns import RecordColumns
from reput_protocol.record.scan import QUEUE_OFFSET, WIDTH

T = TypeVar("T")
_BATCH_BYTES: Final = 4 << 20
"""Bytes of a block, and of smaller blocks that are decoded together: larger batches cost less per message."""
_AHEAD: Final = 4
"""Queues whose first block is requested ahead."""


class _Fetched(NamedTuple):
    """Fetched records of one queue."""

    queue: QueueKey
    start: int
    end: int
    """The wanted messages of `[start, end)`."""
    records: memoryview


class TopicReading:
    """Reads ranges of queues; closes its reader at the end.

    Args:
        reader: of the cluster.
        schema: Arrow schema of the batches.
        unreadable: decides about deleted and damaged messages.
        tags: `*`, or tags joined by `||`.
        generations: of the topics when the ranges were chosen.
        attempts: repeats requests.
        where: the brokers' addresses, for error texts.
    """

    def __init__(
        self,
        reader: BulkReader,
        schema: pa.Schema,
        unreadable: Unreadable,
        *,
        tags: str,
        generations: Generations,
        attempts: Attempts,
        where: str,
    ) -> None:
        self._reader = reader
        self._unreadable = unreadable
        self._tags = tags
        self._generations = generations
        self._attempts = attempts
        self._where = where
        self._maker = BatchMaker(schema, TagFilter.parse(tags), self._bad_record)
        self._place = ""

    def batches(self, ranges: list[QueueRange]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ranges, each queue in order.

        Raises:
            Exception: of `unreadable`.
            ConnectFailed, RequestTimeout, BrokerError: a broker does not answer, or refuses.
        """
        try:
            waiting: list[_Fetched] = []
            size = 0
            for number, part in enumerate(ranges):
                # Fetch the first blocks of the next queues while this one is read: in a small micro-batch of many
                # queues, waiting for one after the other would take most of the time.
                for coming in ranges[number + _AHEAD - 1 :][:1] if number else ranges[:_AHEAD]:
                    self._ask(self._reader.prefetch, *coming)
                for block in self._blocks(part):
                    together = size + len(block.records) <= _BATCH_BYTES
                    if waiting and not (together and block.queue.broker == waiting[0].queue.broker):
                        yield from self._decoded(waiting)
                        waiting, size = [], 0
                    waiting.append(block)
                    size += len(block.records)
            yield from self._decoded(waiting)
        finally:
            self._reader.close()

    def _ask(self, ask: Callable[..., T], queue: QueueKey, start: int, end: int) -> T:
        """Call a method of the reader for messages of a queue."""
        return self._attempts(
            ask,
            queue.topic,
            queue.queue_id,
            start,
            end,
            max_bytes=_BATCH_BYTES,
            tags=self._tags,
            generation=self._generations.get((queue.topic, queue.broker)),
            broker_name=queue.broker,
        )

    def _blocks(self, part: QueueRange) -> Iterator[_Fetched]:
        queue, start, end = part
        tags = self._tags
        while start < end:
            try:
                found = self._ask(self._reader.fetch, queue, start, end)
            except TopicNotFound as error:
                # The topic of that name may be another one now.
                self._unreadable.lost(
                    queue, f"its topic was deleted, with messages {start} to {end - 1}: {error.remark}"
                )
                return
            if found.moved and found.next_offset > start:
                self._unreadable.lost(queue, f"messages {start} to {min(found.next_offset, end) - 1} are gone")
                start = found.next_offset
            elif found.next_offset <= start:
                self._unreadable.lost(queue, f"it ends at {found.max_offset}, before message {start} that was planned")
                return
            else:
                if len(found.records):
                    yield _Fetched(queue, start, min(found.next_offset, end), found.records)
                elif tags == "*":
                    self._unreadable.lost(queue, f"messages {start} to {found.next_offset - 1} are gone")
                start = found.next_offset

    def _decoded(self, blocks: list[_Fetched]) -> Iterator[pa.RecordBatch]:
        if not blocks:
            return
        data = blocks[0].records if len(blocks) == 1 else memoryview(b"".join(block.records for block in blocks))
        table: array[int] = array("q")
        start = 0
        for block in blocks:
            end = start + len(block.records)
            part = self._table(block, data, start, end)
            if part is None:
                if len(blocks) == 1:
                    yield from self._one_by_one(block)
                else:
                    for alone in blocks:
                        yield from self._decoded([alone])
                return
            if len(blocks) == 1:
                table = part
            else:
                table += part
            start = end
        columns = RecordColumns(data, table)
        self._place = str(blocks[0].queue) if len(blocks) == 1 else blocks[0].queue.broker
        for low in range(0, len(columns), LOG_BATCH_ROWS):
            yield from self._maker.make(columns.take(slice(low, low + LOG_BATCH_ROWS)), blocks[0].queue.broker)

    def _table(self, block: _Fetched, data: memoryview, start: int, end: int) -> array[int] | None:
        """Return the records of a block; None if they are not the requested messages."""
        queue = block.queue
        every = self._tags == "*"
        table, stop = queue_records(data, start, end, queue.topic.encode(), queue.queue_id, block.start, every)
        if stop < end or not table:
            return None
        after = table[QUEUE_OFFSET - WIDTH] + 1
        return None if after > block.end or (every and after != block.end) else table

    def _one_by_one(self, block: _Fetched) -> Iterator[pa.RecordBatch]:
        """Fetch a damaged block again, message by message, to find the undamaged ones."""
        queue = block.queue
        tags = self._tags
        self._place = str(queue)
        for offset in range(block.start, block.end):
            found = self._ask(self._reader.fetch, queue, offset, offset + 1)
            if found.moved or not len(found.records):
                if tags == "*" or found.moved:
                    self._unreadable.lost(queue, f"message {offset} is gone")
                continue
            one = _Fetched(queue, offset, offset + 1, found.records)
            table = self._table(one, found.records, 0, len(found.records))
            if table is not None:
                yield from self._maker.make(RecordColumns(found.records, table), queue.broker)
            else:
                self._damage(offset, "its record is damaged, or is another message")

    def _bad_record(self, columns: RecordColumns, row: int, reason: str) -> None:
        topic = bytes(columns.topic(row)).decode("utf-8", "replace")
        self._place = f"queue {topic}/{int(columns.queue_id[row])}"
        physical = int(columns.physical_offset[row])
        self._damage(int(columns.queue_offset[row]), f"at {physical} in the log: {reason}")

    def _damage(self, offset: int, reason: str) -> None:
        self._unreadable.damaged(f"{self._place} of {self._where}, message", offset, reason)
