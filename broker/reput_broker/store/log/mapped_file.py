"""A preallocated, fixed-size file, written and read through a shared mapping.

Its three positions are relative to the start of the file:

    0 <= flushed_position <= committed_position <= wrote_position <= size

`wrote`: appended. `committed`: written to the operating system, so that it survives the process but not the machine.
`flushed`: on disk. Without a buffer, appends go to the shared mapping and are committed immediately. With a buffer of a
`TransientStorePool` (`write_through`) they go to the buffer, and `commit` writes them to the file; readers then see
what is committed, otherwise what is written (`read_position`). A loaded file counts as completely written until
recovery determines its end.

Bytes below `read_position` never change, so readers need no lock, only the mapping: every view that leaves the file is
taken under `hold` and given back with `release`. The last holder's release closes the mapping (RocketMQ:
DefaultMappedFile, ReferenceResource).

A file takes two descriptors, its own and one that Python keeps with a mapping. A file that is full and on disk may be
closed by `rest`; `hold` opens it again.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from reput_broker.store.base.errors import NOT_PERMITTED, FileFull, FlushFailed, ForeignFile, StoreClosed
from reput_broker.store.base.file_io import (
    create_file,
    is_out_of_descriptors,
    map_file,
    reserve_space,
    sync_data,
    zero_range,
)
from reput_broker.store.log.pool import WriteBuffer
from reput_protocol.buffers import Buffer
from reput_protocol.store.files import end_of_data


class Restable(Protocol):
    """A file that can be closed and reopens itself when it is used."""

    def rest(self) -> bool:
        """Close it until it is used again; False if it is in use, or not on disk. Waits for no lock."""


class OpenMappings:
    """The open mapped files of a log or an index, in the order in which they were opened. Thread-safe.

    Files that cannot be closed, such as the one that is written, stay open beyond `open_max`.
    """

    def __init__(self, open_max: int) -> None:
        self.reads_ahead: Callable[[], bool] = lambda: True
        """Whether the system is to read ahead of reads for which it goes to the disk; asked before such a read."""
        self._open_max = open_max
        self._files: deque[Restable] = deque()
        self._lock = threading.Lock()

    def opened(self, file: Restable) -> None:
        """Note that a file is open, and close the least recently opened ones if there are too many."""
        with self._lock:
            self._files.append(file)
            for _ in range(len(self._files) - 1):
                if len(self._files) <= self._open_max:
                    return
                self._let_oldest_rest()

    def open_again(self, open_file: Callable[[], None]) -> None:
        """Call `open_file`; if no descriptor is free for it, close other files first.

        Raises:
            OSError: as `open_file`.
        """
        for _ in range(len(self._files)):
            try:
                open_file()
                return
            except OSError as error:
                if not is_out_of_descriptors(error):
                    raise
            with self._lock:
                self._let_oldest_rest()
        open_file()

    def _let_oldest_rest(self) -> None:
        oldest = self._files.popleft() if self._files else None
        if oldest is not None and not oldest.rest():
            self._files.append(oldest)


_RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_NO_NOWAIT = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.EPERM)
_PUBLISH_BYTES = 8  # TOTALSIZE and MAGIC: without them a record is not there
# From this size a write is cheaper than a copy into the mapping, where every page faults: the
# system reads ahead, and fills pages with zeros that are about to be written.
_WRITTEN_FROM_BYTES = 32 * 1024
_READ_FROM_BYTES = 32 * 1024


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class MappedFile:
    """A file of `size` bytes whose first byte is byte `base_offset` of its stream.

    One thread appends and changes positions; `flush`, `read_at`, `hold` and `release` are thread-safe.
    """

    __slots__ = (
        "_buffer", "_data_end", "_fd", "_flush_error", "_forced", "_identity", "_lock", "_map", "_reads_ahead",
        "_references", "_shutdown_ms", "_sink", "_view", "base_offset", "committed_position", "end_offset",
        "flushed_position", "is_available", "is_writable", "mappings", "path", "size", "wrote_position",
    )  # fmt: skip

    def __init__(
        self, path: Path, size: int, base_offset: int, *, create: bool, may_be_read_only: bool = False
    ) -> None:
        """Create the file, or map an existing one.

        A new file is fully allocated, and its bytes and its name are synced. With `may_be_read_only`, an existing file
        that cannot be opened for writing is mapped for reading; see `is_writable`.

        Raises:
            DiskFull: there is no room for `size` bytes; no file is left behind.
            FlushFailed, OSError: it cannot be created; no file is left behind.
            ForeignFile: the existing file has another length.
            FileExistsError, FileNotFoundError: as `create` implies.
        """
        self.path = path
        self.size = size
        self.base_offset = base_offset
        self.end_offset = base_offset + size
        """Offset in the stream of the first byte after the file."""
        self.is_writable = True
        if create:
            self._fd = create_file(path, size)
        else:
            self._fd, self.is_writable = _open(path, size, may_be_read_only)
        try:
            self._map: mmap.mmap | None = self._mapping_of(self._fd)
        except BaseException:
            os.close(self._fd)
            if create:
                with contextlib.suppress(OSError):
                    path.unlink()
            raise
        self._reads_ahead = True
        self._view = memoryview(self._map)
        self._sink = self._view
        self._identity: tuple[int, int] | None = None
        self.mappings: OpenMappings | None = None
        """Limits how many files are open; `hold` notifies it after opening the file again."""
        self._buffer: WriteBuffer | None = None
        self._data_end = size
        written = 0 if create else size
        self.wrote_position = written
        self.committed_position = written
        self.flushed_position = written
        self._lock = threading.Lock()
        self._references = 1
        self.is_available = True
        """Whether new holders are accepted; false once the file is being shut down."""
        self._forced = False
        self._shutdown_ms = 0
        self._flush_error: FlushFailed | None = None

    def _mapping_of(self, fd: int) -> mmap.mmap:
        access = mmap.ACCESS_WRITE if self.is_writable else mmap.ACCESS_READ
        return map_file(fd, self.size, self.path, access=access)

    def __repr__(self) -> str:
        return (
            f"<MappedFile {self.path.name} wrote={self.wrote_position} flushed={self.flushed_position} "
            f"size={self.size}>"
        )

    @property
    def read_position(self) -> int:
        """End of the readable bytes: the committed ones if there is a buffer, else the written ones."""
        return self.wrote_position if self._buffer is None else self.committed_position

    @property
    def is_full(self) -> bool:
        """Whether every byte has been written."""
        return self.wrote_position == self.size

    @property
    def last_modified_ms(self) -> int:
        """The file's modification time, in milliseconds since the epoch."""
        return self.path.stat().st_mtime_ns // 1_000_000

    # -- writing -------------------------------------------------------------------------------------------

    def reserve_space(self) -> None:
        """Reserve disk space for all of an existing file, as for a new one. Blocks.

        Call it before the first append: writing to a mapping over a hole kills the process with SIGBUS when the disk is
        full. Nothing else may write to the file meanwhile. The contents stay the same.

        Raises:
            DiskFull: there is no room.
            OSError: the system call failed.
            StoreClosed: the file is shut down.
        """
        if not self.hold():
            raise StoreClosed(f"{self.path} is closed")
        try:
            reserve_space(self._fd, self.size, self.path)
        finally:
            self.release()

    def expect_appends(self) -> None:
        """Ask the system not to read ahead: it would fill pages with zeros that are about to be written."""
        with self.mapping() as lent:
            if lent is not None and hasattr(mmap, "MADV_RANDOM"):
                lent[1].madvise(mmap.MADV_RANDOM)

    def append(self, data: Buffer) -> int:
        """Copy bytes to the end of the file and return the offset in the stream where they start.

        A process killed meanwhile may leave any part; for all or nothing use `write_published`.

        Raises:
            FileFull: fewer than len(data) bytes are left; nothing was written.
            StoreClosed: the file is closed.
        """
        start, end = self._reserve(data)
        self._sink[start:end] = data
        self.wrote_position = end
        return self.base_offset + start

    def write_published(self, data: Buffer) -> int:
        """Append like `append`, but write the first 8 bytes last.

        Those are the length and magic of the first record, without which readers ignore what follows. So a killed
        process leaves none of `data` or all of it. (After a power failure pages may be missing in any order; the body
        checksum decides then.)
        """
        start, end = self._reserve(data)
        source = memoryview(data)
        if end - start < _WRITTEN_FROM_BYTES or self._buffer is not None or not self._written(start, source):
            view = self._sink
            view[start + _PUBLISH_BYTES : end] = source[_PUBLISH_BYTES:]
            view[start : min(start + _PUBLISH_BYTES, end)] = source[:_PUBLISH_BYTES]
        self.wrote_position = end
        return self.base_offset + start

    def _written(self, start: int, source: memoryview) -> bool:
        """Write `source` with system calls, its first 8 bytes last; False if not all of it was written.

        Then the mapping gets it; if that fails too, the sync reports it.
        """
        for first, last in ((_PUBLISH_BYTES, len(source)), (0, _PUBLISH_BYTES)):
            try:
                written = os.pwrite(self._fd, source[first:last], start + first)
            except OSError:
                return False
            if written < last - first:
                return False
        return True

    def _reserve(self, data: Buffer) -> tuple[int, int]:
        start = self.wrote_position
        end = start + len(data)
        if end > self.size:
            raise FileFull(self.path, self.size - start, len(data))
        if self._map is None:  # recovery has moved back the end of a file that was at rest
            with self._in_use():
                pass
        return start, end

    def seal(self, data: Buffer) -> None:
        """Append `data`, which ends the file: the rest stays zero and counts as written."""
        self._data_end = self.wrote_position + len(data)
        self.write_published(data)
        self.wrote_position = self.size

    def write_through(self, buffer: WriteBuffer) -> None:
        """Send appends to `buffer` from now on, and to the file with `commit`.

        The buffer is given back when the file is full and committed, or closed.
        """
        assert self._buffer is None
        self.committed_position = self.wrote_position
        self._buffer = buffer
        self._sink = buffer.view

    def commit(self) -> int:
        """Write everything appended so far to the operating system; return the committed position.

        With a buffer this writes to the file, the first 8 bytes last as in `write_published`; without one only the
        position moves. Blocks; one thread at a time, and safe during appends. The call may be repeated after a failure.

        Raises:
            DiskFull: no room, because the file system did not really allocate the file.
            OSError: the file cannot be written.
            StoreClosed: the file is shut down.
        """
        wrote = self.wrote_position
        buffer = self._buffer
        if buffer is not None and self.committed_position < wrote:
            if not self.hold():
                raise StoreClosed(f"{self.path} is closed")
            try:
                end = min(wrote, self._data_end)
                if self.committed_position < end:
                    buffer.copy_to(self._fd, self.committed_position, end, self.path)
            finally:
                self.release()
        with self._lock:
            # Positions may have been moved back meanwhile, as for `flush`.
            if self.committed_position < wrote <= self.wrote_position:
                self.committed_position = wrote
            if buffer is not None and self.committed_position == self.size:
                self._drop_buffer()
        return self.committed_position

    def _drop_buffer(self) -> None:
        buffer, self._buffer = self._buffer, None
        self._sink = self._view
        if buffer is not None:
            buffer.give_back()

    def flush(self) -> int:
        """Sync everything up to `read_position`; return the position up to which that is certain.

        Blocks; safe in a worker thread during appends and `destroy`. Bytes appended after the call began are not
        covered.

        Raises:
            FlushFailed: now or in an earlier call; a failed sync is final for the file.
            StoreClosed: the file is shut down.
        """
        if self._flush_error is not None:
            raise self._flush_error
        readable = self.read_position
        if readable <= self.flushed_position:
            return self.flushed_position
        if not self.hold():
            raise StoreClosed(f"{self.path} is closed")
        try:
            if self.is_writable:  # else nothing was written
                sync_data(self._fd)
        except OSError as error:
            self._flush_error = FlushFailed(self.path, error)
            raise self._flush_error from error
        finally:
            self.release()
        with self._lock:
            # Positions may have been moved back meanwhile.
            if self.flushed_position < readable <= self.wrote_position:
                self.committed_position = max(self.committed_position, readable)
                self.flushed_position = readable
        return self.flushed_position

    def set_positions(self, position: int) -> None:
        """Set all three positions, as recovery, truncation and reset do."""
        assert 0 <= position <= self.size
        with self._lock:
            self.flushed_position = 0
            self.wrote_position = position
            self.committed_position = position
            self.flushed_position = position
            self._data_end = self.size

    def zero_tail(self, position: int) -> int:
        """Zero every byte from `position` on, writing only where needed; return the bytes rewritten.

        After a truncation, old bytes could become valid again if later appends end where an old record starts. Durable
        with the next `flush` that has something to do.
        """
        with self._in_use():
            return zero_range(self._fd, position, self.size, self.path)

    def end_of_data(self, position: int) -> int:
        """Return the position after the last non-zero byte from `position` on; `position` if all are zero."""
        with self._in_use():
            return end_of_data(self._fd, position, self.size)

    # -- reading -------------------------------------------------------------------------------------------

    def slice(self, position: int, size: int) -> memoryview:
        """Return a view of `size` bytes at `position`, for a caller under `hold` until it has dropped the view.

        Raises:
            ValueError: the range is not within the readable bytes.
            StoreClosed: the mapping is closed.
        """
        if position < 0 or size < 0 or position + size > self.read_position:
            raise ValueError(
                f"{self.path}: [{position}, {position + size}) is not within the {self.read_position} readable bytes"
            )
        if self._map is None:
            raise StoreClosed(f"{self.path} is closed")
        return self._view[position : position + size]

    def copy_of(self, position: int, size: int) -> bytes:
        """Return a copy of `size` bytes at `position`. Conditions and errors as for `slice`."""
        found = self.slice(position, size)
        # Bytes of a write are not in the mapping yet, and each of their pages would fault.
        if size >= _READ_FROM_BYTES:
            read = os.pread(self._fd, size, position)
            if len(read) == size:
                return read
        return bytes(found)

    def read_at(self, position: int, size: int) -> bytes:
        """Return a copy of up to `size` readable bytes at `position`, in any thread.

        While the disk fetches a page, a read through the mapping blocks every thread, this one only its own.

        Raises:
            StoreClosed: the file is shut down.
        """
        if not self.hold():
            raise StoreClosed(f"{self.path} is closed")
        try:
            return self.read_held(position, size)
        finally:
            self.release()

    def read_held(self, position: int, size: int) -> bytes:
        """As `read_at`, for a caller under `hold`: it also works after the file was shut down."""
        size = min(size, self.read_position - position)
        if size <= 0 or position < 0:
            return b""
        self._advise()
        return os.pread(self._fd, size, position)

    def read_into(self, position: int, parts: Sequence[memoryview], *, wait: bool) -> bool:
        """Fill `parts` with the readable bytes from `position` on, for a caller under `hold`; in any thread.

        Returns:
            Whether all were filled. Without `wait`, False if something is not in memory (where the system can tell).
        """
        size = sum([len(part) for part in parts])
        if position < 0 or position + size > self.read_position:
            return False
        if wait:
            self._advise()
        try:
            return os.preadv(self._fd, parts, position, 0 if wait else _RWF_NOWAIT) == size
        except BlockingIOError:
            return False
        except OSError as error:
            if wait or error.errno not in _NO_NOWAIT:
                raise
        return os.preadv(self._fd, parts, position) == size

    def _advise(self) -> None:
        """Tell the system whether to read ahead of reads from this descriptor, if that has changed."""
        wanted = self.mappings is None or self.mappings.reads_ahead()
        if wanted is not self._reads_ahead and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_NORMAL if wanted else os.POSIX_FADV_RANDOM)
            self._reads_ahead = wanted

    def is_resident(self, position: int, size: int, scratch: bytearray) -> bool:
        """Whether these readable bytes are in memory, without waiting. For a caller under `hold`.

        They are read into `scratch`, piece by piece, with RWF_NOWAIT. True where the system does not support that: not
        Linux, some file systems, a sandbox.
        """
        if not _RWF_NOWAIT:
            return True
        end = position + size
        if end > self.read_position:
            return True  # the read fails without waiting for the disk
        try:
            while position < end:
                wanted = min(len(scratch), end - position)
                if os.preadv(self._fd, [memoryview(scratch)[:wanted]], position, _RWF_NOWAIT) < wanted:
                    return False
                position += wanted
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_NOWAIT:
                raise
        return True

    @property
    def is_deleted(self) -> bool:
        """Whether the open file has no name any more: its bytes are lost when it is closed."""
        if self._map is None or not self.hold():
            return False
        try:
            return os.fstat(self._fd).st_nlink == 0
        finally:
            self.release()

    # -- lifetime ------------------------------------------------------------------------------------------

    def hold(self) -> bool:
        """Keep the mapping open until `release`; False (and nothing held) once the file is shut down.

        Raises:
            OSError: the file was at rest and could not be opened, for example for lack of descriptors.
            ForeignFile: it was at rest, and another file has its name now.
        """
        with self._lock:
            if not self.is_available or self._references <= 0:
                return False
            was_at_rest = self._map is None
            if was_at_rest and self.mappings is not None:
                self.mappings.open_again(self._open_again)
            elif was_at_rest:
                self._open_again()
            self._references += 1
        if was_at_rest and self.mappings is not None:
            self.mappings.opened(self)
        return True

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        if not self.hold():
            raise StoreClosed(f"{self.path} is closed")
        try:
            yield
        finally:
            self.release()

    def rest(self) -> bool:
        """Close descriptors and mapping until the next `hold`; False if in use or not on disk."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._references != 1 or self._map is None or self._buffer is not None:
                return self._map is None
            if not self.wrote_position == self.flushed_position == self.size:
                return False
            status = os.fstat(self._fd)
            if status.st_nlink == 0:
                return False  # it could not be opened again
            self._view.release()
            try:
                self._map.close()
            except BufferError:  # a slice of the view was kept; it stays open
                self._view = self._sink = memoryview(self._map)
                return False
            self._identity = status.st_dev, status.st_ino
            self._map = None
            os.close(self._fd)
            return True
        finally:
            self._lock.release()

    def _open_again(self) -> None:
        fd, _ = _open(self.path, self.size, not self.is_writable)
        try:
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) != self._identity:
                raise ForeignFile(self.path, "it is not the file that was there when it was last read")
            self._map = self._mapping_of(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        self._reads_ahead = True
        self._view = self._sink = memoryview(self._map)

    def release(self) -> None:
        """Give back one `hold`; the last holder of a file that was shut down closes it."""
        with self._lock:
            self._references -= 1
            if self._references > 0:
                return
        self._clean_up()

    @contextlib.contextmanager
    def mapping(self) -> Iterator[tuple[int, mmap.mmap] | None]:
        """Lend descriptor and mapping for advice to the system; None once the file is shut down."""
        if not self.hold():
            yield None
            return
        try:
            assert self._map is not None, "it is held"
            yield self._fd, self._map
        finally:
            self.release()

    def shutdown(self, interval_ms: int = 0, *, now_ms: int | None = None) -> None:
        """Accept no new holders and close the mapping once the last one has released it.

        From `interval_ms` after the first call on, `destroy` does not wait for holders. The mapping stays for them:
        without it they would read other bytes, or get a signal.

        Args:
            interval_ms: how long to wait for holders.
            now_ms: a monotonic clock's reading; by default the system's.
        """
        now_ms = _monotonic_ms() if now_ms is None else now_ms
        with self._lock:
            first = self.is_available
            if first:
                self.is_available = False
                self._shutdown_ms = now_ms
            elif self._references > 0 and now_ms - self._shutdown_ms >= interval_ms:
                self._forced = True
        if first:
            self.release()

    def destroy(self, interval_ms: int = 0, *, now_ms: int | None = None) -> bool:
        """Shut down and delete the file; True once it is gone from the directory.

        False while it is held: repeat the call. The removal of the name is not synced here.
        """
        self.shutdown(interval_ms, now_ms=now_ms)
        if self._map is not None and not self._forced:
            return False
        self.path.unlink(missing_ok=True)
        return True

    def close(self) -> None:
        """Shut down without deleting or flushing."""
        self.shutdown()

    def _clean_up(self) -> None:
        mapped, self._map = self._map, None
        if mapped is None:
            return
        self._drop_buffer()
        self._view.release()
        # A view that was kept past its hold keeps the mapping until it is dropped.
        with contextlib.suppress(BufferError):
            mapped.close()
        os.close(self._fd)


def _open(path: Path, size: int, may_be_read_only: bool) -> tuple[int, bool]:
    is_writable = True
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if not may_be_read_only or error.errno not in NOT_PERMITTED:
            raise
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        is_writable = False
    actual = os.fstat(fd).st_size
    if actual != size:
        os.close(fd)
        raise ForeignFile(path, f"it has {actual} bytes and the configured file size is {size}")
    return fd, is_writable
