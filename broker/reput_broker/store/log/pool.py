"""Buffers that appends go to instead of into a file's mapping (RocketMQ: TransientStorePool).

The page cache can be slow for a moment: a page that is just being written back, or a system that holds writers up
because too much is dirty, lets a copy into a mapping wait, and with it everybody. A buffer of ordinary memory never
does. What is appended to it is copied into the file by `commit`, which may wait, in a thread of its own.

A buffer has the size of a log file and belongs to one file at a time: from when the file is the one in use until all of
it has been committed. The most recently used one is lent again first, so that no more become real memory than are
needed at once, unless they are locked, which makes all of them so.
"""

from __future__ import annotations

import mmap
from collections import deque
from pathlib import Path

from reput_broker.store.file_io import write_all
from reput_broker.store.log.memory_pages import lock_pages

_HEAD_BYTES = 8


class WriteBuffer:
    """Memory that stands for one file between append and commit. Positions are the file's own."""

    __slots__ = ("_map", "_pool", "view")

    def __init__(self, pool: TransientStorePool, size: int) -> None:
        self._pool = pool
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self._map)

    def lock(self) -> OSError | None:
        """Keep it in memory; None if that was done, else why not."""
        return lock_pages(self._map)

    def copy_to(self, fd: int, start: int, end: int, path: Path) -> None:
        """Write `[start, end)` to the same place of a file, its first 8 bytes last.

        Those are the length and magic of the first record: without them nobody takes what follows for a record, so
        that a process killed meanwhile has written either nothing or all. Blocks.

        Raises:
            DiskFull, OSError: any part but the first 8 bytes may be there; the call may be repeated.
        """
        head_end = min(start + _HEAD_BYTES, end)
        if head_end < end:
            write_all(fd, self.view[head_end:end], head_end, path)
        write_all(fd, self.view[start:head_end], start, path)

    def give_back(self) -> None:
        """Lend it to the next file from now on."""
        self._pool.take_back(self)

    def close(self) -> None:
        """Free the memory."""
        self.view.release()
        self._map.close()


class TransientStorePool:
    """A fixed number of buffers. One thread borrows; they may be given back from any.

    Args:
        size: bytes of each buffer, those of a log file.
        count: how many there are.
    """

    def __init__(self, size: int, count: int) -> None:
        self.size = size
        self.count = count
        self._available: deque[WriteBuffer] = deque()
        self._is_closed = False

    def open(self) -> OSError | None:
        """Make the buffers and lock them into memory as far as the system allows; return why not, None if it did.

        Blocks: locked memory is fetched and zeroed now.
        """
        self._is_closed = False
        refusal: OSError | None = None
        while len(self._available) < self.count:
            buffer = WriteBuffer(self, self.size)
            self._available.append(buffer)
            if refusal is None:  # a limit that stops one stops the others
                refusal = buffer.lock()
        return refusal

    @property
    def available(self) -> int:
        """Buffers that no file has at the moment (RocketMQ: availableBufferNums)."""
        return len(self._available)

    def borrow(self) -> WriteBuffer | None:
        """Take a buffer; None if all are lent."""
        return self._available.popleft() if self._available else None

    def take_back(self, buffer: WriteBuffer) -> None:
        """Have a buffer again; once the pool is closed it is freed instead."""
        if self._is_closed:
            buffer.close()
        else:
            self._available.appendleft(buffer)

    def close(self) -> None:
        """Free every buffer: those that are lent when they come back."""
        self._is_closed = True
        while self._available:
            self._available.popleft().close()
