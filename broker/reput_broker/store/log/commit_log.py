"""The log of all messages: append at the end, read anywhere (RocketMQ: CommitLog).

Records never span files. If the next block of L bytes does not satisfy `L + 8 <= remaining`, the file is ended with a
blank record, 8 bytes that hold the remaining size, and the block goes to the next file. So every finished file ends
with a blank record.

The commit point of an append is the first 8 bytes of the block, its size and magic, copied last. A process killed
before that leaves zeros there, and recovery ends the log; after it, the whole block is there. All records of a block
become visible together, since the later ones follow the first one's head.

Store timestamps are the broker's clock at the append. They do not decrease unless the clock does.

A file takes its whole size from the disk when it is created, so files are created before they are needed, but late
(RocketMQ: AllocateMappedFileService):

    file in use      less than half full    at least half full
    normally         none prepared          the next file is prepared
    in a hurry       the next is prepared   the next two are prepared

The log is in a hurry if the second half of the last file filled in less than `HURRY_FACTOR` times the time that
creating a file took. (RocketMQ always creates the next file as soon as the previous one is begun.)

The last file that a start finds may have holes, if another broker made it. Its disk space is reserved before the first
append.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from reput_broker.store.base.errors import DiskFull, FileMissing, FileNotMade, StorePoolExhausted
from reput_broker.store.base.file_io import PAGE_BYTES, is_able_to_flush, sync_data
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import Block, PutResult, PutStatus
from reput_broker.store.log.mapped_file import MappedFile
from reput_broker.store.log.mapped_file_queue import MappedFileQueue, MultiPathMappedFileQueue
from reput_broker.store.log.pool import TransientStorePool, WriteBuffer, lock_pages, populate_pages, unlock_pages
from reput_protocol.buffers import Buffer
from reput_protocol.kernel.records import patch_block
from reput_protocol.record.layout import BLANK_BYTES, STORE_TIME_BYTES, encode_blank, read_head, store_timestamp_at
from reput_protocol.record.scan import ScanStatus, scan_record

STEP_PAGES = 4096
"""Number of pages populated with one call (RocketMQ: flushLeastPagesWhenWarmMapedFile)."""


def warm_up(file: MappedFile, *, sync: bool) -> OSError | None:
    """Fault in every page of a file and lock it. Blocks: 1 GiB takes a second, longer if synced.

    Args:
        file: nothing happens if it is shut down.
        sync: sync after every step, instead of leaving the write-back to the system.

    Returns:
        Why the pages cannot be locked; None if they are.
    """
    with file.mapping() as lent:
        if lent is None:
            return None
        fd, mapped = lent
        step = STEP_PAGES * PAGE_BYTES
        for start in range(0, file.size, step):
            populate_pages(mapped, start, min(step, file.size - start))
            if sync:
                sync_data(fd)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, file.size, os.POSIX_FADV_WILLNEED)
        return lock_pages(mapped)


def unlock(file: MappedFile) -> None:
    """Allow the system to evict the pages of a warmed file."""
    with file.mapping() as lent:
        if lent is not None:
            unlock_pages(lent[1])


CREATE_RETRY_MS = 1000
"""How long creating a file is not retried after it has failed."""
HURRY_FACTOR = 4
HURRY_MS_MIN = 500
"""A second half that fills in less than this is always a hurry."""
NEVER = 1 << 63


class AllocateMappedFile:
    """Decides when log files are created, and creates them.

    The thread that appends calls `entered` and `reached`; `prepare` and `unlock_full` may run in a worker thread.
    """

    def __init__(self, files: MappedFileQueue, options: StoreOptions, clock_ms: Callable[[], int]) -> None:
        self._files = files
        self._options = options
        self._clock_ms = clock_ms
        self.prepare_from = NEVER
        """Log offset at which `reached` is to be called."""
        self.is_in_hurry = False
        self._file: MappedFile | None = None
        self._mark: tuple[int, int] | None = None
        self._making_ms = 0
        self._found: MappedFile | None = None
        self._found_lock = threading.Lock()
        self._first_lock = threading.Lock()
        self._refusal: DiskFull | FileNotMade | None = None
        self._refused_at_ms = 0
        self._locked: deque[MappedFile] = deque()
        self._may_lock = options.warm_mapped_file

    # -- when ------------------------------------------------------------------------------------------

    def entered(self, file: MappedFile) -> None:
        """Note that appends go to this file from now on."""
        now_ms = self._clock_ms()
        offset = file.base_offset + file.wrote_position
        if self._mark is not None:
            filled, took_ms = offset - self._mark[0], now_ms - self._mark[1]
            limit_ms = max(HURRY_MS_MIN, HURRY_FACTOR * self._making_ms)
            # Extrapolated to half a file; unknown if the clock was set back.
            self.is_in_hurry = 0 <= took_ms * (file.size // 2) < filled * limit_ms
        self._mark = (offset, now_ms)
        self._file = file
        self.prepare_from = file.base_offset if self.is_in_hurry else self._half_of(file)

    def reached(self, offset: int) -> None:
        """Note that the log has grown past `prepare_from`."""
        file = self._file
        assert file is not None, "it has an offset"
        self._mark = (offset, self._clock_ms())
        self.prepare_from = NEVER if offset >= self._half_of(file) else self._half_of(file)

    @staticmethod
    def _half_of(file: MappedFile) -> int:
        return file.base_offset + (file.size + 1) // 2

    @property
    def wanted(self) -> int:
        """How many files should be prepared behind the one in use."""
        file = self._file
        if file is None:
            return 0
        return int(2 * file.wrote_position >= file.size) + self.is_in_hurry

    @property
    def should_prepare(self) -> bool:
        """Whether too few files are prepared, or the file that a start found is not reserved on disk yet.

        Also after a put could not get the file that it needed.
        """
        return self._found is not None or self.refusal is not None or self.wanted > self._files.prepared_count

    @property
    def refusal(self) -> DiskFull | FileNotMade | None:
        """Why the next append that needs a file cannot have one, by the last attempt."""
        return None if self._files.prepared_count else self._refusal

    # -- how -------------------------------------------------------------------------------------------

    def note_found(self, file: MappedFile) -> None:
        """Note the last file that a start found: nothing may be appended to it before `reserve_found`."""
        self._found = file

    @property
    def has_found(self) -> bool:
        """Whether the disk space of that file is still to be reserved."""
        return self._found is not None

    def reserve_found(self) -> None:
        """Reserve the disk space of that file, if still needed. Blocks. Raises as `prepare` does."""
        with self._found_lock:  # never twice: another thread may already write to the file
            file = self._found
            if file is None:
                return
            with self._unless_just_refused():
                try:
                    file.reserve_space()
                except OSError as error:
                    raise FileNotMade(file.path, error) from error
            self._found = None
            self._refusal = None

    def prepare(self) -> bool:
        """Create a file if fewer than needed are prepared; return False if none was created. Blocks.

        The disk space of the file that a start found is reserved first, because the next append needs it. An empty log
        gets its first file here only after a put could not have it.

        Raises:
            DiskFull, FileNotMade: there is no room, or it cannot be created for another reason, now or in the last
                second.
        """
        if self._found is not None:
            self.reserve_found()
            return False
        started_ms = self._clock_ms()
        if self._file is None and self._refusal is not None:
            self.make_first()
            return True
        with self._unless_just_refused():
            file = self._files.prepare_next(max(1, self.wanted))
        if file is None:
            return False
        self._refusal = None
        if self._options.warm_mapped_file:
            self._warm_up(file)
        self._making_ms = max(0, self._clock_ms() - started_ms)
        return True

    def make_first(self, start_offset: int = 0) -> None:
        """Create the first file of an empty log, the one with this offset. Raises as `prepare` does."""
        # A worker may be creating it for an earlier put.
        with self._first_lock, self._unless_just_refused():
            self._files.last_file_for(start_offset, create=True)
        self._refusal = None

    def make_needed(self) -> None:
        """Create the file that a put needs now, unless one is prepared. Raises as `prepare` does."""
        with self._unless_just_refused():
            self._files.prepare_next()
        self._refusal = None

    @contextmanager
    def _unless_just_refused(self) -> Iterator[None]:
        """Skip an attempt to create a file shortly after one failed, because every put would pay for it.

        A lack of descriptors shows immediately and may end immediately, so it is not waited for.
        """
        now, refusal = self._clock_ms(), self._refusal
        is_dear = isinstance(refusal, DiskFull) or (refusal is not None and not refusal.is_out_of_descriptors)
        if refusal is not None and is_dear and 0 <= now - self._refused_at_ms < CREATE_RETRY_MS:
            raise refusal.with_traceback(None)
        try:
            yield
        except (DiskFull, FileNotMade) as error:
            self._refusal = error
            self._refused_at_ms = now
            raise

    # -- warm-up ---------------------------------------------------------------------------------------------

    def _warm_up(self, file: MappedFile) -> None:
        refusal = warm_up(file, sync=self._options.flush_sync)
        if refusal is None:
            self._locked.append(file)
        elif self._may_lock:
            self._may_lock = False  # reported once; the limit is the same for the next file
            facts = {"what": str(file.path), "size_bytes": file.size, "reason": refusal.strerror}
            self._options.on_event("memory_not_locked", facts)

    @property
    def has_full_to_unlock(self) -> bool:
        """Whether `unlock_full` has something to do."""
        return bool(self._locked) and self._locked[0].is_full

    def unlock_full(self) -> None:
        """Allow the system to evict the pages of files that are full (RocketMQ: unlockMappedFile)."""
        while self.has_full_to_unlock:
            unlock(self._locked.popleft())


_SCRATCH_BYTES = 64 * 1024


class CommitLog:
    """The files under `commitlog/`, or in several directories, and the table of next queue offsets.

    Invariant: `min_offset <= flushed_offset <= max_offset <= wrote_offset`; bytes in `[min_offset, max_offset)` are
    whole records and blanks, and never change. One thread appends; reads, `commit` and `flush` need no lock. Without a
    pool of buffers `max_offset` and `wrote_offset` are equal.
    """

    def __init__(self, options: StoreOptions, clock_ms: Callable[[], int]) -> None:
        size = options.commit_log_file_size
        directories, read_only = options.log_dirs, options.read_only_commit_log_dirs
        self.files: MappedFileQueue
        if len(directories) > 1 or read_only:
            self.files = MultiPathMappedFileQueue(
                directories, read_only, size, options.on_event, options.log_files_open_max
            )
        else:
            self.files = MappedFileQueue(directories[0], size, options.on_event, options.log_files_open_max)
        self.files.mappings.reads_ahead = options.reads_ahead
        self.supply = AllocateMappedFile(self.files, options, clock_ms)
        self.pool: TransientStorePool | None = None
        if options.transient_store_pool and not options.is_replica:
            self.pool = TransientStorePool(size, options.transient_store_pool_size)
        self.on_file_wanted: Callable[[], None] = lambda: None
        """Called by an append when `supply.prepare` or `supply.unlock_full` should be called."""
        self.on_appended: Callable[[int], object] = lambda _: None
        """Called with the end of the log after each append."""
        self.confirm_offset: int | None = None
        """Consumers see nothing beyond this offset; None if only this broker decides what they see."""
        self.file_waits = 0
        """Puts that waited for a file because none was prepared; the first of an empty log is not counted."""
        self.next_queue_offsets: dict[tuple[str, int], int] = {}
        """The queue offset of the next message of each queue (RocketMQ: topicQueueTable)."""
        self._file_size = options.commit_log_file_size
        self.block_bytes_max = self._file_size - BLANK_BYTES
        """The size of the largest block that fits into an empty file."""
        self._scratch = bytearray(_SCRATCH_BYTES)
        self._flush_sync = options.flush_sync
        self._store_host = options.host.packed()
        self._clock_ms = clock_ms
        self.last_store_timestamp_ms = 0
        """Store time of the last append, 0 before the first."""
        self._options = options
        self._file: MappedFile | None = None
        self._limit = size
        """Up to here the file in use may be filled: 0 until its disk space is reserved."""

    # -- begin and end ---------------------------------------------------------------------------------

    @property
    def min_offset(self) -> int:
        """Start of the first readable file, in bytes; 0 in an empty log.

        A file that is being deleted and still held does not count.
        """
        files = self.files.files
        if not files:
            return 0
        first = files[0]
        return first.base_offset if first.is_available else first.end_offset

    @property
    def max_offset(self) -> int:
        """End of what can be read: of what is committed if there is a pool, else of all that is written."""
        return self.wrote_offset if self.pool is None else self.files.committed_where

    @property
    def wrote_offset(self) -> int:
        """Where the next record goes, unless it needs a new file."""
        file = self._file
        return self.files.max_wrote_position if file is None else file.base_offset + file.wrote_position

    @property
    def flushed_offset(self) -> int:
        """Everything below is on disk."""
        return self.files.flushed_where

    def visible_end(self) -> int:
        """End of what consumers may see; under SYNC_FLUSH only what a power failure cannot take back."""
        if self.confirm_offset is not None:
            return min(self.confirm_offset, self.flushed_offset if self._flush_sync else self.max_offset)
        if self._flush_sync:
            return self.files.flushed_where
        file = self._file
        if self.pool is not None or file is None:
            return self.max_offset
        return file.base_offset + file.wrote_position  # `max_offset`, inlined for frequent calls

    def is_able_to_flush(self, least_pages: int) -> bool:
        """Whether a file is full and unsynced, or has at least so many unsynced pages; with 0, any byte."""
        return is_able_to_flush(self.flushed_offset, self.max_offset, self._file_size, least_pages)

    def is_able_to_commit(self, least_pages: int) -> bool:
        """The same for what is written and not committed."""
        return is_able_to_flush(self.max_offset, self.wrote_offset, self._file_size, least_pages)

    def next_file_offset(self, offset: int) -> int:
        """Start of the file after the one that contains `offset`."""
        return offset - offset % self._file_size + self._file_size

    def adopt_last_file(self) -> None:
        """Continue appending to the last file, once recovery has set where it ends.

        Nothing is appended until its disk space is reserved: see `file_refusal`.
        """
        file = self.files.last_file
        if file is None:
            return
        self._enter(file, None if file.is_full else self._borrow_buffer())
        if not file.is_full:
            self.supply.note_found(file)
            self._limit = 0
            with suppress(DiskFull, FileNotMade):
                self._lift_limit()

    def _lift_limit(self) -> None:
        """Allow the last file that a start found to be filled. Raises as `supply.prepare` does."""
        self.supply.reserve_found()
        self._limit = self._file_size

    # -- open and close --------------------------------------------------------------------------------------

    def open_pool(self) -> None:
        """Create the buffers of the pool, if there is one (event `memory_not_locked`). Blocks."""
        if self.pool is None:
            return
        refusal = self.pool.open()
        if refusal is not None:
            facts = {"what": "transient store pool", "size_bytes": self.pool.size * self.pool.count}
            self._options.on_event("memory_not_locked", {**facts, "reason": refusal.strerror})

    def close(self) -> None:
        """Close every file and free the buffers. Commits and flushes nothing."""
        self.files.close()
        if self.pool is not None:
            self.pool.close()

    # -- append ----------------------------------------------------------------------------------------------

    def needs_new_file(self, size: int) -> bool:
        """Return whether appending `size` bytes would have to create a file, or to reserve the space of the one in use.

        Notes whether a worker has reserved it meanwhile.
        """
        if self.has_room(size):
            return False
        if self.supply.has_found:
            return True
        if self._limit:
            return not self.files.prepared_count
        self._limit = self._file_size  # a worker has reserved it meanwhile
        return self.needs_new_file(size)

    def note_file_wait(self) -> None:
        """Count a put that has to wait for a file."""
        if self._file is not None:
            self.file_waits += 1

    def append(self, blocks: Sequence[Block]) -> list[PutResult]:
        """Append the first block, and those after it that fit into the same file, with one write.

        None is larger than `block_bytes_max`. A killed process leaves all of them or none. They are durable once the
        log is flushed past their end.

        Raises:
            DiskFull, FileNotMade: a new file was needed and could not be created; nothing has changed.
            StorePoolExhausted: a new file was needed and no buffer is free for it; nothing has changed.
        """
        file, size = self._file, len(blocks[0].data)
        if file is None or file.wrote_position + size + BLANK_BYTES > self._limit:
            self._roll(size)
            file = self._file
        assert file is not None, "there is room in it"
        first_offset = end_offset = file.base_offset + file.wrote_position
        limit = file.base_offset + self._limit - BLANK_BYTES
        now = self._clock_ms()
        known = self.next_queue_offsets
        taken: dict[tuple[str, int], int] = {}
        results: list[PutResult] = []
        parts: list[Buffer] = []
        for block in blocks:
            physical_offset, end_offset = end_offset, end_offset + len(block.data)
            if end_offset > limit:
                end_offset = physical_offset
                break
            count, queue_offset = block.count, 0
            if block.gets_queue_offset:
                key = (block.topic, block.queue_id)
                queue_offset = taken[key] if key in taken else known.get(key, 0)
                taken[key] = queue_offset + count
            parts.append(block.data)
            results.append(PutResult(PutStatus.PUT_OK, queue_offset, physical_offset, end_offset, now, count))
        only = memoryview(parts[0])
        data = only if len(parts) == 1 and not only.readonly else bytearray().join(parts)  # patched in place
        for block, result in zip(blocks, results, strict=False):
            patch_block(
                data,
                result.physical_offset - first_offset,
                result.end_offset - first_offset,
                result.queue_offset,
                int(block.gets_queue_offset),
                result.physical_offset,
                now,
                b"" if block.born_host is None else block.born_host + self._store_host,
                # Whether a record may end with a checksum of the whole record.
                block.check is None or block.check.sealed > 0,
            )
        file.write_published(data)
        known.update(taken)
        self.last_store_timestamp_ms = now
        if end_offset >= self.supply.prepare_from:
            self._want_file(end_offset)
        self.on_appended(end_offset)
        return results

    def begin_at(self, offset: int) -> None:
        """Create the first file of an empty log, so that the log begins there: at the start of a file. Blocks.

        Raises as `supply.prepare`.
        """
        self.supply.make_first(offset)
        fresh = self.files.last_file
        assert fresh is not None, "it was made"
        self._enter(fresh, None)

    def append_replicated(self, physical_offset: int, data: Buffer, stored_ms: int) -> int:
        """Append bytes of a master's log as they are; return the end of the log.

        Args:
            physical_offset: where they are in the master's log, which is the end of this one.
            data: whole records, or the blank record with everything after it, in one file.
            stored_ms: store time of the last record; 0 if there is none.

        Raises:
            ValueError: they do not continue this log, or do not fit into the file; nothing has changed.
            DiskFull, FileNotMade: a new file was needed and could not be created; nothing has changed.
        """
        end_offset = physical_offset + len(data)
        if physical_offset != self.wrote_offset:
            raise ValueError(f"log offset {physical_offset} is not the end of this log, {self.wrote_offset}")
        if not 0 < len(data) <= self.next_file_offset(physical_offset) - physical_offset:
            raise ValueError(f"{len(data)} bytes at log offset {physical_offset} do not fit into their file")
        if not self._limit:
            self._lift_limit()
        if self._file is None or self._file.is_full:
            self._roll(0)
        file = self._file
        assert file is not None, "it was entered"
        file.write_published(data)
        self.last_store_timestamp_ms = stored_ms or self.last_store_timestamp_ms
        if end_offset >= self.supply.prepare_from:
            self._want_file(end_offset)
        self.on_appended(end_offset)
        return end_offset

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes fit into the file in use."""
        file = self._file
        return file is not None and file.wrote_position + size + BLANK_BYTES <= self._limit

    def _want_file(self, offset: int) -> None:
        self.supply.reached(offset)
        self.on_file_wanted()

    def _roll(self, size: int) -> None:
        """End the file in use with a blank record and continue in the next one, creating it if necessary.

        If nothing could be appended to the file in use so far, `size` bytes may go into it now.
        """
        if not self._limit:
            self._lift_limit()
            if self._file is not None and self.has_room(size):
                return
        buffer = self._borrow_buffer()
        if buffer is None and self.pool is not None and self._options.fast_fail_if_no_buffer:
            raise StorePoolExhausted(self.pool.count)
        try:
            file = self._file
            if file is None:
                self.supply.make_first()
            elif not self.files.prepared_count:
                self.note_file_wait()
                self.supply.make_needed()
        except BaseException:
            if buffer is not None:
                buffer.give_back()
            raise
        if file is not None and not file.is_full:
            file.seal(encode_blank(self._file_size - file.wrote_position))
        fresh = self.files.last_file_for(create=True)
        assert fresh is not None, "it was made before"
        self._enter(fresh, buffer)

    def _borrow_buffer(self) -> WriteBuffer | None:
        return None if self.pool is None else self.pool.borrow()

    def _enter(self, file: MappedFile, buffer: WriteBuffer | None) -> None:
        if buffer is not None:
            file.write_through(buffer)
        file.expect_appends()
        self._file = file
        self.supply.entered(file)
        if self.supply.has_full_to_unlock:
            self.on_file_wanted()

    # -- read ------------------------------------------------------------------------------------------------

    def read(self, physical_offset: int, size: int) -> bytes:
        """Copy `size` bytes out of the mapping. They must be in one file and below `max_offset`.

        Raises:
            FileMissing: that file has been deleted, or is being deleted.
        """
        file = self.hold_file_at(physical_offset)
        try:
            return file.copy_of(physical_offset - file.base_offset, size)
        finally:
            file.release()

    def is_resident(self, physical_offset: int, size: int) -> bool:
        """Whether these bytes of one file are in memory, so that `read` need not wait. For the owner.

        True if the file has been deleted: then there is nothing to wait for.
        """
        try:
            file = self.hold_file_at(physical_offset)
        except FileMissing:
            return True
        try:
            return file.is_resident(physical_offset - file.base_offset, size, self._scratch)
        finally:
            file.release()

    def hold_file_at(self, physical_offset: int) -> MappedFile:
        """Return the file that contains an offset, held until its `release`, whatever is deleted.

        Raises:
            FileMissing: it has been deleted, or is being deleted.
        """
        file = self.files.find_by_offset(physical_offset)
        if file is None or not file.hold():
            raise FileMissing(
                self.files.directory, f"no file holds log offset {physical_offset}; it has been deleted since"
            )
        return file

    def message_at(self, physical_offset: int, limit: int, *, cold: bool) -> bytes | None:
        """Return the record that starts at `physical_offset` and ends by `limit`; None if none does.

        At any offset: only a valid record that names this very offset is returned. With `cold` it is read by a
        positional read, in any thread, which blocks no other. A file that is being deleted has no records.
        """
        if physical_offset + STORE_TIME_BYTES > limit:
            return None
        try:
            file = self.hold_file_at(physical_offset)
        except FileMissing:
            return None
        try:
            position = physical_offset - file.base_offset
            head = _read_held(file, position, STORE_TIME_BYTES, cold)
            if len(head) < STORE_TIME_BYTES:
                return None
            found = read_head(head)
            if (
                not found.is_message
                or found.physical_offset != physical_offset
                or not STORE_TIME_BYTES < found.size <= min(limit, file.end_offset) - physical_offset
            ):
                return None
            record = _read_held(file, position, found.size, cold)
        finally:
            file.release()
        if scan_record(record, 0, found.size, check_crc=True).status is not ScanStatus.RECORD:
            return None
        return record

    def store_timestamp_at(self, physical_offset: int, *, cold: bool = False) -> int:
        """The store time of the record there, -1 if it is not in the log; `cold` as in `message_at`."""
        head = self.head_at(physical_offset, STORE_TIME_BYTES, cold=cold)
        return -1 if head is None else store_timestamp_at(head)

    def head_at(self, physical_offset: int, size: int, *, cold: bool) -> bytes | None:
        """Return the first bytes of the record there, unchecked; None if they are not in the log; `cold` as in
        `message_at`.
        """
        if physical_offset + size > self.max_offset:
            return None
        try:
            file = self.hold_file_at(physical_offset)
        except FileMissing:
            return None
        try:
            head = _read_held(file, physical_offset - file.base_offset, size, cold)
        finally:
            file.release()
        return None if len(head) < size else head


def _read_held(file: MappedFile, position: int, size: int, cold: bool) -> bytes:
    if cold:
        return file.read_held(position, size)
    return bytes(file.slice(position, max(0, min(size, file.read_position - position))))
