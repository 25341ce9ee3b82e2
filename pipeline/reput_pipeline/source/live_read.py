"""Read a task's ranges from brokers as Arrow batches."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from reput_client.consume.fetch_records import FetchedBlock
from reput_pipeline.source.arrow_batches import LOG_BATCH_ROWS, BatchMaker
from reput_pipeline.source.live_cluster import connect, repeated
from reput_pipeline.source.live_plan import LivePartition
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.source.places import Generations, QueueKey
from reput_pipeline.source.ranges import QueueRange
from reput_pipeline.spark.errors import DamagedStore, DataLost
from reput_pipeline.spark.notes import Losses, note
from reput_protocol.errors import TopicNotFound
from reput_protocol.kernel.records import queue_records
from reput_protocol.record.columns import RecordColumns
from reput_protocol.record.row import QUEUE_OFFSET, WIDTH

_BATCH_BYTES: Final = 4 << 20
"""Bytes of blocks that are decoded together: larger batches cost less per message."""
_AHEAD: Final = 4
"""Queues whose first block is requested ahead."""


class _Fetched(NamedTuple):
    """Fetched records of one queue."""

    queue: QueueKey
    start: int
    end: int
    """The wanted messages of `[start, end)`."""
    records: memoryview


class LiveReading:
    """Reads the ranges of one task.

    Args:
        options: of the query.
        schema: Arrow schema of the batches.
        generations: of the topics when the query was planned.
    """

    def __init__(
        self,
        options: SourceOptions,
        schema: pa.Schema,
        generations: Generations,
    ) -> None:
        self._options = options
        self._generations = generations
        self._reader = connect(options)
        self._maker = BatchMaker(schema, options.tag_filter, self._bad_record)
        self._place = ""
        self._losses = Losses()
        self.skipped = 0
        """Damaged messages that were left out."""

    def batches(self, ranges: list[QueueRange]) -> Iterator[pa.RecordBatch]:
        """Yield the messages of ranges, each queue in order.

        Raises:
            DataLost: messages were deleted.
            DamagedStore: a message is damaged.
            ConnectFailed, RequestTimeout, BrokerError: a broker does not answer, or refuses.
        """
        try:
            waiting: list[_Fetched] = []
            size = 0
            for number, part in enumerate(ranges):
                # Fetch the first blocks of the next queues while this one is read: in a small micro-batch of many
                # queues, waiting for one after the other would take most of the time.
                for coming in ranges[number + _AHEAD - 1 :][:1] if number else ranges[:_AHEAD]:
                    self._prefetch(coming)
                for block in self._blocks(part):
                    if waiting and (block.queue.broker != waiting[0].queue.broker or size >= _BATCH_BYTES):
                        yield from self._decoded(waiting)
                        waiting, size = [], 0
                    waiting.append(block)
                    size += len(block.records)
            yield from self._decoded(waiting)
        finally:
            self._reader.close()
            if self.skipped:
                note(f"left out {self.skipped} damaged messages")
            self._losses.report()

    def _prefetch(self, part: QueueRange) -> None:
        queue, start, end = part
        repeated(
            self._options,
            self._reader.prefetch,
            queue.topic,
            queue.queue_id,
            start,
            end,
            tags=self._options.sub_expression,
            generation=self._generations.get((queue.topic, queue.broker)),
            broker_name=queue.broker,
        )

    def _fetch(self, queue: QueueKey, start: int, end: int) -> FetchedBlock:
        return repeated(
            self._options,
            self._reader.fetch,
            queue.topic,
            queue.queue_id,
            start,
            end,
            tags=self._options.sub_expression,
            generation=self._generations.get((queue.topic, queue.broker)),
            broker_name=queue.broker,
        )

    def _blocks(self, part: QueueRange) -> Iterator[_Fetched]:
        queue, start, end = part
        tags = self._options.sub_expression
        while start < end:
            try:
                found = self._fetch(queue, start, end)
            except TopicNotFound as error:
                # The topic of that name may be another one now.
                self._lost(
                    queue, f"its topic was deleted, with messages {start} to {end - 1}: {error.remark}"
                )
                return
            if found.moved and found.next_offset > start:
                self._lost(queue, f"messages {start} to {min(found.next_offset, end) - 1} are gone")
                start = found.next_offset
            elif found.next_offset <= start:
                self._lost(queue, f"it ends at {found.max_offset}, before message {start} that was planned")
                return
            else:
                if len(found.records):
                    yield _Fetched(queue, start, min(found.next_offset, end), found.records)
                elif tags == "*":
                    self._lost(queue, f"messages {start} to {found.next_offset - 1} are gone")
                start = found.next_offset

    def _decoded(self, blocks: list[_Fetched]) -> Iterator[pa.RecordBatch]:
        if not blocks:
            return
        data = (
            blocks[0].records if len(blocks) == 1 else memoryview(b"".join(block.records for block in blocks))
        )
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
            table += part
            start = end
        columns = RecordColumns(data, table)
        self._place = str(blocks[0].queue) if len(blocks) == 1 else blocks[0].queue.broker
        for low in range(0, len(columns), LOG_BATCH_ROWS):
            yield from self._maker.make(
                columns.take(slice(low, low + LOG_BATCH_ROWS)), blocks[0].queue.broker
            )

    def _table(self, block: _Fetched, data: memoryview, start: int, end: int) -> array[int] | None:
        """Return the records of a block; None if they are not the requested messages."""
        queue = block.queue
        every = self._options.sub_expression == "*"
        table, stop = queue_records(
            data, start, end, queue.topic.encode(), queue.queue_id, block.start, every
        )
        if stop < end or not table:
            return None
        after = table[QUEUE_OFFSET - WIDTH] + 1
        return None if after > block.end or (every and after != block.end) else table

    def _one_by_one(self, block: _Fetched) -> Iterator[pa.RecordBatch]:
        """Fetch a damaged block again, message by message, to find the undamaged ones."""
        queue = block.queue
        tags = self._options.sub_expression
        self._place = str(queue)
        for offset in range(block.start, block.end):
            found = self._fetch(queue, offset, offset + 1)
            if found.moved or not len(found.records):
                if tags == "*" or found.moved:
                    self._lost(queue, f"message {offset} is gone")
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
        if not self._options.skip_damage:
            raise DamagedStore(f"{self._place} of {self._options.where}, message", offset, reason)
        self.skipped += 1

    def _lost(self, queue: QueueKey, reason: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(queue, reason)
        self._losses.add(queue, reason)


def read_live(
    partition: LivePartition, options: SourceOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of one task."""
    reading = LiveReading(options, schema, partition.generations)
    return reading.batches(partition.ranges)
