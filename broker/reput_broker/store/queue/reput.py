"""Follow the log and dispatch its records to queues, index and long polling (RocketMQ: ReputMessageService,
ConsumeQueueStore).

A step reads some bytes of the log, gives them as one batch to every dispatcher in order, and only then advances the
position. So a dispatcher that fails gets the same batch again, and listeners are notified only of what can be read.

A record that cannot be read is never skipped. RocketMQ skips it, but then the queue gives the offset of the lost
message to another one, and no reader notices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from reput_broker.store.base.dispatch import (
    CommitLogDispatcher,
    DeletedTopics,
    DispatchBatch,
    MessageArrivingListener,
    QueueRows,
    rows_by_queue,
)
from reput_broker.store.base.errors import REPAIR_REMEDY, DiskFull, FileMissing, FlushFailed, StoreDamaged, StoreError
from reput_broker.store.base.file_io import is_out_of_descriptors
from reput_broker.store.base.options import EventHandler, FilterBitMaps
from reput_broker.store.base.results import StoreStats
from reput_broker.store.base.running_flags import RunningFlags
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.queue.consume_queue import ConsumeQueue
from reput_broker.store.queue.table import ConsumeQueueTable
from reput_protocol.record.scan import DispatchRows, ScanStatus, scan_dispatch


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


@dataclass(eq=False, repr=False)
class ConsumeQueueBuilder:
    """Writes entries to queues; existing entries are recognised by their log offset and skipped.

    Args:
        bit_maps_of: computes the bit maps of extended entries.
    """

    _queues: ConsumeQueueTable
    _bit_maps_of: FilterBitMaps | None = None
    entries: int = field(default=0, init=False)
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
            rows.topic, rows.queue_id, queue.max_queue_offset, rows.first_queue_offset, rows.physical_offsets[0]
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


STEP_BYTES_MAX = 1 << 20


class LogFollower:
    """Follows the log. `position` is the log offset up to which everything has been dispatched."""

    def __init__(
        self,
        log: CommitLog,
        dispatchers: Sequence[CommitLogDispatcher],
        deleted: DeletedTopics,
        stats: StoreStats,
        *,
        limit: Callable[[], int],
        position: int,
        levels_ms: Sequence[int],
        listener: MessageArrivingListener | None = None,
    ) -> None:
        self.position = position
        self.store_timestamp_ms = 0
        """Store time of the last record dispatched."""
        self._log = log
        self._dispatchers = tuple(dispatchers)
        self._deleted = deleted
        self._stats = stats
        self._limit = limit
        self._levels_ms = tuple(levels_ms)
        self._listener = listener

    @property
    def behind_bytes(self) -> int:
        """Bytes that a step could dispatch now."""
        return max(0, self._limit() - self.position)

    def step(self, max_bytes: int = STEP_BYTES_MAX) -> int:
        """Dispatch the next records, at least one if there is one; return how many there were.

        `position` never passes what could not be dispatched.

        Raises:
            DiskFull: a dispatcher has no room; the step may be repeated.
            StoreDamaged: there is no valid record at `position`.
            QueueGap: the record at `position` does not follow the last entry of its queue.
        """
        limit = self._limit()
        position = self.position
        while position < limit:
            try:
                data, rows = self._scan(position, limit, max_bytes)
            except FileMissing:
                first = self._log.min_offset
                if position >= first:
                    raise
                position = first  # the file has expired: continue after it
                continue
            count = len(rows)
            if count:
                self._dispatch(position, data, rows, count)
                position += rows.consumed
            if rows.stopped_by is not None and rows.stopped_by.status is ScanStatus.BLANK:
                position = self._log.next_file_offset(position)
            self.position = position
            if count:
                return count
        return 0

    def replay(self, from_offset: int, dispatcher: CommitLogDispatcher, *, until: int | None = None) -> int:
        """Give a dispatcher every record from a log offset on that was dispatched; return how many.

        Blocks. Records that have left the log are omitted. Together with the batches dispatched from then on, the
        dispatcher receives everything once.

        Args:
            until: a log offset to end at, also if that was not dispatched.

        Raises:
            StoreDamaged: a record cannot be read; the dispatcher has received those before it.
        """
        end = self.position if until is None else until
        reader = LogFollower(
            self._log,
            [dispatcher],
            self._deleted,
            StoreStats(),
            limit=lambda: end,
            position=max(from_offset, self._log.min_offset),
            levels_ms=self._levels_ms,
        )
        records = 0
        while count := reader.step():
            records += count
        return records

    def _scan(self, position: int, limit: int, max_bytes: int) -> tuple[bytes, DispatchRows]:
        available = min(limit, self._log.next_file_offset(position)) - position
        size = min(available, max_bytes)
        while True:
            data = self._log.read(position, size)
            rows = scan_dispatch(data, base_physical_offset=position, levels_ms=self._levels_ms)
            stop = rows.stopped_by
            if rows.consumed or (stop is not None and stop.status is ScanStatus.BLANK):
                return data, rows
            assert stop is not None, "a scan ends with a record or a reason"
            if stop.status is ScanStatus.INVALID or size == available:
                self._fail(position, stop.reason)
            # One record is larger than the step: read it alone.
            size = min(available, max(stop.size, 2 * size))

    def _dispatch(self, position: int, data: bytes, rows: DispatchRows, count: int) -> None:
        queues = rows_by_queue(rows, self._deleted if len(self._deleted) else None)
        batch = DispatchBatch(position, position + rows.consumed, data, rows, queues)
        for dispatcher in self._dispatchers:
            dispatcher.dispatch(batch)
        self.position = batch.end_offset
        self.store_timestamp_ms = rows.last_store_timestamp_ms
        stats = self._stats
        stats.dispatched_messages += count
        stats.dispatch_behind_max = max(stats.dispatch_behind_max, self._limit() - position)
        listener = self._listener
        if listener is not None:
            for queue in queues:
                listener.arriving(queue, batch)

    def _fail(self, offset: int, reason: str) -> NoReturn:
        file = self._log.files.find_by_offset(offset)
        assert file is not None, "what is dispatched is in a file"
        raise StoreDamaged(file.path, offset - file.base_offset, f"{reason} (log offset {offset})", REPAIR_REMEDY)


DISPATCH_RETRY_MS = 100
"""How long dispatch waits after it found no room on disk, or no free descriptor."""


class Dispatched(NamedTuple):
    """The state of dispatch when the queues are flushed; replaced as a whole, for the flush thread."""

    position: int
    """Everything before this log offset has been dispatched."""
    store_timestamp_ms: int
    """Store time of the last record dispatched."""
    entries: int
    """Number of entries of all queues."""


class LogDispatch:
    """Drives a `LogFollower`: decides whether and when a failed step is retried."""

    def __init__(
        self,
        follower: LogFollower,
        builder: ConsumeQueueBuilder,
        log: CommitLog,
        flags: RunningFlags,
        stats: StoreStats,
        *,
        clock_ms: Callable[[], int],
        on_event: EventHandler,
    ) -> None:
        self.dispatched = Dispatched(0, 0, 0)
        """What the queues hold now; may be read in any thread."""
        self._follower = follower
        self._builder = builder
        self._log = log
        self._flags = flags
        self._stats = stats
        self._clock_ms = clock_ms
        self._on_event = on_event
        self._failed_ms: int | None = None

    def begin(self, position: int, store_timestamp_ms: int, entries: int) -> None:
        """Continue from where recovery has left the queues."""
        self._follower.position = position
        self._builder.entries = entries
        self.dispatched = Dispatched(position, store_timestamp_ms, entries)

    def drop_entries(self, entries: int) -> None:
        """Note that queues with so many entries were deleted."""
        self._builder.entries -= entries
        self.dispatched = self.dispatched._replace(entries=self.dispatched.entries - entries)

    def reput_step(self, max_bytes: int = STEP_BYTES_MAX) -> int:
        """Dispatch the next records of the log, about `max_bytes` of them; return how many.

        0: everything is dispatched; or the disk is full or no file can be opened (a later call retries); or the next
        record cannot be read, written or synced, which makes the store read-only.
        """
        flags = self._flags
        if flags.read_only_reason is not None and self._stats.dispatch_damage:
            return 0
        failed_ms = self._failed_ms
        if failed_ms is not None and 0 <= self._clock_ms() - failed_ms < DISPATCH_RETRY_MS:
            return 0
        follower = self._follower
        try:
            count = follower.step(max_bytes)
        except DiskFull as error:
            self._failed_ms = self._clock_ms()
            flags.dispatch_wants_space = True
            flags.note_disk_full(error)
            return 0
        except (StoreDamaged, QueueGap, FlushFailed) as error:
            self._stop_dispatch(error)
            return 0
        except OSError as error:
            if not is_out_of_descriptors(error):
                self._stop_dispatch(error)
                return 0
            if failed_ms is None:
                self._on_event("store_out_of_open_files", {"reason": str(error)})
            self._failed_ms = self._clock_ms()
            return 0
        if count:
            self.dispatched = Dispatched(follower.position, follower.store_timestamp_ms, self._builder.entries)
        if failed_ms is not None:
            self._failed_ms = None
            flags.dispatch_wants_space = False
            flags.note_written(self._log.supply.refusal)
        return count

    def _stop_dispatch(self, error: Exception) -> None:
        self._stats.dispatch_damage += 1
        self._flags.become_read_only(str(error))

    def finish(self) -> bool:
        """Dispatch everything, without waiting after a failure; return whether that succeeded."""
        self._failed_ms = None
        while self.is_behind:
            if self.reput_step() == 0 and self.is_behind:
                return False
        return True

    @property
    def is_behind(self) -> bool:
        """Whether the log holds records that can be dispatched and have not been."""
        return self._follower.position < self._log.visible_end()

    @property
    def dispatched_offset(self) -> int:
        """Every record before this log offset has been dispatched."""
        return self._follower.position

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that can be dispatched and have not been."""
        return self._follower.behind_bytes

    def dispatch_is_idle(self) -> bool:
        """Whether a step would do nothing now; also true if dispatch has stopped for good."""
        return self._follower.position >= self._log.visible_end() or self._stats.dispatch_damage > 0
