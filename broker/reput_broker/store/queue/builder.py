"""The first dispatcher: writes an entry for each message to its queue (RocketMQ: ConsumeQueueStore)."""

from __future__ import annotations

from reput_broker.store.base.dispatch import DispatchBatch, QueueRows
from reput_broker.store.base.errors import StoreError
from reput_broker.store.base.options import EventHandler, FilterBitMaps
from reput_broker.store.queue.consume_queue import ConsumeQueue
from reput_broker.store.queue.table import ConsumeQueueTable


class QueueGap(StoreError):
    """A queue lacks entries of earlier records than the one to be dispatched. Nothing was written.

    RocketMQ would write the entry in the wrong place and shift all that follow.

    Attributes:
        max_queue_offset: where the queue ends.
        queue_offset, physical_offset: of the next record.
    """

    def __init__(
        self, topic: str, queue_id: int, max_queue_offset: int, queue_offset: int, physical_offset: int
    ) -> None:
        super().__init__(
            f"queue {queue_id} of topic {topic} ends at queue offset {max_queue_offset}, but the next record of the "
            f"log (at offset {physical_offset}) is its message {queue_offset}; stop the broker, then run "
            "`reput store verify` and `reput store rebuild`"
        )
        self.topic = topic
        self.queue_id = queue_id
        self.max_queue_offset = max_queue_offset
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset


class ConsumeQueueBuilder:
    """Writes entries to queues; existing entries are recognised by their log offset and skipped.

    Args:
        bit_maps_of: computes the bit maps of extended entries.
    """

    def __init__(self, queues: ConsumeQueueTable, bit_maps_of: FilterBitMaps | None = None) -> None:
        self._queues = queues
        self._bit_maps_of = bit_maps_of
        self.entries = 0
        """Number of entries of all queues, once the owner has set the initial number."""

    def dispatch(self, batch: DispatchBatch) -> None:
        """Write the entries of the batch, one write per queue.

        Raises:
            DiskFull: some queues may have their entries; the same batch may be offered again.
            QueueGap: the batch does not follow the last entry of its queue.
        """
        for rows in batch.queues:
            topic, queue_id, first, physical_offsets, sizes, tags_codes, stored_ms = rows
            queue = self._queues.get((topic, queue_id))
            if queue is None:
                queue = self._queues.find_or_create(topic, queue_id)
            elif first < queue.max_queue_offset:
                self._meet_again(queue, rows)
            before = queue.max_queue_offset
            if first > before:
                self._fill_gap(queue, rows)
                before = queue.max_queue_offset
            bit_maps = None if self._bit_maps_of is None else self._bit_maps_of(batch, rows)
            queue.put_batch(physical_offsets, sizes, tags_codes, first, stored_ms, bit_maps)
            self.entries += queue.max_queue_offset - before

    def _meet_again(self, queue: ConsumeQueue, rows: QueueRows) -> None:
        """Handle records whose queue offsets, or some of them, the queue has already."""

    def _fill_gap(self, queue: ConsumeQueue, rows: QueueRows) -> None:
        raise QueueGap(
            rows.topic,
            rows.queue_id,
            queue.max_queue_offset,
            rows.first_queue_offset,
            rows.physical_offsets[0],
        )


class ReplicaQueueBuilder(ConsumeQueueBuilder):
    """The builder of a replica: the master's log decides which queue offsets there are.

    A queue may begin in the middle, as the replica's log may. If a queue starts again at 0, its topic was deleted and
    created again on the master.
    """

    def _meet_again(self, queue: ConsumeQueue, rows: QueueRows) -> None:
        if rows.first_queue_offset == 0 and rows.physical_offsets[0] >= queue.max_physical_offset:
            self.entries -= queue.max_queue_offset
            queue.destroy()

    def _fill_gap(self, queue: ConsumeQueue, rows: QueueRows) -> None:
        if queue.max_queue_offset:
            super()._fill_gap(queue, rows)


class RecoveringQueueBuilder(ConsumeQueueBuilder):
    """The builder for recovery, when a queue may hold outdated entries.

    Args:
        from_beginning: whether the log is read from its first record; then a gap means that records have left the log,
            and the queue starts again after it.
        on_event: notified if the log contradicts itself.
    """

    def __init__(
        self,
        queues: ConsumeQueueTable,
        bit_maps_of: FilterBitMaps | None = None,
        *,
        from_beginning: bool,
        on_event: EventHandler,
    ) -> None:
        super().__init__(queues, bit_maps_of)
        self._from_beginning = from_beginning
        self._on_event = on_event

    def _meet_again(self, queue: ConsumeQueue, rows: QueueRows) -> None:
        if rows.physical_offsets[0] >= queue.max_physical_offset:
            self._resolve_conflict(queue, rows)

    def _fill_gap(self, queue: ConsumeQueue, rows: QueueRows) -> None:
        if not self._from_beginning:
            super()._fill_gap(queue, rows)
        queue.destroy()

    def _resolve_conflict(self, queue: ConsumeQueue, rows: QueueRows) -> None:
        """Handle later records that claim queue offsets already in use.

        If they start at 0, the topic was deleted, by a broker that leaves no mark, and created again. Otherwise an
        earlier broker was at fault: the entry that consumers have seen stays.
        """
        restarts = rows.first_queue_offset == 0
        self._on_event(
            "queue_started_anew" if restarts else "queue_offset_taken",
            {
                "topic": rows.topic,
                "queue_id": rows.queue_id,
                "queue_offset": rows.first_queue_offset,
                "max_queue_offset": queue.max_queue_offset,
                "physical_offset": rows.physical_offsets[0],
            },
        )
        if restarts:
            queue.destroy()
