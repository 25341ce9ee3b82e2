"""The store's API: put, get, and the steps that services drive (RocketMQ: DefaultMessageStore).

Durability. An appended message is in the page cache and survives the process; it survives the machine once
`flush_commit_log` has passed it. (With a pool of buffers it survives the process once `commit_buffers` has passed it.)
The queues are derived from the log by `reput_step` and can be rebuilt, so only the log decides which messages exist.
Assumed of the disk: what `fdatasync` confirmed stays; later writes may survive or not, page by page, in any order.

Threads. One thread owns the store and makes all calls, with these exceptions: `commit_buffers`, `flush_commit_log`,
`flush_consume_queues`, `write_checkpoint`, `prepare_next_file`, `make_log_file`, `unlock_full_files` and the steps of
the cleaners may run in worker threads, each in one at a time; what has an argument `cold` and gets it, held extents,
look-ups by key and filtered gets, in any number of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from reput_broker.store.base.checkpoint import FlushMark, StoreCheckpoint
from reput_broker.store.base.dispatch import CommitLogDispatcher, DeletedTopics, MessageArrivingListener
from reput_broker.store.base.errors import (
    DirectoryLost,
    DiskFull,
    FileMissing,
    FileNotMade,
    StoreError,
    directory_refusals,
)
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import RecoveryReport, StoreStats
from reput_broker.store.base.running_flags import RunningFlags
from reput_broker.store.index.query import KeyLookup
from reput_broker.store.index.service import IndexService, StoreIndex
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.log.walk import last_record_ending_by
from reput_broker.store.message_reader import MessageReader
from reput_broker.store.message_writer import MessageWriter, StoreFlush
from reput_broker.store.opening.judgement import StoreParts
from reput_broker.store.opening.lock import AbortMarker, DirectoryLock, checked_path
from reput_broker.store.opening.start import open_parts, truncate_tail
from reput_broker.store.queue.reput import ConsumeQueueBuilder, LogDispatch, LogFollower, ReplicaQueueBuilder
from reput_broker.store.queue.table import ConsumeQueueTable, QueueOffsets, queues_digest
from reput_broker.store.retention import StoreCleaners
from reput_protocol.record.layout import BLANK_BYTES, encode_blank

T = TypeVar("T")

ACCESS_IN_MEMORY_PERCENT = 40
"""How close to the log's end records count as in the page cache, in percent of the memory."""


class MessageStore:
    """The messages of one directory. Most methods are those of its parts: `_show_methods` lists them by file.

    Args:
        options: geometry, durability and limits.
        clock_ms: wall clock, read once per put.
        listener: notified of new messages once they can be read.
        dispatchers: more dispatchers, fed after the queues.
    """

    def __init__(
        self,
        options: StoreOptions,
        *,
        clock_ms: Callable[[], int],
        listener: MessageArrivingListener | None = None,
        dispatchers: Sequence[CommitLogDispatcher] = (),
    ) -> None:
        self.options = self._hold_paths(options)
        self.stats = StoreStats()
        self._clock_ms = clock_ms
        self._listener = listener
        self._dispatchers = tuple(dispatchers)
        self._flags = RunningFlags(self.options, self.stats)
        self._on_appended: Callable[[int], object] = lambda _: None
        self._make_parts()

    def _make_parts(self) -> None:
        """Called again at each opening."""
        options, clock_ms = self.options, self._clock_ms
        self._is_lost = False
        self.last_record_offset = -1
        """Where the last record of the log that a start has checked starts; -1 if there is none."""
        root = options.data_dir
        self._abort = AbortMarker(root / "abort")
        directories = (*options.log_dirs, *options.read_only_commit_log_dirs)
        self._lock = DirectoryLock(
            root / "lock", self._abort, directories, options.writable_log_dirs, options.on_event, self._note_lost
        )
        self._checkpoint = StoreCheckpoint(root / "checkpoint")
        self._log = CommitLog(options, clock_ms)
        self._log.on_appended = self._on_appended
        self._queues = ConsumeQueueTable(options.consume_queue_dir, options)
        self._deleted = DeletedTopics(root / "deletedTopics")
        self._index: IndexService | None = None
        if options.index_enabled:
            self._index = IndexService(
                options.index_dir,
                options.index_slots,
                options.index_entries,
                clock_ms=clock_ms,
                open_max=options.index_files_open_max,
            )
        self._combine_parts()

    def _hold_paths(self, options: StoreOptions) -> StoreOptions:

        def held(path: Path) -> Path:
            return checked_path(path, lambda: self._lock.check())

        return replace(
            options,
            data_dir=held(options.data_dir),
            commit_log_dirs=tuple(map(held, options.commit_log_dirs)),
            read_only_commit_log_dirs=tuple(map(held, options.read_only_commit_log_dirs)),
        )

    def _note_lost(self, error: DirectoryLost | FileMissing) -> None:
        is_first, self._is_lost = not self._is_lost, True
        if is_first:
            self.options.on_event("store_directory_lost", {"path": str(error.path), "reason": str(error)})
            self._flags.become_read_only(str(error))

    def _combine_parts(self) -> None:
        options, log, queues, flags, stats = self.options, self._log, self._queues, self._flags, self.stats
        memory_bytes = options.memory_bytes * ACCESS_IN_MEMORY_PERCENT // 100
        kind = ReplicaQueueBuilder if options.is_replica else ConsumeQueueBuilder
        builder = kind(queues, options.filter_bit_maps)
        self._key_index = StoreIndex(
            self._index,
            log,
            self._deleted,
            self._checkpoint,
            flags,
            dispatched_offset=lambda: self._dispatch.dispatched_offset,
            options=options,
        )
        self._follower = LogFollower(
            log,
            [builder, self._key_index, *self._dispatchers],
            self._deleted,
            stats,
            limit=log.visible_end,
            position=0,
            levels_ms=options.delay_levels_ms,
            listener=self._listener,
        )
        self._writer = MessageWriter(options, log, self._index, flags, stats)
        self._reader = MessageReader(log, queues, flags, stats, memory_bytes)
        self._offsets = QueueOffsets(log, queues, memory_bytes)
        self._key_lookup = KeyLookup(self._index, log, self._deleted, flags, has_gap=lambda: self._key_index.has_gap)
        self._dispatch = dispatch = LogDispatch(
            self._follower, builder, log, flags, stats, clock_ms=self._clock_ms, on_event=options.on_event
        )
        self._flush = StoreFlush(log, queues, self._checkpoint, dispatch, flags, stats, self.check_directories)
        self._cleaners = StoreCleaners(options, log, queues, self._index, self._checkpoint, clock_ms=self._clock_ms)
        self._show_methods()

    def _show_methods(self) -> None:
        """Make the methods of the parts methods of the store."""
        # Condition (base/running_flags.py)
        self.stop_writing = self._flags.become_read_only
        self.refuse_for_disk = self._flags.refuse_for_disk

        # Putting (message_writer.py)
        self.put = self._writer.put
        self.put_one = self._writer.put_one
        self.block_of = self._writer.block_of
        self.put_record = self._writer.put_record
        self.put_records = self._writer.put_records
        self.put_encoded = self._writer.put_encoded
        self.append_replicated = self._writer.append_replicated
        self.needs_new_file = self._writer.needs_new_file
        self.should_prepare_next_file = self._writer.should_prepare_next_file
        self.prepare_next_file = self._writer.prepare_next_file
        self.make_log_file = self._writer.make_log_file
        self.note_file_wait = self._log.note_file_wait
        self.want_file = self._writer.want_file
        self.when_file_wanted = self._writer.when_file_wanted

        # Getting (message_reader.py, queue/table.py, index/query.py)
        self.get_message = self._reader.get_message
        self.get_filtered = self._reader.get_filtered
        self.count_get = self._reader.count
        self.read_extents = self._reader.read_extents
        self.is_resident = self._reader.is_resident
        self.hold_extents = self._reader.hold_extents
        self.message_at = self._reader.message_at
        self.oldest_store_timestamp = self._reader.oldest_store_timestamp
        self.min_offset_in_queue = self._offsets.min_offset_in_queue
        self.max_offset_in_queue = self._offsets.max_offset_in_queue
        self.durable_max_offset_in_queue = self._offsets.durable_max_offset_in_queue
        self.offset_by_timestamp = self._offsets.offset_by_timestamp
        self.earliest_message_time = self._offsets.earliest_message_time
        self.store_timestamp = self._offsets.store_timestamp
        self.estimated_bytes = self._offsets.estimated_bytes
        self.queue_units = self._offsets.queue_units
        self.is_in_memory = self._offsets.is_in_memory
        self.query_message = self._key_lookup.query_message
        self.find_by_unique_key = self._key_lookup.find_by_unique_key
        self.find_replays = self._key_lookup.find_replays

        # Steps that services drive (queue/reput.py, index/service.py, message_writer.py)
        self.reput_step = self._dispatch.reput_step
        self.dispatch_is_idle = self._dispatch.dispatch_is_idle
        self.replay = self._follower.replay
        self.index_step = self._key_index.index_step
        self.complete_index = self._key_index.complete_index
        self.flush_index = self._key_index.flush_index
        self.is_able_to_commit = self._log.is_able_to_commit
        self.commit_buffers = self._flush.commit_buffers
        self.is_able_to_flush = self._log.is_able_to_flush
        self.flush_commit_log = self._flush.flush_commit_log
        self.flush_consume_queues = self._flush.flush_consume_queues
        self.write_checkpoint = self._flush.write_checkpoint

        # Retention (retention.py, queue/table.py)
        self.cleaners = self._cleaners.cleaners
        self.remove_deleted = self._queues.remove_deleted

    # -- opening and closing -------------------------------------------------------------------------------

    def open(self, *, truncate_to: int | None = None) -> RecoveryReport:
        """Lock the directory, recover it and accept messages. Blocks until recovery is done.

        With `truncate_to`, the log then ends at that offset at most: the records beyond it are first saved in
        `cut/<start>-<end>.log` (event `log_tail_truncated`), and their queue entries and keys are dropped.

        After the first four errors the directory is unchanged; after any of them the lock is free.

        Raises:
            StoreLocked: another broker, in this process or another, has the directory or one of its log.
            LogDirectoryUnusable: a directory of the log cannot be used, or is named twice.
            ForeignFile: a file is not supported by this store and would be damaged.
            StoreDamaged: records that had been flushed fail their checks.
            StoreNotWritable: the system does not allow the directory to be written.
            DataDirUnusable: the directory cannot be made.
            DiskFull, FlushFailed: recovery could not be completed; the next start repeats it.
        """
        assert not self._flags.is_open
        started = time.perf_counter()
        self._make_parts()
        with directory_refusals(self.options.data_dir):
            if truncate_to is not None:
                self._with_parts(partial(truncate_tail, offset=truncate_to))
                self._release()
                self._make_parts()
            report = self._with_parts(open_parts)
        self._dispatch.begin(report.end_offset, self._checkpoint.logics_msg_timestamp_ms, self._queues.entries())
        self._reader.warm_from = report.checked_from
        self._flags.note_open()
        self._writer.check_last_file()
        self._key_index.complete(report.end_offset)
        self.last_record_offset = report.last_record_offset
        return report._replace(duration_s=time.perf_counter() - started)

    def _with_parts(self, work: Callable[[StoreParts], T]) -> T:
        self._lock.reserve()
        try:
            self._log.open_pool()
            return work(
                StoreParts(
                    self.options,
                    self._lock,
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

    def close(self) -> bool:
        """Flush, dispatch and sync everything and release the directory. Blocks. Safe to call twice.

        Returns:
            Whether all of it succeeded. Otherwise `abort` stays, and the next start recovers the directory.
        """
        if not self._flags.is_open:
            return self._flags.read_only_reason is None
        self._flags.note_closed()
        try:
            in_order = self._finish()
            if in_order:
                self._abort.remove()
        finally:
            self._release()
        return in_order

    def _finish(self) -> bool:
        flags, checkpoint = self._flags, self._checkpoint
        self._log.confirm_offset = None  # an orderly stop has dispatched everything
        try:
            self.check_directories()
            self.flush_commit_log()
            if not self._dispatch.finish():
                return False
            self.flush_consume_queues()
            end = self._log.max_offset
            if end < self._log.wrote_offset:  # a commit found no room
                return False
            checkpoint.mark = self._key_index.finish(FlushMark(end, end, queues_digest(self._queues)))
            checkpoint.flush()
        except (StoreError, OSError) as error:
            flags.become_read_only(str(error))
        return flags.read_only_reason is None

    def _release(self) -> None:
        self._log.close()
        self._queues.close()
        if self._index is not None:
            self._index.close()
        self._checkpoint.close()
        self._lock.release()

    # -- replication ------------------------------------------------------------------------------------------

    def when_appended(self, call: Callable[[int], object]) -> None:
        """Have `call` called with the end of the log after each append, in the thread that appends."""
        self._on_appended = self._log.on_appended = call

    def begin_replica_at(self, offset: int) -> None:
        """Let the empty log of a replica begin at this offset, the start of a file of the master. Blocks.

        Raises:
            ValueError: the log is not empty, or no file starts at the offset.
            DiskFull, FileNotMade: the file cannot be created; nothing has changed.
        """
        assert self.options.is_replica
        if self._log.files.files or offset % self.options.commit_log_file_size:
            raise ValueError(f"the log cannot begin at offset {offset}: it is not empty, or no file starts there")
        self._log.begin_at(offset)
        self._dispatch.begin(offset, 0, 0)

    def read_for_replica(self, offset: int, parts: Sequence[memoryview], *, wait: bool) -> bool:
        """Read the log from `offset` on into `parts`, which together are in one file and readable.

        Args:
            wait: whether to wait for the disk; in any thread.

        Returns:
            Whether all were filled. Without `wait`, False if something is not in memory.

        Raises:
            FileMissing: that file has been deleted, or is being deleted.
        """
        file = self._log.hold_file_at(offset)
        try:
            return file.read_into(offset - file.base_offset, parts, wait=wait)
        finally:
            file.release()

    def record_at(self, offset: int, *, cold: bool = False) -> bytes | None:
        """The whole record that starts at a log offset, whether or not consumers see it; None if none does.

        With `cold`, by a positional read, in any thread.
        """
        return self._log.message_at(offset, self._log.max_offset, cold=cold)

    def last_record_before(self, offset: int) -> int:
        """Where the last record that ends by a log offset starts, -1 if there is none. Blocks; in any thread."""
        found = last_record_ending_by(self._log.files.files, offset)
        return -1 if found is None else found[0]

    def is_boundary(self, offset: int) -> bool:
        """Whether a record, or a blank one, starts at this readable log offset."""
        rest = self._log.next_file_offset(offset) - offset
        if rest == self.options.commit_log_file_size or self.record_at(offset):
            return True
        return rest >= BLANK_BYTES and self._log.read(offset, BLANK_BYTES) == encode_blank(rest)

    def set_master_flushed_offset(self, offset: int) -> None:
        """Set `masterFlushedOffset` of the checkpoint, which only RocketMQ reads; on disk with its next sync."""
        self._checkpoint.master_flushed_offset = offset

    @property
    def confirm_offset(self) -> int | None:
        """Consumers see nothing beyond this log offset; None if only this broker decides what they see."""
        return self._log.confirm_offset

    @confirm_offset.setter
    def confirm_offset(self, offset: int | None) -> None:
        self._log.confirm_offset = offset

    @property
    def is_confirmed(self) -> bool:
        """Whether no queue has entries beyond the confirm offset.

        A start dispatches the whole log, so until the confirm offset has passed that, nothing may be read.
        """
        confirmed = self._log.confirm_offset
        return confirmed is None or self.dispatched_offset <= confirmed

    # -- condition and offsets --------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether messages can be read."""
        return self._flags.is_open

    @property
    def is_writable(self) -> bool:
        """Whether puts of any size are accepted, as far as the last attempts to write show."""
        return self._flags.is_writable

    @property
    def read_only_reason(self) -> str | None:
        """Why puts are refused as READ_ONLY until the broker is restarted; None while they are not."""
        return self._flags.read_only_reason

    @property
    def disk_full_reason(self) -> str | None:
        """What could not be written for lack of space, or why the disk watch refuses puts; None otherwise.

        Clears by itself.
        """
        return self._flags.disk_full_reason

    @property
    def unfit_reason(self) -> str | None:
        """Why puts are refused, until the broker is restarted or the disk has room; None while they are not."""
        return self.read_only_reason or self.disk_full_reason

    @property
    def file_refusal(self) -> DiskFull | FileNotMade | None:
        """Why the last attempt to create a log file failed; None if it succeeded, or one is prepared."""
        return self._log.supply.refusal

    @property
    def min_physical_offset(self) -> int:
        """Where the log begins."""
        return self._log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """End of the readable log."""
        return self._log.max_offset

    @property
    def wrote_offset(self) -> int:
        """Where the next record goes: everything put so far is before it, also in buffers of the pool."""
        return self._log.wrote_offset

    @property
    def committed_offset(self) -> int:
        """Everything before this log offset has been written to the system and survives the process."""
        return self._log.max_offset

    @property
    def last_put_ms(self) -> int:
        """The store time of the last put since the store was opened; 0 if there was none."""
        return self._log.last_store_timestamp_ms

    @property
    def commit_behind_bytes(self) -> int:
        """Bytes of the log that are only in buffers of the pool."""
        return max(0, self._log.wrote_offset - self._log.max_offset)

    @property
    def flushed_offset(self) -> int:
        """The log is durable up to here."""
        return self._log.flushed_offset

    @property
    def flush_behind_bytes(self) -> int:
        """Bytes of the log that are not durable yet."""
        return max(0, self._log.wrote_offset - self._log.flushed_offset)

    @property
    def dispatched_offset(self) -> int:
        """Every record before this log offset has been dispatched."""
        return self._dispatch.dispatched_offset

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that can be dispatched and have not been."""
        return self._dispatch.dispatch_behind_bytes

    @property
    def has_files_to_unlock(self) -> bool:
        """Whether a log file that warm-up locked into memory is full now: see `unlock_full_files`."""
        return self._log.supply.has_full_to_unlock

    def unlock_full_files(self) -> None:
        """Allow the system to evict the pages of such files. Blocks; may run in a worker thread."""
        self._log.supply.unlock_full()

    @property
    def buffers_available(self) -> int | None:
        """Buffers of the pool that are free; None without a pool (RocketMQ: remainTransientStoreBufferNumbs)."""
        return None if self._log.pool is None else self._log.pool.available

    @property
    def file_waits(self) -> int:
        """Puts since the store was opened that waited for a log file because none was prepared."""
        return self._log.file_waits

    @property
    def index_behind_bytes(self) -> int:
        """Bytes of the log whose entries are in the queues but whose keys are not in the index yet."""
        return self._key_index.index_behind_bytes

    def check_directories(self) -> None:
        """Check that the store's directories, its lock file and the last log file are still at their paths.

        In any thread; the system calls may block. The first failure makes the store read-only until it is opened again
        (event `store_directory_lost`).

        Raises:
            DirectoryLost: one of them was moved, deleted, unmounted or covered by another.
            FileMissing: the log file in use was deleted.
        """
        self._lock.check()
        last = self._log.files.last_file
        if last is not None and last.is_deleted:
            pid = os.getpid()
            error = FileMissing(
                last.path,
                f"it was deleted while the broker writes to it. Copy it from /proc/{pid}/fd before process {pid} ends, "
                "then restore it and restart the broker",
            )
            self._note_lost(error)
            raise error

    # -- topics --------------------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> int:
        """Delete the queues of a topic durably; see `delete_topics`."""
        return self.delete_topics([topic])

    def delete_topics(self, topics: Collection[str]) -> int:
        """Delete the queues of topics durably, with as many syncs as for one; return how many there were.

        Their records stay in the log until their file expires, but no recovery brings them back. A new topic of such a
        name begins at queue offset 0. `remove_deleted` removes the files.

        Raises:
            StoreReadOnly, StoreClosed: the store cannot be written.
        """
        self._flags.check_writable()
        self._deleted.add(topics, self._log.wrote_offset)
        for key in [key for key in self._log.next_queue_offsets if key[0] in topics]:
            del self._log.next_queue_offsets[key]
        deleted = self._queues.delete_topics(topics)
        self._dispatch.drop_entries(deleted.entries)
        return deleted.queues

    def topics_with_records(self, topics: Collection[str]) -> set[str]:
        """Return those of the topics that have queues, or records that are not dispatched yet. For a master's store."""
        found = {topic for topic in topics if self.has_queues(topic)}
        if len(found) < len(topics):
            found |= {topic for topic, _ in self._log.next_queue_offsets if topic in topics}
        return found

    def has_queues(self, topic: str) -> bool:
        """Whether a topic has queues with messages, or had."""
        return bool(self._queues.of_topic(topic))

    def is_deleted(self, topic: str, physical_offset: int) -> bool:
        """Whether a record of `topic` at this log offset belongs to a topic that has been deleted since."""
        return self._deleted.hides(topic, physical_offset)

    def queues(self) -> list[tuple[str, int]]:
        """Every (topic, queue id) that has a queue."""
        return [(queue.topic, queue.queue_id) for queue in self._queues]
