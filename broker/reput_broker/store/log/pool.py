"""Buffers for appends instead of a file's mapping (RocketMQ: TransientStorePool).

A copy into the page cache can stall, during write-back or when the system throttles writers, and the event loop with
it. A buffer does not stall; `commit` copies it into the file in a separate thread.

A buffer has the size of a log file and belongs to one file until that is completely committed. The most recently used
buffer is lent first, so that no more become resident than are needed.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from reput_broker.store.base.file_io import PAGE_BYTES, write_all

_MADV_POPULATE_WRITE = 23  # Linux 5.14 and later
_TOUCH_PAGES = 64


def lock_pages(mapped: mmap.mmap) -> OSError | None:
    """Fault in and lock every page of a writable mapping; return why that failed, None on success."""
    return _call("mlock", mapped, 0, len(mapped))


def unlock_pages(mapped: mmap.mmap) -> None:
    """Allow the system to evict the pages of a mapping."""
    _call("munlock", mapped, 0, len(mapped))


def populate_pages(mapped: mmap.mmap, start: int, size: int) -> None:
    """Populate the pages of a range for writing, so that their first write causes no fault.

    The contents stay the same, even if another thread writes meanwhile. `start` is a multiple of the page size.
    """
    if _call("madvise", mapped, start, size, _MADV_POPULATE_WRITE) is None:
        return
    # Each page's first byte is copied onto itself, which the interpreter lock makes atomic. The lock is
    # released after every few pages, because a fault can take long.
    with memoryview(mapped) as view:
        for first in range(start, start + size, _TOUCH_PAGES * PAGE_BYTES):
            with view[first : min(first + _TOUCH_PAGES * PAGE_BYTES, start + size) : PAGE_BYTES] as pages:
                pages[:] = pages
            time.sleep(0)


def _call(name: str, mapped: mmap.mmap, start: int, size: int, *arguments: int) -> OSError | None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        return OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    begin = ctypes.c_char.from_buffer(mapped, start)  # keeps the mapping open
    address = ctypes.c_void_p(ctypes.addressof(begin))
    if function(address, ctypes.c_size_t(size), *arguments) == 0:
        return None
    error = ctypes.get_errno()
    return OSError(error, os.strerror(error))


_HEAD_BYTES = 8


class WriteBuffer:
    """Memory that holds one file's appends until they are committed. Positions are those of the file."""

    __slots__ = ("_map", "_pool", "view")

    def __init__(self, pool: TransientStorePool, size: int) -> None:
        self._pool = pool
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self._map)

    def lock(self) -> OSError | None:
        """Lock it in memory; return why that failed, None on success."""
        return lock_pages(self._map)

    def copy_to(self, fd: int, start: int, end: int, path: Path) -> None:
        """Write `[start, end)` to the same place of a file, its first 8 bytes last. Blocks.

        Those are the length and magic of the first record: a process killed meanwhile has written either nothing that
        readers take for a record, or all.

        Raises:
            DiskFull, OSError: any part but the first 8 bytes may be there; the call may be repeated.
        """
        head_end = min(start + _HEAD_BYTES, end)
        if head_end < end:
            write_all(fd, self.view[head_end:end], head_end, path)
        write_all(fd, self.view[start:head_end], start, path)

    def give_back(self) -> None:
        """Return it to the pool."""
        self._pool.take_back(self)

    def close(self) -> None:
        """Free the memory."""
        self.view.release()
        self._map.close()


@dataclass(eq=False, repr=False)
class TransientStorePool:
    """A fixed number of buffers. One thread borrows; any thread may give them back.

    Args:
        size: bytes of each buffer, those of a log file.
        count: number of buffers.
    """

    size: int
    count: int
    _available: deque[WriteBuffer] = field(default_factory=deque, init=False)
    _is_closed: bool = field(default=False, init=False)

    def open(self) -> OSError | None:
        """Create the buffers and lock them in memory; return why locking failed, None on success.

        Blocks: locked memory is faulted in and zeroed now.
        """
        self._is_closed = False
        refusal: OSError | None = None
        while len(self._available) < self.count:
            buffer = WriteBuffer(self, self.size)
            self._available.append(buffer)
            if refusal is None:  # a limit that applies to one applies to the others
                refusal = buffer.lock()
        return refusal

    @property
    def available(self) -> int:
        """Free buffers (RocketMQ: availableBufferNums)."""
        return len(self._available)

    def borrow(self) -> WriteBuffer | None:
        """Take a buffer; None if all are lent."""
        return self._available.popleft() if self._available else None

    def take_back(self, buffer: WriteBuffer) -> None:
        """Accept a buffer back; once the pool is closed it is freed instead."""
        if self._is_closed:
            buffer.close()
        else:
            self._available.appendleft(buffer)

    def close(self) -> None:
        """Free every buffer; those that are lent are freed when they are given back."""
        self._is_closed = True
        while self._available:
            self._available.popleft().close()
