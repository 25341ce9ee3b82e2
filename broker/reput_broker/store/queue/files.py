"""A stream of bytes in consecutive sparse files, written and read by position; used by ConsumeQueues.

The files have the names and sizes of mapped files, but are neither preallocated nor mapped: a thousand small queues
would hold gigabytes of zeros. Positional writes report a full disk as an error number instead of a signal.

A killed process loses nothing for which `write` returned. After a power failure any page written after the last `flush`
may be zero, but only in the last three files, because the oldest is synced before a fourth would hold unsynced bytes.
So recovery reads the last three files only.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from reput_broker.store.base.errors import DiskFull, FileMissing, FlushFailed
from reput_broker.store.base.file_io import (
    is_able_to_flush,
    is_no_space,
    list_stream_files,
    sync_data,
    sync_directory,
    write_all,
    zero_range,
)
from reput_protocol.buffers import Buffer
from reput_protocol.kernel.units import address_units, valid_units
from reput_protocol.store.files import file_name
from reput_protocol.store.unit import UNIT_BYTES, ConsumeQueueUnit, unpack_unit


@dataclass(eq=False, repr=False, slots=True)
class QueueFile:
    """A leased open file; `fd` is valid until the lease is released."""

    path: Path
    fd: int
    leases: int = field(default=0, init=False)
    listed: bool = field(default=True, init=False)


class QueueFileCache:
    """Least-recently-used cache of open files, shared by all queues; thread-safe.

    Mapping a file for each of ten thousand queues would exceed any limit of open files. A file that is evicted while
    the flush thread syncs it is closed when that lease ends, since its descriptor number could be reused.
    """

    def __init__(self, open_max: int) -> None:
        assert open_max > 0
        self.open_max = open_max
        self._files: OrderedDict[Path, QueueFile] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def lease(self, path: Path) -> QueueFile:
        """Return the open file, opening it if necessary; give it back with `release`.

        Raises:
            FileMissing: the file does not exist.
        """
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._insert(path, _open(path))
            else:
                self._files.move_to_end(path)
            file.leases += 1
            return file

    def create(self, path: Path, size: int) -> QueueFile:
        """Create a sparse file of `size` zero bytes and lease it.

        Raises:
            OSError: it could not be created; no file is left behind.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, size)
        except BaseException:
            os.close(fd)
            os.unlink(path)
            raise
        with self._lock:
            file = self._insert(path, fd)
            file.leases += 1
            return file

    def release(self, file: QueueFile) -> None:
        """End a lease."""
        with self._lock:
            file.leases -= 1
            if file.leases == 0 and not file.listed:
                os.close(file.fd)

    def forget(self, path: Path) -> None:
        """Drop a file that is about to be deleted; its leases stay valid until they end."""
        with self._lock:
            file = self._files.pop(path, None)
            if file is not None:
                self._unlist(file)

    def forget_topic(self, directory: Path) -> None:
        """Drop the files of all queues in a topic's directory, which is not at its place any more."""
        with self._lock:
            for path in [path for path in self._files if path.parent.parent == directory]:
                self._unlist(self._files.pop(path))

    def close(self) -> None:
        """Close every file that is not leased; the others close when their lease ends."""
        with self._lock:
            while self._files:
                self._unlist(self._files.popitem()[1])

    def _insert(self, path: Path, fd: int) -> QueueFile:
        file = self._files[path] = QueueFile(path, fd)
        if len(self._files) > self.open_max:
            self._unlist(self._files.popitem(last=False)[1])
        return file

    def _unlist(self, file: QueueFile) -> None:
        file.listed = False
        if file.leases == 0:
            os.close(file.fd)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise FileMissing(
            path, "it was there when the store was opened; restart the broker to have the queue rebuilt"
        ) from error


RECOVERED_FILES = 3


class SparseFileQueue:
    """Bytes `[first_start, end)` of a stream, in files of `file_size` bytes.

    `flushed <= end`; both are positions in the stream, 0 without files. One thread writes, truncates and destroys;
    `flush` and `drop_first` may each run in another meanwhile.

    After `load` the end can be moved back (`set_end`) without changes on disk, so that a start can judge the result.
    `apply_recovery` then changes the disk accordingly; nothing may be written before.
    """

    __slots__ = (
        "_cache", "_flush_error", "_generation", "_last_path", "_lock", "_names_dirty", "_strays", "_surplus",
        "_unfinished", "_unsynced_removal", "directory", "end", "file_size", "first_start", "flushed", "is_empty",
        "last_start",
    )  # fmt: skip

    def __init__(self, directory: Path, file_size: int, cache: QueueFileCache) -> None:
        self.directory = directory
        self.file_size = file_size
        self._cache = cache
        self._lock = threading.Lock()
        self._flush_error: FlushFailed | None = None
        self._generation = 0
        self._names_dirty = False
        self._unsynced_removal = False
        self._strays: list[Path] = []
        self._unfinished: list[Path] = []
        self._surplus: list[int] = []
        self._forget_files()

    def _forget_files(self) -> None:
        self.is_empty = True
        self.first_start = self.end = self.flushed = 0
        self._set_last(0)

    def load(self, *, after_crash: bool = False) -> None:
        """List the files; each counts as completely written and flushed until recovery sets its end.

        Changes nothing. A power failure may remove unsynced names and keep later ones. With `after_crash` the stream
        ends at such a gap, and `drop_strays` removes the rest. `apply_recovery` removes a last file that was never
        written.

        Raises:
            ForeignFile: a file that this store with this file size did not write.
            StoreDamaged: a file in the middle is missing.
        """
        self._strays = []
        self._unfinished = []
        starts: list[int] = []
        if self.directory.is_dir():
            strays = self._strays if after_crash else None
            starts = list_stream_files(self.directory, self.file_size, self._unfinished, strays=strays)
        if starts:
            self.is_empty = False
            self.first_start = starts[0]
            self._set_last(starts[-1])
            self.end = self.flushed = starts[-1] + self.file_size

    def drop_strays(self) -> int:
        """Durably delete the files that `load` found after a gap; return how many there were."""
        strays, self._strays = self._strays, []
        for path in strays:
            path.unlink()
        if strays:
            sync_directory(self.directory)
        return len(strays)

    def _set_last(self, start: int) -> None:
        self.last_start, self._last_path = start, self.directory / file_name(start)

    def _path(self, start: int) -> Path:
        return self._last_path if start == self.last_start else self.directory / file_name(start)

    def read(self, position: int, size: int) -> bytes:
        """Return the bytes at a position, all within one file.

        Raises:
            FileMissing: the file has been deleted; if by `drop_first`, `first_start` has advanced.
        """
        start = position - position % self.file_size
        file = self._cache.lease(self._path(start))
        try:
            return os.pread(file.fd, size, position - start)
        finally:
            self._cache.release(file)

    def write(self, position: int, data: Buffer) -> None:
        """Append bytes, creating files as needed; in an empty stream `position` is the start of a file.

        Raises:
            DiskFull: no file was added and `end` did not move; the same bytes may be written again.
            FlushFailed: an older file had to be synced first and could not; nothing was written.
        """
        file_size = self.file_size
        assert not self._surplus, "recovery is applied first"
        assert position == self.end if not self.is_empty else position % file_size == 0
        inside = position - self.last_start
        if not self.is_empty and inside + len(data) <= file_size and inside < file_size:
            file = self._cache.lease(self._last_path)
            try:
                write_all(file.fd, data, inside, file.path)
            finally:
                self._cache.release(file)
            self.end = position + len(data)
            return
        created: list[int] = []
        total = len(data)
        last = self.last_start if not self.is_empty else -1
        done = 0
        try:
            while done < total:
                at = position + done
                inside = at % file_size
                start = at - inside
                size = min(total - done, file_size - inside)
                if start == last:
                    file = self._cache.lease(self._path(start))
                else:
                    self._sync_before(start - (RECOVERED_FILES - 1) * file_size, at)
                    file = self._create(start)
                    created.append(start)
                    last = start
                try:
                    piece = data if size == total else memoryview(data)[done : done + size]
                    write_all(file.fd, piece, inside, file.path)
                finally:
                    self._cache.release(file)
                done += size
        except BaseException:
            self._undo(created)
            raise
        if created:
            self._names_dirty = True
            if self.is_empty:
                self.first_start = self.flushed = position
                self.is_empty = False
            # The path is the cache's own key object, which compares fast.
            self.last_start, self._last_path = last, file.path
        self.end = position + total

    def _create(self, start: int) -> QueueFile:
        path = self._path(start)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            return self._cache.create(path, self.file_size)
        except OSError as error:
            if is_no_space(error):
                raise DiskFull(path, self.file_size) from error
            raise

    def _undo(self, created: list[int]) -> None:
        for start in created:
            path = self._path(start)
            self._cache.forget(path)
            path.unlink(missing_ok=True)

    def _sync_before(self, limit: int, written: int) -> None:
        """Ensure that only the last three files hold unsynced bytes."""
        if self.is_empty or limit <= max(self.flushed, self.first_start):
            return
        position = self.flushed
        while position < min(limit, written):
            start = position - position % self.file_size
            self._sync_file(start)
            position = start + self.file_size
        with self._lock:
            self.flushed = max(self.flushed, min(position, self.end))

    # -- flushing ------------------------------------------------------------------------------------------

    @property
    def bytes_to_flush(self) -> int:
        """Bytes written and not yet known to be on disk."""
        return self.end - self.flushed

    def is_able_to_flush(self, least_pages: int) -> bool:
        """Whether to flush; see `file_io.is_able_to_flush`."""
        return is_able_to_flush(self.flushed, self.end, self.file_size, least_pages)

    def flush(self) -> int:
        """Sync everything written before the call, names included; return the flushed position.

        Blocks; may run during writes, truncation and `destroy`.

        Raises:
            FlushFailed: a sync failed, now or earlier; final.
        """
        if self._flush_error is not None:
            raise self._flush_error
        with self._lock:
            generation = self._generation
            position, end = self.flushed, self.end
            names_dirty, self._names_dirty = self._names_dirty, False
        try:
            while position < end:
                start = position - position % self.file_size
                try:
                    self._sync_file(start)
                except FileMissing:
                    if generation == self._generation and start >= self.first_start:
                        raise
                position = start + self.file_size
            if names_dirty:
                self._sync_names(generation)
        except BaseException:
            self._names_dirty = self._names_dirty or names_dirty
            raise
        with self._lock:
            if generation == self._generation:
                self.flushed = max(self.flushed, end)
            return self.flushed

    def _sync_file(self, start: int) -> None:
        file = self._cache.lease(self._path(start))
        try:
            sync_data(file.fd)
        except OSError as error:
            self._flush_error = FlushFailed(file.path, error)
            raise self._flush_error from error
        finally:
            self._cache.release(file)

    def _sync_names(self, generation: int) -> None:
        # Besides files, the directories of the queue, its topic and `consumequeue` may be new.
        for directory in (self.directory, *self.directory.parents[:3]):
            try:
                sync_directory(directory)
            except FileNotFoundError:
                if generation == self._generation:
                    raise
            except FlushFailed as error:
                self._flush_error = error
                raise

    # -- truncating and deleting -----------------------------------------------------------------------

    def set_end(self, end: int) -> None:
        """Set the end of the stream without changing the disk; call `apply_recovery` before anything else.

        At or before the position where the first file begins, nothing of the stream is left.
        """
        if self.is_empty:
            return
        end = max(end, self.first_start)
        assert end <= self.last_start + self.file_size
        keep_last = end - 1 - (end - 1) % self.file_size if end > self.first_start else -1
        with self._lock:
            self._generation += 1
            first = max(keep_last + self.file_size, self.first_start) if keep_last >= 0 else self.first_start
            self._surplus = [*range(first, self.last_start + 1, self.file_size), *self._surplus]
            if keep_last < 0:
                self._forget_files()
            else:
                self._set_last(keep_last)
                self.end = end
                self.flushed = min(self.flushed, end)

    def apply_recovery(self) -> int:
        """Delete the files after the stream's end and zero the rest of the last one.

        Returns:
            How many bytes were overwritten with zeros (whole chunks; deleted files not counted).
        """
        if self._delete_surplus():
            sync_directory(self.directory)
        inside = self.end - self.last_start
        if self.is_empty or inside == self.file_size:
            return 0
        file = self._cache.lease(self._last_path)
        try:
            return zero_range(file.fd, inside, self.file_size, file.path)
        finally:
            self._cache.release(file)

    def truncate(self, end: int) -> int:
        """Truncate the stream at a position: delete later files, zero the rest of the last one.

        A file that would be left without a byte is deleted too. For recovery; not during `write`.

        Returns:
            As `apply_recovery`.
        """
        self.set_end(end)
        return self.apply_recovery()

    def drop_first(self) -> bool:
        """Delete the oldest file; False if it is the only one or there is none. Blocks.

        Durable on return: two removals that reach the disk in the wrong order would leave a gap after a power failure.

        Raises:
            FlushFailed: the file is deleted, but the sync of the directory failed; final.
            OSError: the same for lack of a descriptor; the next call syncs first.
        """
        if self._unsynced_removal:
            self._sync_removal(self._generation)
        with self._lock:
            if self.is_empty or self.first_start == self.last_start:
                return False
            start = self.first_start
            self.first_start = start + self.file_size
            self.flushed = max(self.flushed, self.first_start)
            generation = self._generation
            self._delete(start)
            self._unsynced_removal = True
        self._sync_removal(generation)
        return True

    def _sync_removal(self, generation: int) -> None:
        try:
            sync_directory(self.directory)
        except FileNotFoundError:
            if generation == self._generation:
                raise
        except FlushFailed as error:
            self._flush_error = error
            raise
        self._unsynced_removal = False

    def forget(self) -> None:
        """Begin again without files. Those on disk are left to the caller, which moves their directory away."""
        with self._lock:
            self._generation += 1
            self._surplus.clear()
            self._unfinished.clear()
            self._forget_files()
            self._names_dirty = False
            self._unsynced_removal = False

    def destroy(self) -> None:
        """Durably delete all files and the directory if it is then empty. The stream can begin again afterwards."""
        with self._lock:
            self._generation += 1
            if not self.is_empty:
                for start in range(self.first_start, self.last_start + 1, self.file_size):
                    self._delete(start)
            self._delete_surplus()
            self._forget_files()
            self._names_dirty = False
            self._unsynced_removal = False
        if self.directory.is_dir() and not any(self.directory.iterdir()):
            self.directory.rmdir()
            sync_directory(self.directory.parent)

    def _delete_surplus(self) -> bool:
        """Delete files after the stream, the newest first; return whether there were any."""
        found = bool(self._surplus or self._unfinished)
        while self._unfinished:
            self._unfinished[-1].unlink(missing_ok=True)
            self._unfinished.pop()
        while self._surplus:
            self._delete(self._surplus[-1])
            self._surplus.pop()
        return found

    def _delete(self, start: int) -> None:
        path = self._path(start)
        self._cache.forget(path)
        path.unlink(missing_ok=True)


_CHUNK_UNITS = 16_384
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


class UnitsEnd(NamedTuple):
    """Where the valid units of a queue end."""

    position: int
    """Logic position; the start of the first file if there are no valid units."""
    last: ConsumeQueueUnit | None


class _Valid(NamedTuple):
    end: int
    last: ConsumeQueueUnit | None


def find_end(files: SparseFileQueue) -> UnitsEnd:
    """Find where the valid units of a loaded queue end.

    Scans the last three files. A unit is valid with a physical offset >= 0 and a size > 0. Pre-blank units alone do not
    count; RocketMQ would take them for an index of 2 GiB.
    """
    if files.is_empty:
        return UnitsEnd(0, None)
    begin = max(files.first_start, files.last_start - (RECOVERED_FILES - 1) * files.file_size)
    end, last = _valid_until(files, begin, files.end, _HIGHEST)
    if last is None and end > files.first_start:
        last = _unit_before(files, end)
    return _without_blanks(files, end, last)


def find_end_before(files: SparseFileQueue, physical_offset: int) -> UnitsEnd:
    """Find the end of the valid units of records before a physical offset: the first other unit ends them."""
    end, last = files.first_start, None
    start = files.last_start
    while not files.is_empty and start >= files.first_start:
        stop = min(start + files.file_size, files.end)
        end, last = _valid_until(files, start, stop, physical_offset)
        if last is not None:
            break
        start -= files.file_size
    return _without_blanks(files, end, last)


def _without_blanks(files: SparseFileQueue, end: int, last: ConsumeQueueUnit | None) -> UnitsEnd:
    if last is None or last.is_pre_blank:
        return UnitsEnd(files.first_start, None)
    return UnitsEnd(end, last)


def last_address(files: SparseFileQueue, end: int) -> ConsumeQueueUnit | None:
    """Return the last unit before a position that holds the address of an extended entry, or None.

    Usually that is the last unit. If extended entries have only just been enabled, it reads on to the first.
    """
    count = 1
    while end > files.first_start:
        inside = end - (end - 1) // files.file_size * files.file_size
        start = end - min(count * UNIT_BYTES, inside)
        data = files.read(start, end - start)
        _, found = address_units(data, _LOWEST)
        if found >= 0:
            return unpack_unit(data, found)
        end = start
        count = _CHUNK_UNITS
    return None


def first_address(files: SparseFileQueue, end: int, min_physical_offset: int) -> ConsumeQueueUnit | None:
    """Return the first unit before a position with an address and a record in the log, or None."""
    position = files.first_start
    count = 1
    while position < end:
        in_file = files.file_size - position % files.file_size
        data = files.read(position, min(count * UNIT_BYTES, in_file, end - position))
        found, _ = address_units(data, min_physical_offset)
        if found >= 0:
            return unpack_unit(data, found)
        position += len(data)
        count = _CHUNK_UNITS
    return None


def _valid_until(files: SparseFileQueue, position: int, stop: int, physical_limit: int) -> _Valid:
    last: ConsumeQueueUnit | None = None
    while position < stop:
        in_file = files.file_size - position % files.file_size
        data = files.read(position, min(_CHUNK_UNITS * UNIT_BYTES, in_file, stop - position))
        count = valid_units(data, physical_limit)
        if count:
            last = unpack_unit(data, count - 1)
            position += count * UNIT_BYTES
        if count < len(data) // UNIT_BYTES:
            break
    return _Valid(position, last)


def _unit_before(files: SparseFileQueue, end: int) -> ConsumeQueueUnit:
    return unpack_unit(files.read(end - UNIT_BYTES, UNIT_BYTES))
