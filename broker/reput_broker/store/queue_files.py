"""Open handles of ConsumeQueue files, at most so many at once over all queues.

Ten thousand queues with a file each would exceed any sensible limit of open files, and mapping them would tie up
address space for what is read once an hour. So queue files are opened when needed, kept while they are among the
most recently used, and read and written by position. Handles are leased: one that is evicted while the flush
thread still syncs it is closed when that lease ends, never under it (a closed descriptor's number may already
name another file).
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path


class QueueFile:
    """A leased open file; `fd` is good until the lease is released."""

    __slots__ = ("fd", "leases", "listed", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.leases = 0
        self.listed = True


class QueueFileCache:
    """Least-recently-used cache of open files, shared by all queues; safe from any thread."""

    def __init__(self, open_max: int) -> None:
        assert open_max > 0
        self.open_max = open_max
        self._files: OrderedDict[Path, QueueFile] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._files)

    def lease(self, path: Path) -> QueueFile:
        """Return the open file, opening it if need be; give it back with `release`.

        Raises:
            FileNotFoundError: there is no such file.
        """
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._insert(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))
            else:
                self._files.move_to_end(path)
            file.leases += 1
            return file

    def create(self, path: Path, size: int) -> QueueFile:
        """Create a sparse file of `size` zero bytes and lease it.

        Raises:
            OSError: it could not be made; no file is left behind.
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
        """Drop a file that is about to be deleted; its leases stay good until they end."""
        with self._lock:
            file = self._files.pop(path, None)
            if file is not None:
                self._unlist(file)

    def close(self) -> None:
        """Close every file that nobody has leased; the others close when their lease ends."""
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
