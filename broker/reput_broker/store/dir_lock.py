"""One owner per store directory: a lock on byte 0 of the file `lock` (RocketMQ: DefaultMessageStore).

It is an open-file-description lock. A classic record lock, which Java takes, belongs to the process: a second broker
in the same process would get it too, and closing any other descriptor of the file would drop it. Both kinds collide
with each other, so that Apache's broker and this one keep out of each other's directory.

A log may lie outside of the store directory. So that two stores cannot be given one log, each directory of it is locked
too, with a lock on the directory itself: no file may be put there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from .abort_marker import AbortMarker
from .errors import LogDirectoryLocked, StoreLocked
from .file_io import make_directories, write_all

# struct flock of Linux: type, whence, start, length, pid (0 for this kind of lock).
_FLOCK = struct.Struct("@hhqqi4x")
_SET_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", None)

# Where the kernel has no such locks, brokers in this process are told apart by (device, inode).
_held_here: set[tuple[int, int]] = set()


class DirectoryLock:
    """The lock of one store directory. The file stays; only the lock comes and goes."""

    def __init__(self, path: Path, abort: AbortMarker, log_dirs: Iterable[Path] = ()) -> None:
        """Name the lock file, the marker in which an owner leaves its process id, and where an owner's log lies."""
        self.path = path
        self._abort = abort
        self._log_dirs = tuple(log_dirs)
        self._log_fds: list[int] = []
        self._fd: int | None = None
        self._identity = (0, 0)

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd is not None

    def acquire(self) -> None:
        """Take the lock, without waiting, and write `lock` into the file.

        Raises:
            StoreLocked: somebody else has it, or a directory of the log; nothing was changed.
        """
        assert self._fd is None
        make_directories(self.path.parent)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock(fd)
            self._lock_log()
            write_all(fd, b"lock", 0, self.path)
            os.fsync(fd)
        except BaseException as error:
            self._fd = fd
            self.release()
            if isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.EACCES):
                raise StoreLocked(self.path, self._owner_pid()) from None
            raise
        self._fd = fd

    def acquire_shared(self) -> bool:
        """Keep every owner out while others may look too, and change nothing on the disk.

        Returns:
            False if there is no lock file to hold: no broker has ever opened the directory.

        Raises:
            StoreLocked: an owner has the directory.
        """
        assert self._fd is None
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            self._lock(fd, shared=True)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise StoreLocked(self.path, self._owner_pid()) from None
            raise
        self._fd = fd
        return True

    def _lock(self, fd: int, *, shared: bool = False) -> None:
        if _SET_LOCK is not None:
            kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
            fcntl.fcntl(fd, _SET_LOCK, _FLOCK.pack(kind, os.SEEK_SET, 0, 1, 0))
            return
        status = os.fstat(fd)
        identity = (status.st_dev, status.st_ino)
        if identity in _held_here:
            raise OSError(errno.EAGAIN, "held by a broker in this process")
        fcntl.lockf(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB, 1, 0)
        _held_here.add(identity)
        self._identity = identity

    def _lock_log(self) -> None:
        """Lock every log directory that is there; file systems without such locks go without."""
        for directory in self._log_dirs:
            try:
                fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECTORY", 0))
            except FileNotFoundError:
                continue
            self._log_fds.append(fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LogDirectoryLocked(directory) from None
            except OSError:
                continue

    def _owner_pid(self) -> int | None:
        """Ask the system who holds a record lock, else the marker that a broker leaves while it runs."""
        with contextlib.suppress(OSError), open(self.path, "rb") as file:
            question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file.fileno(), fcntl.F_GETLK, question))
            if kind != fcntl.F_UNLCK and pid > 0:
                return int(pid)
        return self._abort.pid

    def release(self) -> None:
        """Give the lock back; does nothing if it is not held."""
        while self._log_fds:
            os.close(self._log_fds.pop())
        fd, self._fd = self._fd, None
        if fd is not None:
            _held_here.discard(self._identity)
            os.close(fd)
