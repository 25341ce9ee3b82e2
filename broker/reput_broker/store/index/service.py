"""The index over all its files: creating, filling, keeping after a crash, deleting (RocketMQ: IndexService).

The index is complete up to the log offset `position`; what follows is dispatched to it again, after
a crash from the end of the last file that is known to be complete. RocketMQ loses the older keys of
the file that was in use.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from reput_broker.store.base.checkpoint import FlushMark, StoreCheckpoint
from reput_broker.store.base.dispatch import DeletedTopics, DispatchBatch
from reput_broker.store.base.errors import DiskFull, FileNotMade, FlushFailed, ForeignFile, StoreDamaged, StoreError
from reput_broker.store.base.file_io import is_out_of_descriptors, make_directories, sync_directory
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import StoreStats
from reput_broker.store.base.running_flags import RunningFlags
from reput_broker.store.index.file import IndexFile, IndexHeader, index_file_size
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.log.mapped_file import OpenMappings
from reput_broker.store.queue.reput import STEP_BYTES_MAX, LogFollower
from reput_protocol.kernel.records import crc32
from reput_protocol.store.files import holds_only_zeros

KEY_FIELDS: Final = 3
"""Numbers per key: its index hash, physical offset and store time."""
KEYS_AT_ONCE: Final = 1024
"""How many keys are collected before they are inserted."""


class KeyBacklog:
    """The keys of records before the log offset `end_offset` that are not in a file yet."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.keys: array[int] = array("q")
        """`KEY_FIELDS` numbers per key, in insertion order."""

    @property
    def is_due(self) -> bool:
        """Whether there are enough keys to insert them."""
        return len(self.keys) >= KEY_FIELDS * KEYS_AT_ONCE

    def start_at(self, offset: int) -> None:
        """Clear the backlog; the next keys are those of records from a log offset on."""
        self.end_offset = offset
        self.keys = array("q")

    def add(self, batch: DispatchBatch) -> None:
        """Add the keys of the batch that were not added before."""
        if batch.end_offset <= self.end_offset:
            return
        keys = batch.rows.keys()
        if batch.start_offset < self.end_offset:
            known = sum(offset < self.end_offset for offset in keys[1::KEY_FIELDS])
            del keys[: KEY_FIELDS * known]
        self.keys += keys
        self.end_offset = batch.end_offset

    def drop(self, count: int) -> None:
        """Remove the first `count` keys: they have been inserted."""
        del self.keys[: KEY_FIELDS * count]


_NAME_DIGITS = 17  # yyyyMMddHHmmssSSS
_OPEN_MAX = 256


class IndexService:
    """The index files of one directory, oldest first, and the dispatcher that fills them.

    Args:
        directory: created when the first key is inserted.
        clock_ms: names new files.
        open_max: how many files stay mapped, besides those that are written.
    """

    def __init__(
        self, directory: Path, slots: int, entries: int, *, clock_ms: Callable[[], int], open_max: int = _OPEN_MAX
    ) -> None:
        self.directory = directory
        self._open = OpenMappings(open_max)
        self.position = 0
        """Every record before this log offset has its keys in the index."""
        self.resume_from = 0
        """Start of the record from which the log has to be read to bring the index up to date."""
        self.on_file_wanted: Callable[[], None] = lambda: None
        """Called while keys are inserted, when the next file should be created."""
        self.is_behind = False
        """Whether the index is being brought up to date from `position` on; `dispatch` then does nothing."""
        self.full_until_ms = 0
        """Store time of the last key of the last full file that is on disk (RocketMQ: indexMsgTimestamp)."""
        self._slots = slots
        self._entries = entries
        self._clock_ms = clock_ms
        self._files: list[IndexFile] = []
        self._prepared: IndexFile | None = None
        self._unfinished: list[Path] = []
        self._unflushed: list[IndexFile] = []
        self._make_lock = threading.Lock()
        self._backlog = KeyBacklog()

    @property
    def files(self) -> tuple[IndexFile, ...]:
        """All files that hold keys, oldest first."""
        return tuple(self._files)

    @property
    def last_header(self) -> IndexHeader | None:
        """The header of the newest file, None if there is none."""
        return self._files[-1].header if self._files else None

    @property
    def digest(self) -> int:
        """A checksum of every file's name and header, as an orderly stop leaves them."""
        parts = [f"{file.path.name}:{tuple(file.header)}" for file in self._files]
        return crc32("\n".join(parts).encode())

    @property
    def _end_offset(self) -> int:
        return self._files[-1].header.end_physical_offset if self._files else 0

    # -- opening and closing ---------------------------------------------------------------------------------

    def load(self, *, after_crash: bool = False) -> None:
        """Map the existing files, in the order of their names. Changes nothing.

        After a crash a file that is too short and holds only zeros, as a kill leaves it, is tolerated until
        `keep_whole` removes it.

        Raises:
            ForeignFile: a name or a size is not that of an index file of this geometry.
        """
        if not self.directory.is_dir():
            return
        for name in sorted(entry.name for entry in os.scandir(self.directory)):
            path = self.directory / name
            if not (name.isascii() and name.isdecimal() and len(name) == _NAME_DIGITS) or not path.is_file():
                raise ForeignFile(
                    path, "it is not an index file; move it away (index files are named by 17 digits of a time)"
                )
            if after_crash and self._is_unfinished(path):
                self._unfinished.append(path)
                continue
            self._files.append(self._file(path, create=False))

    def _is_unfinished(self, path: Path) -> bool:
        size = path.stat().st_size
        return size < index_file_size(self._slots, self._entries) and holds_only_zeros(path, size)

    def keep_whole(self, full_until_ms: int, log_end: int, before_removal: Callable[[], None] = lambda: None) -> None:
        """After a disorderly stop: delete every file that is not known to be complete and on disk.

        Kept are the full files that end before `full_until_ms`, and the first one that ends then, since others may have
        been filled in the same millisecond. A file with records that the log does not hold is deleted too. If the clock
        was set back, names and times prove nothing: all files are deleted if their names are not in the order of their
        records, and all from the first one on whose times do not ascend.

        `full_until_ms` becomes the end of the last kept file, so that a rebuilt file is not mistaken for a complete
        one. `before_removal` may make that durable: an interrupted removal can leave later files without earlier ones.
        """
        kept = before_ms = 0
        for file in self._files if self._names_agree() else ():
            begin_ms, end_ms = file.header.begin_timestamp_ms, file.header.end_timestamp_ms
            in_time = before_ms <= begin_ms <= end_ms <= full_until_ms
            before_ms = end_ms
            whole = file.is_plausible and file.is_full and in_time
            if not whole or file.header.end_physical_offset >= log_end:
                break
            kept += 1
            if end_ms == full_until_ms:
                break
        removed = self._files[kept:]
        del self._files[kept:]
        self.full_until_ms = self._files[-1].header.end_timestamp_ms if self._files else 0
        if removed:
            before_removal()
        self._remove_unfinished()
        self._delete(removed)
        # The last record of a full file may have more keys than fit: it is dispatched again.
        self._continue_from(self._end_offset)

    def _names_agree(self) -> bool:
        begins = [file.header.begin_physical_offset for file in self._files if not file.is_empty]
        return begins == sorted(begins)

    def keep_all(self, position: int | None, full_until_ms: int) -> None:
        """After an orderly stop: continue with all files from `position`; None: after their last record."""
        self.full_until_ms = full_until_ms
        empty = [file for file in self._files if file.is_empty]
        self._files = [file for file in self._files if not file.is_empty]
        self._delete(empty)
        if position is not None:
            self._continue_from(position)
        elif self._files:
            self._continue_from(self._end_offset, after_record=True)

    def drop_all(self, before_removal: Callable[[], None] = lambda: None) -> None:
        """Delete every file: the index is to be rebuilt. Like `keep_whole` if it kept none."""
        removed, self._files = self._files, []
        self.full_until_ms = 0
        if removed:
            before_removal()
        self._remove_unfinished()
        self._delete(removed)
        self._continue_from(0)

    def _continue_from(self, record_offset: int, *, after_record: bool = False) -> None:
        self.resume_from = record_offset
        self.position = record_offset + after_record
        self._backlog.start_at(self.position)

    def flush(self) -> None:
        """Sync every file. Blocks.

        Raises:
            FlushFailed: the sync failed.
        """
        for file in self._files:
            file.flush()
        self._unflushed.clear()

    def flush_full_files(self) -> bool:
        """Sync files that have become full; return whether there were any. Blocks, in any thread.

        (RocketMQ: IndexService.flush, which advances the checkpoint's index time.)

        Raises:
            FlushFailed: the sync failed.
        """
        flushed = False
        while self._unflushed:
            file = self._unflushed[0]
            file.flush()
            self.full_until_ms = file.header.end_timestamp_ms
            self._unflushed.pop(0)
            flushed = True
        return flushed

    def close(self) -> None:
        """Unmap all files and delete an unused prepared one."""
        if self._prepared is not None:
            self._delete([self._prepared])
            self._prepared = None
        for file in self._files:
            file.close()
        self._files.clear()
        self._unflushed.clear()
        self._backlog.start_at(self.position)

    def _remove_unfinished(self) -> None:
        for path in self._unfinished:
            path.unlink(missing_ok=True)
        if self._unfinished:
            sync_directory(self.directory)
            self._unfinished = []

    def _delete(self, files: list[IndexFile]) -> None:
        for file in files:
            file.close()
            file.path.unlink(missing_ok=True)
        if files:
            sync_directory(self.directory)

    # -- filling ---------------------------------------------------------------------------------------------

    def dispatch(self, batch: DispatchBatch) -> None:
        """Take a batch that follows the previous ones; while the index is behind, do nothing.

        Keys are inserted once enough of them are collected; call `complete` before a look-up.

        Raises:
            DiskFull: a new file is needed and there is no room; the same batch may be offered
                again.
        """
        if not self.is_behind:
            self.apply(batch)

    def apply(self, batch: DispatchBatch) -> None:
        """As `dispatch`, to bring an index up to date that is behind.

        Raises:
            DiskFull: as `dispatch`.
        """
        if self._backlog.is_due:
            self.complete()
        self._backlog.add(batch)

    def complete(self) -> None:
        """Insert all collected keys. In the thread that dispatches.

        Raises:
            DiskFull: as `dispatch`; keys without room stay collected.
        """
        backlog = self._backlog
        keys = backlog.keys
        count = len(keys) // KEY_FIELDS
        done = 0
        try:
            while done < count:
                file = self._current()
                stop = done + min(file.room, count - done)
                file.insert(keys, done, stop)
                done = stop
        finally:
            backlog.drop(done)
        self.position = backlog.end_offset
        if self.should_prepare_next_file():
            self.on_file_wanted()

    def _current(self) -> IndexFile:
        last = self._files[-1] if self._files else None
        if last is not None and not last.is_full:
            self.reserve_last_file()
            return last
        # A file that a worker is creating is the next one: another would get a later name.
        with self._make_lock:
            file, self._prepared = self._prepared, None
            if file is None:
                file = self._make()
            if last is not None:
                file.continue_from(last.header)
                self._unflushed.append(last)
            self._files.append(file)
        return file

    def reserve_last_file(self) -> None:
        """Reserve disk space for the last file if a start found it and it is not full. Blocks.

        Raises:
            DiskFull: there is no room; may be retried.
            OSError: the system call failed; may be retried.
        """
        last = self._files[-1] if self._files else None
        if last is not None and not last.is_full and not last.is_reserved:
            last.reserve_space()

    def should_prepare_next_file(self) -> bool:
        """Whether the file in use is at least half full and the next one has not been created."""
        if self._prepared is not None or not self._files:
            return False
        return self._files[-1].room < self._entries // 2

    def prepare_next_file(self) -> None:
        """Create the next file ahead of need. Blocks; may run in a worker thread.

        Raises:
            DiskFull: there is no room.
        """
        with self._make_lock:
            if self.should_prepare_next_file():
                self._prepared = self._make()

    def _make(self) -> IndexFile:
        make_directories(self.directory)
        now = datetime.fromtimestamp(self._clock_ms() / 1000)
        name = now.strftime("%Y%m%d%H%M%S") + f"{now.microsecond // 1000:03d}"
        newest = max((file.path.name for file in self._files), default="")
        if name <= newest:  # names must ascend, whatever the clock says
            name = f"{int(newest) + 1:0{_NAME_DIGITS}d}"
        return self._file(self.directory / name, create=True)

    def _file(self, path: Path, *, create: bool) -> IndexFile:
        file = IndexFile(path, self._slots, self._entries, create=create)
        file.mappings = self._open
        self._open.opened(file)
        return file

    # -- looking up and cleaning -----------------------------------------------------------------------------

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the offsets of records that may have a key with this hash, newest first."""
        for file in reversed(self.files):
            if file.holds_times(begin_ms, end_ms):
                yield from file.find(key_hash, begin_ms, end_ms)

    def find_by_time(self, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the offsets of records that may be stored in `[begin_ms, end_ms]`, newest first, once for each key."""
        for file in reversed(self.files):
            if file.holds_times(begin_ms, end_ms):
                yield from file.find_by_time(begin_ms, end_ms)

    def delete_expired(self, min_physical_offset: int) -> int:
        """Delete the oldest files whose records have all left the log, never the last file; return how many.

        Blocks; may run in a worker thread during all other calls. A file that is still to be synced, perhaps now by
        another thread, is kept for the next call.
        """
        expired: list[IndexFile] = []
        for file in self.files[:-1]:
            if file.header.end_physical_offset >= min_physical_offset or file in self._unflushed:
                break
            expired.append(file)
        del self._files[: len(expired)]
        self._delete(expired)
        return len(expired)


INDEX_AT_ONCE_BYTES = 64 << 20
"""How much of the log is indexed again during a start; more is done afterwards."""


class StoreIndex:
    """The index of one store, or its absence. Owned like the store.

    Args:
        dispatched_offset: end of the running dispatch, which continues the index once it is
            complete up to there.
    """

    def __init__(
        self,
        index: IndexService | None,
        log: CommitLog,
        deleted: DeletedTopics,
        checkpoint: StoreCheckpoint,
        flags: RunningFlags,
        *,
        dispatched_offset: Callable[[], int],
        options: StoreOptions,
    ) -> None:
        self._index = index
        self._log = log
        self._deleted = deleted
        self._checkpoint = checkpoint
        self._flags = flags
        self._dispatched_offset = dispatched_offset
        self._options = options
        self._reader: LogFollower | None = None
        self.has_gap = False
        """Whether the index lacks records that cannot be read from the log."""
        self._is_failing = False

    def complete(self, end_offset: int) -> None:
        """Index what the index lacks: now if that is little, otherwise in steps while the broker runs."""
        index = self._index
        if index is None:
            return
        start = max(index.resume_from, self._log.min_offset)
        if start >= end_offset:
            return
        self._read_from(start, index)
        if end_offset - start <= INDEX_AT_ONCE_BYTES:
            with suppress(DiskFull, FlushFailed, OSError):  # later steps retry
                while self.index_step():
                    pass
        else:
            self._options.on_event("index_behind", {"from_offset": start, "to_offset": end_offset})

    def _read_from(self, offset: int, index: IndexService) -> None:
        index.is_behind = True
        self._reader = LogFollower(
            self._log,
            [_IndexAlone(index)],
            self._deleted,
            StoreStats(),
            limit=self._dispatched_offset,
            position=offset,
            levels_ms=self._options.delay_levels_ms,
        )

    def dispatch(self, batch: DispatchBatch) -> None:
        """Take a batch that follows the previous ones.

        If the index cannot be written for another reason than lack of space or descriptors, it falls behind: dispatch
        does not wait for what can be rebuilt from the log at any time.

        Raises:
            DiskFull: there is no room for a new index file; the same batch may be offered again.
            OSError: no descriptor was free; the same batch may be offered again.
        """
        index = self._index
        if index is None:
            return
        try:
            index.dispatch(batch)
        except (FlushFailed, OSError) as error:
            if isinstance(error, OSError) and is_out_of_descriptors(error):
                raise
            self._fall_behind(batch.start_offset, error, index)

    def _fall_behind(self, offset: int, error: FlushFailed | OSError, index: IndexService) -> None:
        self._read_from(offset, index)
        self._note_failure(error, index)

    def _note_failure(self, error: FlushFailed | OSError, index: IndexService) -> None:
        """Report that the index cannot be written (event `index_not_written`, until `index_complete`)."""
        if not self._is_failing:
            self._is_failing = True
            path = getattr(error, "filename", None) or (
                index.files[-1].path if index.files else index.directory / "..."
            )
            self._options.on_event("index_not_written", {"reason": str(FileNotMade(path, error))})

    def index_step(self, max_bytes: int = STEP_BYTES_MAX) -> int:
        """Index about `max_bytes` of what the index lacks; return how many records. 0: it lacks nothing.

        If the log cannot be read there, which a start need not notice so far back, the index continues with new
        messages, and every query reports that messages may be missing.

        Raises:
            DiskFull: there is no room for a new index file; the step may be repeated.
            FlushFailed, OSError: one cannot be created for another reason; the step may be repeated.
        """
        reader, index = self._reader, self._index
        if reader is None or index is None:
            return 0
        try:
            count = reader.step(max_bytes)
            if not count and self._is_failing:
                index.complete()
        except (FlushFailed, OSError) as error:
            self._note_failure(error, index)
            raise
        except StoreDamaged as damage:
            self._reader = None
            self.has_gap = True
            self._is_failing = index.is_behind = False
            self._options.on_event("index_incomplete", {"reason": str(damage)})
            return 0
        if not count:
            # From here on every dispatched batch is indexed too.
            self._reader = None
            self._is_failing = index.is_behind = False
            self._options.on_event("index_complete", {"offset": index.position})
        return count

    @property
    def index_behind_bytes(self) -> int:
        """Bytes of the log whose entries are in the queues but whose keys are not in the index yet."""
        return 0 if self._reader is None else self._reader.behind_bytes

    def complete_index(self) -> None:
        """Make everything that was dispatched findable by key. In the thread that dispatches.

        If the index cannot be written, it falls behind as in `dispatch`, and queries report that.

        Raises:
            DiskFull: there is no room for a new index file; may be retried.
        """
        index = self._index
        if index is None or self._is_failing:
            return
        try:
            index.complete()
        except (FlushFailed, OSError) as error:
            if self._reader is None:
                self._read_from(self._dispatched_offset(), index)
            self._note_failure(error, index)

    def flush_index(self) -> None:
        """Sync index files that have become full, and record that in the checkpoint. Blocks.

        Raises:
            StoreReadOnly: the sync failed. The index can be rebuilt, but not by this process.
            OSError: no descriptor was free; the next call does it.
        """
        if self._index is None:
            return
        try:
            if self._index.flush_full_files():
                self._checkpoint.index_msg_timestamp_ms = self._index.full_until_ms
                self._checkpoint.flush()
        except (StoreError, OSError) as error:
            if isinstance(error, OSError) and is_out_of_descriptors(error):
                raise
            raise self._flags.final(error) from error

    def finish(self, mark: FlushMark) -> FlushMark:
        """Sync the whole index before an orderly stop; return the mark with the index's final state.

        The checkpoint's index time advances, in memory. Blocks.

        Raises:
            DiskFull, FlushFailed: there is no room for a new index file, or the sync failed.
        """
        index = self._index
        if index is None:
            return mark
        try:
            index.complete()
        except (FlushFailed, OSError) as error:  # the next start rebuilds it
            self._note_failure(error, index)
            return mark
        index.flush_full_files()
        index.flush()
        self._checkpoint.index_msg_timestamp_ms = index.full_until_ms
        if self.has_gap:  # the next start tries again
            return mark
        return mark._replace(index_offset=index.position, index_digest=index.digest)


@dataclass(eq=False, repr=False)
class _IndexAlone:
    """Feeds the index what it lacks, while its own `dispatch` does nothing."""

    _index: IndexService

    def dispatch(self, batch: DispatchBatch) -> None:
        self._index.apply(batch)
