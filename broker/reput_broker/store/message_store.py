"""The one face of the store: put, get and the steps that services drive (RocketMQ: DefaultMessageStore).

Promise. A message is appended to the log in the page cache; it survives the process from then on, and the machine once
`flush_commit_log` has passed it. The queues are derived from the log by `reput_step` and can be rebuilt from it at any
time, so nothing but the log decides what exists. Assumed of the disk: what `fdatasync` confirmed stays, and anything
written after the last sync may survive or not, page by page, in any order.

Ownership. One thread owns the store and calls everything, with these exceptions: `flush_commit_log`,
`flush_consume_queues`, `write_checkpoint`, `prepare_next_file` and the steps of the cleaners may run in worker threads,
each in one at a time; `read_extents` with `cold=True`, and reading and releasing held extents, in any number of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from reput_broker.store.abort_marker import AbortMarker
from reput_broker.store.checkpoint import FlushMark, StoreCheckpoint
from reput_broker.store.clean_commit_log import CleanCommitLog
from reput_broker.store.clean_consume_queue import CleanConsumeQueue, Follower
from reput_broker.store.commit_log import CommitLog
from reput_broker.store.consume_queue_builder import ConsumeQueueBuilder, QueueGap
from reput_broker.store.consume_queue_table import ConsumeQueueTable
from reput_broker.store.deleted_topics import DeletedTopics
from reput_broker.store.dir_lock import DirectoryLock
from reput_broker.store.dispatch import DispatchBatch, Dispatcher, MessageArrivingListener
from reput_broker.store.errors import (
    DiskFull,
    FlushFailed,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreReadOnly,
)
from reput_broker.store.file_io import is_out_of_descriptors
from reput_broker.store.get_message import (
    ARRAY_THRESHOLD,
    LogWindow,
    clamp_bytes,
    first_damaged,
    select_few,
    select_many,
)
from reput_broker.store.held_extents import HeldExtents
from reput_broker.store.index_file import index_file_size
from reput_broker.store.index_query import QueryResult, query_message
from reput_broker.store.index_service import IndexService
from reput_broker.store.judging import StoreParts
from reput_broker.store.opening import open_parts
from reput_broker.store.options import QUEUE_UNIT_BYTES, StoreOptions
from reput_broker.store.put_checks import encode_records, illegal_record
from reput_broker.store.queues_digest import queues_digest
from reput_broker.store.reput import STEP_BYTES_MAX, Reput
from reput_broker.store.results import (
    ROCKETMQ_LIMITS,
    Extent,
    GetMessageResult,
    PutResult,
    RecoveryReport,
    RunResult,
    TransferLimits,
)
from reput_broker.store.retention import DiskUsage, DiskWatch, RetentionRules
from reput_broker.store.stats import StoreStats
from reput_broker.store.status import GetStatus, PutStatus
from reput_protocol.buffers import Buffer
from reput_protocol.codes import BoundaryType
from reput_protocol.commands import PutMessageHeader
from reput_protocol.errors import InvalidMessage, RecordMalformed
from reput_protocol.filters import TagFilter
from reput_protocol.record import Record
from reput_protocol.record_batch import BLOCK_BYTES_MAX, BlockLimits, check_put_block

ACCESS_IN_MEMORY_PERCENT = 40
"""Records this near to the end of the log, in percent of the machine's memory, count as being in the page cache."""
DISPATCH_RETRY_MS = 100
INDEX_AT_ONCE_BYTES = 64 << 20
"""So much of the log is indexed again while the store opens; more is done beside the running broker."""
TIME_MAX_MS = (1 << 63) - 1
"""How long dispatch waits after it found no room on the disk."""


class MessageStore:
    """The messages of one directory.

    Args:
        options: geometry, durability and limits.
        clock_ms: wall clock in milliseconds, asked once per put.
        listener: told about new messages once they can be read.
        dispatchers: more of what is derived from the log, fed after the queues.
    """

    def __init__(
        self,
        options: StoreOptions,
        *,
        clock_ms: Callable[[], int],
        listener: MessageArrivingListener | None = None,
        dispatchers: Sequence[Dispatcher] = (),
    ) -> None:
        self.options = options
        self.stats = StoreStats()
        self._clock_ms = clock_ms
        self._listener = listener
        self._dispatchers = tuple(dispatchers)
        self._limits = BlockLimits(
            body_bytes_max=options.message_bytes_max,
            block_bytes_max=max(BLOCK_BYTES_MAX, options.message_bytes_max),
        )
        self._memory_bytes = options.memory_bytes * ACCESS_IN_MEMORY_PERCENT // 100
        self._refusal: PutStatus | None = PutStatus.SERVICE_NOT_AVAILABLE
        self._read_only_reason: str | None = None
        self._disk_full_reason: str | None = None
        self._dispatch_failed_ms: int | None = None
        self._dispatch_wants_space = False
        self._disk_refusal: str | None = None
        self._warm_from = 0
        self._is_open = False
        self._make_parts()

    def _make_parts(self) -> None:
        options = self.options
        root = options.data_dir
        self._abort = AbortMarker(root / "abort")
        self._lock = DirectoryLock(root / "lock", self._abort)
        self._checkpoint = StoreCheckpoint(root / "checkpoint")
        self._log = CommitLog(options, self._clock_ms)
        self._queues = ConsumeQueueTable(options.consume_queue_dir, options)
        self._deleted = DeletedTopics(root / "deletedTopics")
        self._index: IndexService | None = None
        if options.index_enabled:
            self._index = IndexService(
                options.index_dir, options.index_slots, options.index_entries, clock_ms=self._clock_ms
            )
        self._index_reader: Reput | None = None
        self._index_has_gap = False
        self._builder = ConsumeQueueBuilder(self._queues, options.filter_bit_maps)
        self._reput = self._make_reput(0)
        self._dispatched = (0, 0, 0)

    def _make_reput(self, position: int) -> Reput:
        return Reput(
            self._log,
            [self._builder, *([] if self._index is None else [self._index]), *self._dispatchers],
            self._deleted,
            self.stats,
            limit=self._readable_end,
            position=position,
            levels_ms=self.options.delay_levels_ms,
            listener=self._listener,
        )

    # -- opening and closing -------------------------------------------------------------------------------

    def open(self) -> RecoveryReport:
        """Lock the directory, recover what is there and accept messages. Blocks for as long as recovery takes.

        Raises:
            StoreLocked: another broker, in this process or another, has the directory.
            ForeignFile: something in it is not ours to understand and would be damaged.
            StoreDamaged: records that had been flushed do not pass their checks.
            DiskFull, FlushFailed: recovery could not be brought to its end; the next start does it again.

        After the first three nothing in the directory has been changed; after any, the lock is free again.
        """
        assert not self._is_open
        started = time.perf_counter()
        self._make_parts()
        self._lock.acquire()
        try:
            report = open_parts(
                StoreParts(
                    self.options,
                    self._log,
                    self._queues,
                    self._checkpoint,
                    self._deleted,
                    self._abort,
                    self._index,
                )
            )
        except BaseException:
            self._release()
            raise
        self._reput = self._make_reput(report.end_offset)
        self._builder.entries = self._queues.entries()
        self._dispatched = (
            report.end_offset,
            self._checkpoint.logics_msg_timestamp_ms,
            self._builder.entries,
        )
        self._warm_from = report.checked_from
        self._read_only_reason = self._disk_full_reason = self._dispatch_failed_ms = None
        self._dispatch_wants_space = False
        self._disk_refusal = None
        self._refusal = None
        self._is_open = True
        if self._index is not None:
            self._complete_index(self._index, report.end_offset)
        return report._replace(duration_s=time.perf_counter() - started)

    def close(self) -> bool:
        """Flush, dispatch and sync everything and release the directory. Blocks. Safe to call twice.

        Returns:
            Whether all of it succeeded. Otherwise `abort` stays, and the next start recovers the directory.
        """
        if not self._is_open:
            return self._read_only_reason is None
        self._refusal = PutStatus.SERVICE_NOT_AVAILABLE
        self._is_open = False
        try:
            in_order = self._finish()
            if in_order:
                self._abort.remove()
        finally:
            self._release()
        return in_order

    def _finish(self) -> bool:
        try:
            self.flush_commit_log()
            self._dispatch_failed_ms = None
            while self._dispatch_behind:
                if self.reput_step() == 0 and self._dispatch_behind:
                    return False
            self.flush_consume_queues()
            end = self._log.max_offset
            mark = FlushMark(end, end, queues_digest(self._queues))
            if self._index is not None:
                self._index.settle()
                self._index.flush_full_files()
                self._index.flush()
                self._checkpoint.index_msg_timestamp_ms = self._index.full_until_ms
                if not self._index_has_gap:  # with one it is tried anew at the next start
                    mark = mark._replace(index_offset=self._index.position, index_digest=self._index.digest)
            self._checkpoint.mark = mark
            self._checkpoint.flush()
        except (StoreError, OSError) as error:
            self._become_read_only(str(error))
        return self._read_only_reason is None

    def _release(self) -> None:
        self._log.files.close()
        self._queues.close()
        if self._index is not None:
            self._index.close()
        self._checkpoint.close()
        self._lock.release()

    @property
    def is_open(self) -> bool:
        """Whether messages can be read."""
        return self._is_open

    @property
    def is_writable(self) -> bool:
        """Whether puts of any size are accepted, as far as the last attempts to write could tell."""
        return self._refusal is None and self.disk_full_reason is None

    @property
    def read_only_reason(self) -> str | None:
        """Why puts are refused as READ_ONLY until the broker is restarted; None while they are not."""
        return self._read_only_reason

    @property
    def disk_full_reason(self) -> str | None:
        """What could not be written for want of space, or why nothing may be; None while there is space.

        Clears by itself.
        """
        return self._disk_refusal or self._disk_full_reason

    def stop_writing(self, reason: str) -> None:
        """Take no more puts until the broker is restarted; the first reason stands."""
        self._become_read_only(reason)

    def refuse_for_disk(self, reason: str | None) -> None:
        """Refuse puts as DISK_FULL from now on because the disk is too full, or, with None, no longer.

        (RocketMQ: RunningFlags, disk full.) Reading and dispatching go on.
        """
        before, self._disk_refusal = self._disk_refusal, reason
        if reason is not None and before is None:
            self.options.on_event("store_disk_above_limit", {"reason": reason})
        elif reason is None and before is not None:
            self.options.on_event("store_disk_below_limit", {})

    def _become_read_only(self, reason: str) -> None:
        """Take no more puts; the first reason stands."""
        if self._read_only_reason is None:
            self._read_only_reason = reason
            self.options.on_event("store_read_only", {"reason": reason})
        if self._refusal is not PutStatus.SERVICE_NOT_AVAILABLE:
            self._refusal = PutStatus.READ_ONLY

    def _note_disk_full(self, error: DiskFull) -> None:
        self.stats.disk_full += 1
        if self._disk_full_reason is None:
            self.options.on_event(
                "store_disk_full", {"path": str(error.path), "needed_bytes": error.needed_bytes}
            )
        self._disk_full_reason = str(error)

    def _note_space(self) -> None:
        waiting = self._dispatch_wants_space or self._log.waits_for_space
        if self._disk_full_reason is not None and not waiting:
            self._disk_full_reason = None
            self.options.on_event("store_has_space_again", {})

    # -- putting -------------------------------------------------------------------------------------------

    def put_block(
        self, block: bytearray, *, topic: str, queue_id: int, count: int, born_host: bytes
    ) -> PutResult:
        """Store a block of `count` encoded records of one queue as a whole.

        Never waits for the disk, unless a file must be made (`needs_new_file`).

        Args:
            block: the records back to back, as a producer encodes them; the broker's fields are filled in in place.
            topic: the topic that every record must name.
            queue_id: the queue that every record must name.
            count: how many records the block must hold.
            born_host: the peer as 4 address bytes and a 4-byte port.

        Raises:
            RecordMalformed: the block breaks a rule; it names the first bad record. Nothing was stored.
            InvalidMessage: no record can hold this topic.
        """
        if self._refuses_now:
            return self._refused(self._refusal or PutStatus.DISK_FULL)
        check = check_put_block(block, topic=topic, queue_id=queue_id, count=count, limits=self._limits)
        size = len(block)
        if not self._log.fits(size):
            return self._refused(PutStatus.MESSAGE_ILLEGAL)
        try:
            result = self._log.append_block(block, check, topic, queue_id, count, born_host)
        except DiskFull as error:
            self._note_disk_full(error)
            return self._refused(PutStatus.DISK_FULL)
        if self._disk_full_reason is not None:
            self._note_space()
        stats = self.stats
        stats.put_blocks += 1
        stats.put_messages += count
        stats.put_bytes += size
        return result

    def put_run(
        self, headers: Sequence[PutMessageHeader], blocks: Sequence[Buffer], born_host: bytes
    ) -> RunResult | None:
        """Store several blocks together if there is nothing to say against any of them and they fit into the file.

        Otherwise None, and nothing was stored: offer them one by one to `put_block`, which judges each.

        Args:
            headers: topic, queue and number of records of each block.
            blocks: as for `put_block`, but not changed.
            born_host: the peer that sent them all, as for `put_block`.
        """
        if self._refuses_now or self._disk_full_reason is not None:
            return None
        size = sum(map(len, blocks))
        if not self._log.has_room(size):
            return None
        limits = self._limits
        try:
            checks = [
                check_put_block(
                    block, topic=header.topic, queue_id=header.queue_id, count=header.count, limits=limits
                )
                for header, block in zip(headers, blocks, strict=True)
            ]
        except (RecordMalformed, InvalidMessage):
            return None
        result = self._log.append_run(headers, blocks, checks, born_host)
        stats = self.stats
        stats.put_blocks += len(blocks)
        stats.put_messages += sum([header.count for header in headers])
        stats.put_bytes += size
        return result

    def put_record(self, record: Record) -> PutResult:
        """Store one message whose record the broker composed; its offsets and store timestamp are set here."""
        return self.put_records((record,))

    def put_records(self, records: Sequence[Record]) -> PutResult:
        """Store messages of one topic and queue contiguously, in one file, all or none (RocketMQ: putMessages).

        Prepared and rolled back transaction records get queue offset 0 and no queue entry.
        """
        if self._refuses_now:
            return self._refused(self._refusal or PutStatus.DISK_FULL)
        options = self.options
        illegal = illegal_record(records, options.message_bytes_max, with_crc=options.record_crc)
        if illegal is not None:
            return self._refused(illegal)
        encoded = encode_records(records, options.host, with_crc=options.record_crc)
        if not self._log.fits(sum(map(len, encoded))):
            return self._refused(PutStatus.MESSAGE_ILLEGAL)
        try:
            result = self._log.append_records(encoded, records)
        except DiskFull as error:
            self._note_disk_full(error)
            return self._refused(PutStatus.DISK_FULL)
        self._note_space()
        stats = self.stats
        stats.put_blocks += 1
        stats.put_messages += len(records)
        stats.put_bytes += result.end_offset - result.physical_offset
        return result

    def _refused(self, status: PutStatus) -> PutResult:
        self.stats.put_refused += 1
        return PutResult(status)

    @property
    def _refuses_now(self) -> bool:
        """Whether a put is refused whatever it is."""
        return self._refusal is not None or self._dispatch_wants_space or self._disk_refusal is not None

    def needs_new_file(self, size: int) -> bool:
        """Whether a put of `size` bytes would have to make a log file, which blocks.

        Then call `prepare_next_file` in a thread first. False if the put would be refused all the same.
        """
        return self._log.needs_new_file(size) and not self._refuses_now

    def should_prepare_next_file(self) -> bool:
        """Whether the log file, or index file, in use is at least half full, the next not made, and puts are taken."""
        if not self._is_open or self._refuses_now:
            return False
        index = self._index
        return self._log.should_prepare_next_file() or (
            index is not None and index.should_prepare_next_file()
        )

    def prepare_next_file(self) -> None:
        """Make the next files of log and index ahead of need. Blocks; may run in a worker thread.

        Raises:
            DiskFull: there is no room; puts go on while the file in use has room.
        """
        try:
            made = self._log.prepare_next_file()
        except DiskFull as error:
            self._note_disk_full(error)
            raise
        if made:
            self.stats.files_prepared += 1
        if self._index is not None and self._index.should_prepare_next_file():
            self._index.prepare_next_file()

    # -- getting -------------------------------------------------------------------------------------------

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        tag_filter: TagFilter | None = None,
        *,
        limits: TransferLimits = ROCKETMQ_LIMITS,
    ) -> GetMessageResult:
        """Find the messages of a queue from a queue offset on (RocketMQ: DefaultMessageStore.getMessage).

        The first matching message is taken whatever its size; then whatever of `max_messages`, `max_bytes` and
        `limits` is reached first ends the result, and so do the end of a queue file and the number of entries that
        one call may scan.

        Raises:
            StoreClosed: the store is not open.
            StoreDamaged: an entry of the queue points to where no record can be.
        """
        if not self._is_open:
            raise StoreClosed(f"the store in {self.options.data_dir} is not open")
        stats = self.stats
        stats.get_calls += 1
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return GetMessageResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = queue.min_queue_offset, queue.max_queue_offset
        if high == 0:
            return GetMessageResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return GetMessageResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset >= high:
            if offset == high:
                return GetMessageResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
            return GetMessageResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)

        wanted = max(1, max_messages)
        if tag_filter is None or tag_filter.matches_all:
            entries = min(wanted, limits.memory_messages)
        else:
            entries = max(limits.scan_bytes // QUEUE_UNIT_BYTES, wanted)
        units = queue.read_units(offset, entries)
        if not len(units):
            low = queue.min_queue_offset
            if offset < low:  # expired since it was looked at above
                return GetMessageResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
            return GetMessageResult(GetStatus.OFFSET_FOUND_NULL, queue.roll_next_file(offset), low, high)
        if tag_filter is not None and not tag_filter.matches_all:
            units = queue.with_tags_codes(units)
        log_end = self._log.max_offset
        window = LogWindow(self._log.min_offset, log_end, log_end - self._memory_bytes)
        max_bytes = clamp_bytes(max_bytes)
        if len(units) < ARRAY_THRESHOLD:
            selection = select_few(units.tolist(), window, wanted, max_bytes, tag_filter, limits)
        else:
            selection = select_many(units, window, wanted, max_bytes, tag_filter, limits)
        next_begin = offset + selection.scanned
        if selection.missing and (damaged := first_damaged(units[: selection.scanned], window)) is not None:
            raise queue.damaged(offset + damaged)
        if not selection.taken:
            status = GetStatus.MESSAGE_WAS_REMOVING if selection.missing else GetStatus.NO_MATCHED_MESSAGE
            return GetMessageResult(status, next_begin, low, high)
        extents = selection.extents
        cold = extents[0].physical_offset < max(window.memory_from, self._warm_from)
        stats.get_found += 1
        stats.get_messages += selection.taken
        stats.get_bytes += selection.size
        stats.get_cold += cold
        return GetMessageResult(
            GetStatus.FOUND, next_begin, low, high, selection.taken, selection.size, extents, cold
        )

    def read_extents(self, extents: Sequence[Extent], *, cold: bool = False) -> bytes:
        """The bytes of the extents, joined: a copy, valid for as long as the caller likes.

        With `cold` by positional reads, which no other thread waits for; callable from any thread.

        Raises:
            FileMissing, StoreClosed: the file has been deleted since, or the store closed.
        """
        if cold:
            with HeldExtents(self._log, extents) as held:
                return held.read()
        read = self._log.read
        if len(extents) == 1:
            return read(*extents[0])
        return b"".join([read(physical_offset, size) for physical_offset, size in extents])

    def hold_extents(self, extents: Sequence[Extent]) -> HeldExtents:
        """Keep the files of the extents, whatever is deleted meanwhile, to read them in another thread.

        Raises:
            FileMissing: one has been deleted since they were found; find them again.
        """
        return HeldExtents(self._log, extents)

    def min_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """The queue offset of the first message that is still there, 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.min_queue_offset

    def max_offset_in_queue(self, topic: str, queue_id: int) -> int:
        """The queue offset that the next readable message gets, 0 for an unknown queue."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_queue_offset

    def offset_by_timestamp(
        self, topic: str, queue_id: int, timestamp_ms: int, boundary: BoundaryType = BoundaryType.LOWER
    ) -> int:
        """The queue offset that a store time leads to (RocketMQ: getOffsetInQueueByTime).

        LOWER: the first message stored at or after the time, the end of the queue if there is none. UPPER: the last
        one stored at or before it. 0 for an unknown queue.
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

    def nearest_offset_by_timestamp(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The queue offset of the message stored nearest to a time (RocketMQ 4.x: getOffsetInQueueByTime).

        No request asks for it: `SEARCH_OFFSET_BY_TIMESTAMP` means `offset_by_timestamp`. It is for those who compare
        with what an old broker answered. `consume_queue_search.nearest_offset_by_timestamp` tells the rule. 0 for an
        unknown queue.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return 0
        return queue.nearest_offset_by_timestamp(timestamp_ms, self._store_time_of, self._log.min_offset)

    def _store_time_of(self, physical_offset: int, size: int) -> int:
        del size
        return self._log.store_timestamp_at(physical_offset)

    def earliest_message_time(self, topic: str, queue_id: int) -> int:
        """The store time of the first message that is still there, in milliseconds; -1 if there is none."""
        return self.store_timestamp(topic, queue_id, self.min_offset_in_queue(topic, queue_id))

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """The store time of one message in milliseconds, -1 if there is no such message."""
        physical_offset = self._physical_offset_of(topic, queue_id, offset)
        return -1 if physical_offset is None else self._log.store_timestamp_at(physical_offset)

    def message_at(self, physical_offset: int) -> bytes | None:
        """The whole record that starts at a log offset, checked; None if no readable record starts there."""
        return self._log.message_at(physical_offset, self._readable_end())

    def query_message(
        self, topic: str, key: str, max_messages: int, begin_ms: int = 0, end_ms: int = TIME_MAX_MS
    ) -> QueryResult:
        """Find messages by unique id or key, newest first (RocketMQ: DefaultMessageStore.queryMessage).

        Reads the disk where it has to: call it in a worker thread. What was dispatched a moment ago may be put off:
        `settle_index` first, in the thread that dispatches.

        Raises:
            StoreClosed: the store is not open.
        """
        if not self._is_open:
            raise StoreClosed(f"the store in {self.options.data_dir} is not open")
        if self._index is None:
            return QueryResult((), 0, 0, is_complete=False)
        end = self._readable_end()
        found = query_message(
            self._log, self._index, self._deleted, topic, key, max_messages, begin_ms, end_ms, end
        )
        return found._replace(is_complete=found.is_complete and not self._index_has_gap)

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a message lies within 40 % of the machine's memory of the end of the log (RocketMQ's estimate)."""
        physical_offset = self._physical_offset_of(topic, queue_id, offset)
        return physical_offset is not None and self._log.max_offset - physical_offset <= self._memory_bytes

    def _physical_offset_of(self, topic: str, queue_id: int, offset: int) -> int | None:
        queue = self._queues.get(topic, queue_id)
        unit = None if queue is None else queue.get_unit(offset)
        return None if unit is None else unit.physical_offset

    def _readable_end(self) -> int:
        """Under SYNC_FLUSH nobody sees what a power cut could take back."""
        return self._log.flushed_offset if self.options.flush_sync else self._log.max_offset

    # -- steps driven by services --------------------------------------------------------------------------

    def reput_step(self, max_bytes: int = STEP_BYTES_MAX) -> int:
        """Dispatch what the log holds beyond the last step, about `max_bytes` of it; return how many records.

        0 means that there is nothing to do now: everything is dispatched, the disk is full or no file can be opened
        (dispatch tries again by itself, a moment later), or what comes next cannot be read, written or synced. The last
        three make the store read-only: what was put behind could not be consumed.
        """
        if self._read_only_reason is not None and self.stats.dispatch_damage:
            return 0
        failed_ms = self._dispatch_failed_ms
        if failed_ms is not None and 0 <= self._clock_ms() - failed_ms < DISPATCH_RETRY_MS:
            return 0
        reput = self._reput
        try:
            count = reput.step(max_bytes)
        except DiskFull as error:
            self._dispatch_failed_ms = self._clock_ms()
            self._dispatch_wants_space = True
            self._note_disk_full(error)
            return 0
        except (StoreDamaged, QueueGap, FlushFailed) as error:
            self.stats.dispatch_damage += 1
            self._become_read_only(str(error))
            return 0
        except OSError as error:
            if is_out_of_descriptors(error):
                if failed_ms is None:
                    self.options.on_event("store_out_of_open_files", {"reason": str(error)})
                self._dispatch_failed_ms = self._clock_ms()
            else:
                self.stats.dispatch_damage += 1
                self._become_read_only(str(error))
            return 0
        if count:
            self._dispatched = (reput.position, reput.store_timestamp_ms, self._builder.entries)
        if failed_ms is not None:
            self._dispatch_failed_ms = None
            self._dispatch_wants_space = False
            self._note_space()
        return count

    def _complete_index(self, index: IndexService, end_offset: int) -> None:
        """Index again what the index lacks: now if that is little, otherwise in steps beside everything else."""
        start = max(index.resume_from, self._log.min_offset)
        if start >= end_offset:
            return
        index.is_behind = True
        self._index_reader = Reput(
            self._log,
            [_IndexAlone(index)],
            self._deleted,
            StoreStats(),
            limit=lambda: self._reput.position,
            position=start,
            levels_ms=self.options.delay_levels_ms,
        )
        if end_offset - start <= INDEX_AT_ONCE_BYTES:
            while self.index_step():
                pass
        else:
            self.options.on_event("index_behind", {"from_offset": start, "to_offset": end_offset})

    def settle_index(self) -> None:
        """Have everything that was dispatched found by key from now on. In the thread that dispatches.

        Raises:
            DiskFull: there is no room for a new index file; it may be tried again.
        """
        if self._index is not None:
            self._index.settle()

    def index_step(self, max_bytes: int = STEP_BYTES_MAX) -> int:
        """Index about `max_bytes` of what the index lacks after a crash; return how many records. 0: it lacks nothing.

        Where the log cannot be read, which a start need not have noticed so far back, nobody can say what follows: the
        index then goes on with new messages, and every query says that messages may be missing.

        Raises:
            DiskFull: there is no room for a new index file; the step may be repeated.
        """
        reader, index = self._index_reader, self._index
        if reader is None or index is None:
            return 0
        try:
            count = reader.step(max_bytes)
        except StoreDamaged as damage:
            self._index_reader = None
            self._index_has_gap = True
            index.is_behind = False
            self.options.on_event("index_incomplete", {"reason": str(damage)})
            return 0
        if not count:
            # From here on every batch that is dispatched is indexed as well.
            self._index_reader = None
            index.is_behind = False
            self.options.on_event("index_complete", {"offset": index.position})
        return count

    @property
    def index_behind_bytes(self) -> int:
        """Bytes of the log whose keys are not in the index yet although they are in the queues."""
        return 0 if self._index_reader is None else self._index_reader.behind_bytes

    def flush_index(self) -> None:
        """Bring index files that have become full to the disk, and say so in the checkpoint. Blocks.

        Raises:
            StoreReadOnly: the sync failed. The index can be made again, but this process must not go on.
        """
        if self._index is None:
            return
        try:
            if self._index.flush_full_files():
                self._checkpoint.index_msg_timestamp_ms = self._index.full_until_ms
                self._checkpoint.flush()
        except (StoreError, OSError) as error:
            self._become_read_only(str(error))
            raise StoreReadOnly(str(error)) from error

    @property
    def _dispatch_behind(self) -> bool:
        return self._reput.position < self._readable_end()

    @property
    def dispatched_offset(self) -> int:
        """Every record before this log offset has been dispatched."""
        return self._reput.position

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that could be dispatched and have not been."""
        return self._reput.behind_bytes

    @property
    def dispatch_idle(self) -> bool:
        """Whether a reput step now would find nothing to do; true too when dispatch stands still for good."""
        return not self._dispatch_behind or self.stats.dispatch_damage > 0

    def flush_commit_log(self) -> int:
        """Sync the log and return the offset up to which it is durable. Blocks; one thread at a time.

        Raises:
            StoreReadOnly: the sync failed, now or earlier. What had been flushed is safe; what had not may be lost,
                and the store takes no more puts.
        """
        if self._read_only_reason is not None and self.stats.flush_failures:
            raise StoreReadOnly(self._read_only_reason)
        log = self._log
        before = log.flushed_offset
        stored_ms = log.last_store_timestamp_ms
        if log.max_offset == before:
            return before
        started = time.perf_counter_ns()
        stats = self.stats
        try:
            flushed = log.files.flush()
            if stored_ms:
                self._checkpoint.physic_msg_timestamp_ms = stored_ms
            self._checkpoint.move_mark(flushed_offset=flushed)
            self._checkpoint.write()
        except DiskFull as error:  # the checkpoint exists and is only overwritten, so this is a broken disk
            stats.flush_failures += 1
            self._become_read_only(str(error))
            raise StoreReadOnly(str(error)) from error
        except (StoreError, OSError) as error:
            stats.flush_failures += 1
            self._become_read_only(str(error))
            raise StoreReadOnly(str(error)) from error
        stats.flushes += 1
        stats.flushed_bytes += flushed - before
        stats.flush_duration_us += (time.perf_counter_ns() - started) // 1000
        return flushed

    @property
    def flushed_offset(self) -> int:
        """The log is durable up to here."""
        return self._log.flushed_offset

    @property
    def max_physical_offset(self) -> int:
        """Where the log ends."""
        return self._log.max_offset

    @property
    def min_physical_offset(self) -> int:
        """Where the log begins."""
        return self._log.min_offset

    @property
    def flush_behind_bytes(self) -> int:
        """Bytes of the log that are not durable yet."""
        return max(0, self._log.max_offset - self._log.flushed_offset)

    def is_able_to_flush(self, least_pages: int) -> bool:
        """Whether a file of the log is full and unsynced, or has at least so many unsynced pages of 4096 bytes.

        (RocketMQ: DefaultMappedFile.isAbleToFlush.) With 0, whether anything is unsynced.
        """
        return self._log.is_able_to_flush(least_pages)

    def flush_consume_queues(self, least_pages: int = 0) -> bool:
        """Sync what was dispatched before the call. Blocks; one thread at a time.

        Args:
            least_pages: leave out queues with fewer unsynced pages than this, unless a file of theirs is full. While
                any is left out, recovery has to read the log from where it was.

        Returns:
            Whether none was left out.

        Raises:
            StoreReadOnly: the sync failed. The queues can be rebuilt, but this process must not go on.
            OSError: no file could be opened for want of descriptors; nothing has changed.
        """
        position, stored_ms, entries = self._dispatched
        try:
            is_complete = self._queues.flush(least_pages)
        except (StoreError, OSError) as error:
            if isinstance(error, OSError) and is_out_of_descriptors(error):
                raise  # nothing has failed: the next call does it
            self._become_read_only(str(error))
            raise StoreReadOnly(str(error)) from error
        self.stats.consume_queue_flushes += 1
        if not is_complete:
            return False
        checkpoint = self._checkpoint
        checkpoint.logics_msg_timestamp_ms = max(checkpoint.logics_msg_timestamp_ms, stored_ms)
        checkpoint.move_mark(queues_offset=position, entries=entries)
        return True

    def write_checkpoint(self) -> None:
        """Bring the checkpoint to the disk. Blocks; one thread at a time.

        Raises:
            StoreReadOnly: the sync failed.
            OSError: no descriptor was to be had; nothing has changed.
        """
        try:
            self._checkpoint.flush()
        except (StoreError, OSError) as error:
            if isinstance(error, OSError) and is_out_of_descriptors(error):
                raise  # nothing has failed: the next call does it
            self._become_read_only(str(error))
            raise StoreReadOnly(str(error)) from error
        self.stats.checkpoints += 1

    # -- retention -------------------------------------------------------------------------------------------

    def cleaners(
        self,
        rules: Callable[[], RetentionRules],
        *,
        monotonic_ms: Callable[[], int],
        local_hour: Callable[[], int],
        disk_usage: DiskUsage,
    ) -> tuple[CleanCommitLog, CleanConsumeQueue]:
        """What deletes expired files of the open store: of the log, then of what follows it. Steps may run in a worker.

        Args:
            rules: asked by every step.
            monotonic_ms: clock for intervals; files age by the store's wall clock.
            local_hour: the hour of the day, 0 to 23.
            disk_usage: looks at the disk that holds a directory.
        """
        options = self.options
        log_cleaner = CleanCommitLog(
            self._log.files,
            rules,
            DiskWatch(disk_usage, [options.commit_log_dir], options.consume_queue_dir),
            deletable_end=self._deletable_end,
            clock_ms=self._clock_ms,
            monotonic_ms=monotonic_ms,
            local_hour=local_hour,
        )
        followers = []
        if self._index is not None:
            index_file_bytes = index_file_size(options.index_slots, options.index_entries)
            followers.append(Follower("index", self._index, index_file_bytes))
        queue_cleaner = CleanConsumeQueue(
            self._queues,
            min_physical_offset=lambda: self._log.min_offset,
            kept_offset=lambda: self._log.files.min_offset,
            queue_file_size=options.consume_queue_file_size,
            followers=followers,
        )
        return log_cleaner, queue_cleaner

    def _deletable_end(self) -> int:
        """Records before this log offset are on the disk, and so are their queue entries."""
        mark = self._checkpoint.mark
        return 0 if mark is None else min(mark.flushed_offset, mark.queues_offset)

    # -- topics --------------------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> int:
        """Delete the queues of a topic; return how many there were. Durable on return.

        Its records stay in the log until their file expires, but no recovery brings them back. A topic of that name
        begins again at queue offset 0.

        Raises:
            StoreReadOnly, StoreClosed: the store does not write.
        """
        if not self._is_open:
            raise StoreClosed(f"the store in {self.options.data_dir} is not open")
        if self._read_only_reason is not None:
            raise StoreReadOnly(self._read_only_reason)
        self._deleted.add(topic, self._log.max_offset)
        for key in [key for key in self._log.next_queue_offsets if key[0] == topic]:
            del self._log.next_queue_offsets[key]
        deleted = self._queues.delete_topic(topic)
        self._builder.entries = self._queues.entries()
        position, stored_ms, _ = self._dispatched
        self._dispatched = (position, stored_ms, self._builder.entries)
        return deleted

    def queues(self) -> list[tuple[str, int]]:
        """Every (topic, queue id) that has a queue."""
        return [(queue.topic, queue.queue_id) for queue in self._queues]


class _IndexAlone:
    """Feeds the index what it lacks, which its own `dispatch` leaves to this."""

    def __init__(self, index: IndexService) -> None:
        self._index = index

    def dispatch(self, batch: DispatchBatch) -> None:
        self._index.apply(batch)
