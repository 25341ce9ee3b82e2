"""Put messages into the log, create the next files ahead of need, commit and flush (RocketMQ: putMessage).

A put does not wait for the disk unless a file must be created, which `needs_new_file` tells in advance.

A failed sync is final: what the system reports afterwards cannot be trusted, so the store accepts no more puts until it
has been opened again and has recovered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from reput_broker.store.base.checkpoint import StoreCheckpoint
from reput_broker.store.base.errors import DiskFull, FileNotMade, StoreError, StorePoolExhausted, StoreReadOnly
from reput_broker.store.base.file_io import is_out_of_descriptors
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import Block, PutResult, PutStatus, StoreStats
from reput_broker.store.base.running_flags import RunningFlags
from reput_broker.store.index.service import IndexService
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.queue.reput import LogDispatch
from reput_broker.store.queue.table import ConsumeQueueTable
from reput_protocol.buffers import Buffer
from reput_protocol.errors import InvalidMessage, RecordMalformed, ReputError
from reput_protocol.names import RETRY_PREFIX
from reput_protocol.properties import CRC_PROPERTY_BYTES, PROPERTIES_BYTES_MAX
from reput_protocol.record.layout import TRANSACTION_BITS, TRANSACTION_COMMIT
from reput_protocol.record.put_block import BLOCK_BYTES_MAX, BlockLimits, check_put_block
from reput_protocol.record.record import Record, encode_record

TOPIC_BYTES_MAX = 127
RETRY_TOPIC_BYTES_MAX = 255


def illegal_record(records: Sequence[Record], body_bytes_max: int, *, with_crc: bool) -> PutStatus | None:
    """Return why records that are put together may not be stored; None if they may."""
    assert records, "there is something to put"
    topic, queue_id = records[0].topic, records[0].queue_id
    topic_size = len(topic.encode())
    limit = RETRY_TOPIC_BYTES_MAX if topic.startswith(RETRY_PREFIX) else TOPIC_BYTES_MAX
    if not 0 < topic_size <= limit or queue_id < 0:
        return PutStatus.MESSAGE_ILLEGAL
    for record in records:
        assert (record.topic, record.queue_id) == (topic, queue_id), "a batch goes to one queue"
        properties_size = len(record.properties) + (CRC_PROPERTY_BYTES if with_crc else 0)
        if properties_size > PROPERTIES_BYTES_MAX:
            return PutStatus.PROPERTIES_SIZE_EXCEEDED
        if len(record.body) > body_bytes_max:
            return PutStatus.MESSAGE_ILLEGAL
    return None


def has_queue_entry(record: Record) -> bool:
    """Whether a record gets a queue entry: all but prepared and rolled back transaction records do."""
    return record.sys_flag & TRANSACTION_BITS in (0, TRANSACTION_COMMIT)


class MessageWriter:
    """Appends to one log, for its one owner."""

    def __init__(
        self, options: StoreOptions, log: CommitLog, index: IndexService | None, flags: RunningFlags, stats: StoreStats
    ) -> None:
        self._options = options
        self._log = log
        self._index = index
        self._flags = flags
        self._stats = stats
        self._limits = BlockLimits(
            body_bytes_max=options.message_bytes_max, block_bytes_max=max(BLOCK_BYTES_MAX, options.message_bytes_max)
        )

    def put(self, blocks: Sequence[Block]) -> list[PutResult | ReputError]:
        """Store blocks in order, each completely or not at all.

        Waits for the disk only if a file must be created (`needs_new_file`).

        Returns:
            For each block where it was put, a status that says why not, or the rule that it breaks (RecordMalformed,
                InvalidMessage). A refused block leaves nothing behind and does not affect the others.
        """
        flags = self._flags
        if flags.refuses_now:
            return [flags.refused_now() for _ in blocks]
        if self._options.is_replica:
            return [flags.refused(PutStatus.SERVICE_NOT_AVAILABLE) for _ in blocks]
        results: list[PutResult | ReputError] = []
        sound: list[Block] = []
        for block in blocks:
            fault: PutResult | ReputError | None = None
            if block.check is None and block.born_host is not None:
                try:
                    block.check = check_put_block(
                        block.data, topic=block.topic, queue_id=block.queue_id, count=block.count, limits=self._limits
                    )
                except (RecordMalformed, InvalidMessage) as error:
                    fault = error
            if fault is None and len(block.data) > self._log.block_bytes_max:
                fault = flags.refused(PutStatus.MESSAGE_ILLEGAL)
            if fault is None:
                sound.append(block)
                continue
            results += self._append(sound)
            results.append(fault)
            sound = []
        return results + self._append(sound)

    def _append(self, blocks: Sequence[Block]) -> list[PutResult | ReputError]:
        flags, stats = self._flags, self._stats
        results: list[PutResult | ReputError] = []
        while blocks:
            try:
                stored = self._log.append(blocks)
            except (DiskFull, FileNotMade, StorePoolExhausted) as error:
                results.append(self._refused(error))
                blocks = blocks[1:]
                continue
            if flags.lacks_something:
                flags.note_written(self._log.supply.refusal)
            stats.put_blocks += len(stored)
            for result in stored:
                stats.put_messages += result.count
            stats.put_bytes += stored[-1].end_offset - stored[0].physical_offset
            results += stored
            blocks = blocks[len(stored) :]
        return results

    def put_one(self, block: Block) -> PutResult:
        """Store one block as `put` does.

        Raises:
            RecordMalformed: the block breaks a rule; the error names the first bad record. Nothing was stored.
            InvalidMessage: no record can hold this topic.
        """
        (result,) = self.put((block,))
        if isinstance(result, ReputError):
            raise result
        return result

    def _refused(self, error: DiskFull | FileNotMade | StorePoolExhausted) -> PutResult:
        flags = self._flags
        if isinstance(error, StorePoolExhausted):
            return flags.refused(PutStatus.OS_PAGE_CACHE_BUSY)
        if flags.read_only_reason is not None:  # the attempt found that the directory is lost
            return flags.refused_now()
        flags.note_file_refused(error)
        self.want_file()
        is_full = isinstance(error, DiskFull)
        return flags.refused(PutStatus.DISK_FULL if is_full else PutStatus.CREATE_MAPPED_FILE_FAILED)

    def put_record(self, record: Record) -> PutResult:
        """Store one message whose record the broker composed; offsets and store timestamp are set here."""
        return self.put_records((record,))

    def put_records(self, records: Sequence[Record]) -> PutResult:
        """Store messages of one queue contiguously, in one file, all or none (RocketMQ: putMessages).

        Prepared and rolled back transaction records get queue offset 0 and no queue entry; they are
        put alone.
        """
        block = self.block_of(records)
        return block if isinstance(block, PutResult) else self.put_one(block)

    def block_of(self, records: Sequence[Record]) -> Block | PutResult:
        """Return the records of one queue as a block, or the result of the put if they may not be stored."""
        flags, options = self._flags, self._options
        if flags.refuses_now:
            return flags.refused_now()
        if options.is_replica:
            return flags.refused(PutStatus.SERVICE_NOT_AVAILABLE)
        illegal = illegal_record(records, options.message_bytes_max, with_crc=options.record_crc)
        if illegal is not None:
            return flags.refused(illegal)
        encoded = [encode_record(record, with_crc=options.record_crc, store_host=options.host) for record in records]
        first = records[0]
        data = encoded[0] if len(encoded) == 1 else bytearray().join(encoded)  # writable: patched in place
        return Block(data, first.topic, first.queue_id, len(encoded), None, gets_queue_offset=has_queue_entry(first))

    def put_encoded(self, topic: str, queue_id: int, encoded: Sequence[bytes]) -> PutResult:
        """Store records that were copied from records of this log, contiguously, in one file, all or none.

        Args:
            topic, queue_id: of every record.
            encoded: whole records with this store's host; offsets and store timestamp are set here.
        """
        return self.put_one(Block(bytearray().join(encoded), topic, queue_id, len(encoded), None))

    def append_replicated(self, physical_offset: int, data: Buffer, *, stored_ms: int = 0) -> int:
        """Append bytes of the master's log as they are; return the end of the log.

        Waits for the disk only if a file must be created: `needs_new_file(len(data) - BLANK_BYTES)`.

        Args:
            physical_offset: where they are in the master's log, which is the end of this one.
            data: whole records that were checked, or a blank record with all that follows it, in one file.
            stored_ms: store time of the last record; 0 if there is none.

        Raises:
            ValueError: they do not continue this log, or do not fit into their file; nothing was stored.
            StoreClosed, StoreReadOnly: the store cannot be written now; nothing was stored.
            DiskFull, FileNotMade: a new file could not be created; nothing was stored.
        """
        flags = self._flags
        assert self._options.is_replica, "only a master decides what its log holds"
        flags.check_writable()
        if flags.refuses_now:
            raise StoreReadOnly(flags.disk_full_reason or "the store takes no messages")
        try:
            end = self._log.append_replicated(physical_offset, data, stored_ms)
        except (DiskFull, FileNotMade) as error:
            self._refused(error)
            raise
        if flags.lacks_something:
            flags.note_written(self._log.supply.refusal)
        self._stats.put_bytes += len(data)
        return end

    def needs_new_file(self, size: int) -> bool:
        """Whether a put of `size` bytes would have to create a log file, which blocks.

        If so, call `make_log_file` in a thread first. False if the put would be refused anyway.
        """
        return self._log.needs_new_file(size) and not self._flags.refuses_now

    def should_prepare_next_file(self) -> bool:
        """Whether puts are accepted and the next log file or index file should be created."""
        if not self._flags.is_open or self._flags.refuses_now:
            return False
        index = self._index
        return self._log.supply.should_prepare or (index is not None and index.should_prepare_next_file())

    def prepare_next_file(self) -> None:
        """Create the next file of the log or of the index, whichever is needed (else the log's).

        Blocks; may run in a worker thread.

        Raises:
            DiskFull, FileNotMade: of the log; puts continue while prepared files have room.
            DiskFull, FlushFailed, OSError: of the index; dispatch continues while there is room.
        """
        index = self._index
        if index is None or not index.should_prepare_next_file():
            self.make_log_file()
            return
        if self._log.supply.should_prepare:
            self.make_log_file()
        index.prepare_next_file()

    def make_log_file(self) -> None:
        """Create a log file if fewer than needed are prepared. Blocks; may run in a worker thread.

        Raises:
            DiskFull, FileNotMade: as `prepare_next_file`.
        """
        flags = self._flags
        try:
            made = self._log.supply.prepare()
        except (DiskFull, FileNotMade):
            refusal = self._log.supply.refusal
            if refusal is not None:
                flags.note_file_refused(refusal)
            raise
        if made:
            self._stats.files_prepared += 1
        if flags.lacks_something:
            flags.note_written(self._log.supply.refusal)

    def check_last_file(self) -> None:
        """After a start, report if nothing can be appended to the last file that it found."""
        refusal = self._log.supply.refusal
        if refusal is not None:
            self._flags.note_file_refused(refusal)

    def want_file(self) -> None:
        """Notify the service that creates files after `make_log_file` failed. In the thread that appends."""
        self._log.on_file_wanted()

    def when_file_wanted(self, call: Callable[[], None]) -> None:
        """Have `call` called when a file should be created, or a full log file unlocked.

        Called by an append or by a step of dispatch.
        """
        self._log.on_file_wanted = call
        if self._index is not None:
            self._index.on_file_wanted = call


@dataclass(eq=False, repr=False)
class StoreFlush:
    """The flushes of one store; each may run in a worker thread, one call at a time.

    Args:
        check_directories: raises DirectoryLost if what was synced is no longer in the store's
            directories.
    """

    _log: CommitLog
    _queues: ConsumeQueueTable
    _checkpoint: StoreCheckpoint
    _dispatch: LogDispatch
    _flags: RunningFlags
    _stats: StoreStats
    _check_directories: Callable[[], None]

    def commit_buffers(self) -> int:
        """Write the contents of the pool's buffers to the files; return the offset up to which that is done.

        Everything before it can be read and survives the process. Blocks; safe in any thread.

        Raises:
            DiskFull: no room, although the file was preallocated. No put is accepted until a commit succeeds; nothing
                is lost: repeat the call.
            StoreReadOnly: the file cannot be written, now or earlier. What is not committed is lost, and the store
                accepts no more puts.
        """
        flags = self._flags
        if flags.read_only_reason is not None and self._stats.commit_failures:
            raise StoreReadOnly(flags.read_only_reason)
        try:
            committed = self._log.files.commit()
        except DiskFull as error:
            flags.note_commit_without_space(error)
            raise
        except (StoreError, OSError) as error:
            self._stats.commit_failures += 1
            raise flags.final(error) from error
        flags.note_commit()
        return committed

    def flush_commit_log(self) -> int:
        """Commit and sync the log; return the offset up to which it is durable. Blocks; one thread at a time.

        If a commit finds no room, what was committed before is synced. If no descriptor is free for the checkpoint, it
        lags behind until the next call, which is safe.

        Raises:
            StoreReadOnly: the sync failed, now or earlier. What had been flushed is safe; the rest may be lost, and the
                store accepts no more puts.
        """
        reason = self._flags.read_only_reason
        if reason is not None and self._stats.flush_failures:
            raise StoreReadOnly(reason)
        log = self._log
        before = log.flushed_offset
        stored_ms = log.last_store_timestamp_ms
        wrote = log.wrote_offset
        if wrote == before:
            return before
        if log.pool is not None:
            with suppress(DiskFull):
                self.commit_buffers()
        stats = self._stats
        try:
            flushed = log.files.flush()
            self._check_directories()  # before any acknowledgement: syncing a deleted file succeeds too
            if stored_ms and flushed >= wrote:
                self._checkpoint.physic_msg_timestamp_ms = stored_ms
            self._checkpoint.move_mark(flushed_offset=flushed)
            self._write_checkpoint_if_it_can_be_opened()
        except (StoreError, OSError) as error:
            # Even for a full disk: the checkpoint exists and is only overwritten, so the disk is
            # broken.
            stats.flush_failures += 1
            raise self._flags.final(error) from error
        stats.flushes += 1
        stats.flushed_bytes += flushed - before
        return flushed

    def _write_checkpoint_if_it_can_be_opened(self) -> None:
        try:
            self._checkpoint.write()
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise

    def flush_consume_queues(self, least_pages: int = 0) -> bool:
        """Sync what was dispatched before the call. Blocks; one thread at a time.

        Args:
            least_pages: skip queues with fewer unsynced pages than this and no full file. While any is skipped, the
                offset that recovery starts from does not advance.

        Returns:
            Whether no queue was skipped.

        Raises:
            StoreReadOnly: the sync failed. The queues can be rebuilt, but not by this process.
            OSError: no descriptor was free; nothing has changed.
        """
        position, stored_ms, entries = self._dispatch.dispatched
        try:
            is_complete = self._queues.flush(least_pages)
        except (StoreError, OSError) as error:
            if isinstance(error, OSError) and is_out_of_descriptors(error):
                raise  # nothing has failed: the next call does it
            raise self._flags.final(error) from error
        if not is_complete:
            return False
        checkpoint = self._checkpoint
        checkpoint.logics_msg_timestamp_ms = max(checkpoint.logics_msg_timestamp_ms, stored_ms)
        checkpoint.move_mark(queues_offset=position, entries=entries)
        return True

    def write_checkpoint(self) -> None:
        """Sync the checkpoint. Blocks; one thread at a time.

        Raises:
            StoreReadOnly: the sync failed.
            OSError: no descriptor was free; nothing has changed.
        """
        try:
            self._checkpoint.flush()
        except (StoreError, OSError) as error:
            if isinstance(error, OSError) and is_out_of_descriptors(error):
                raise  # nothing has failed: the next call does it
            raise self._flags.final(error) from error
