"""One owner per store directory: a lock on byte 0 of the file `lock` (RocketMQ: DefaultMessageStore).

It is an open-file-description lock. A classic record lock, as Java takes, belongs to the process: a second broker in
the same process would get it too, and closing any other descriptor of the file would drop it. Both kinds exclude each
other.

Locking has two steps, so that a refused start leaves the directory unchanged. `reserve` locks what exists. `acquire`
creates and locks what is missing, once nothing else can refuse the start. A lock file is never removed, and precedes
every change to a directory: if `acquire` has to create it, nothing has changed since `reserve`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from reput_broker.store.checked_path import check_identity
from reput_broker.store.errors import DirectoryLost, StoreLocked
from reput_broker.store.file_io import write_all
from reput_broker.store.opening.abort_marker import AbortMarker
from reput_broker.store.opening.log_locks import LogDirectoryLocks, make_recorded, remove_empty
from reput_broker.store.options import EventHandler, ignore_event

# struct flock of Linux: type, whence, start, length, pid (0 for this kind of lock).
_FLOCK = struct.Struct("@hhqqi4x")
_SET_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", None)

# If the kernel has no such locks, brokers in this process are told apart by (device, inode).
_held_here: set[tuple[int, int]] = set()


class DirectoryLock:
    """The lock of one store directory. The file stays; only the lock is taken and released.

    Args:
        path: the lock file.
        abort: the marker in which an owner leaves its process id.
        new_file_dirs: directories of the log in which new files are created; `acquire` creates missing ones.
        on_event: see `LogDirectoryLocks`.
        on_lost: called once, in the thread that notices, when something is no longer at its path.
    """

    def __init__(
        self,
        path: Path,
        abort: AbortMarker,
        log_dirs: Iterable[Path] = (),
        new_file_dirs: Iterable[Path] = (),
        on_event: EventHandler = ignore_event,
        on_lost: Callable[[DirectoryLost], None] | None = None,
    ) -> None:
        self.path = path
        self._abort = abort
        self._log_dirs = LogDirectoryLocks(log_dirs, new_file_dirs, on_event)
        self._on_lost = on_lost
        self._lost: DirectoryLost | None = None
        self._made: list[Path] = []
        self._fd: int | None = None
        self._directory_fd: int | None = None
        self._identity = (0, 0)
        self._is_reserved = False
        self._is_acquired = False

    def reserve(self) -> None:
        """Lock what exists of the directory, without waiting, and change nothing.

        Raises:
            StoreLocked: another store has it, or a directory of the log; nothing is locked.
            LogDirectoryUnusable: a directory of the log cannot be locked; nothing is locked.
        """
        assert not self._is_reserved
        try:
            self._open_lock_file()
            self._log_dirs.lock_existing()
        except BaseException:
            self.release()
            raise
        self._is_reserved = True

    def acquire(self) -> None:
        """Take the whole lock, without waiting: create what is missing, and write `lock` into the file.

        Reserves first if that has not been done; does nothing if the whole lock is held. On failure nothing is locked.

        Raises:
            StoreLocked: another store has it, or a directory of the log; what was created is removed.
            LogDirectoryUnusable: a directory of the log cannot be created or locked; what was created is removed.
            DiskFull, FlushFailed, OSError: something could not be created; at most an empty lock file is left.
        """
        if self._is_acquired:
            return
        if not self._is_reserved:
            self.reserve()
        try:
            make_recorded(self.path.parent, self._made)
            self._directory_fd = os.open(
                self.path.parent, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECTORY", 0)
            )
            self._log_dirs.lock_new()
            fd = self._make_lock_file() if self._fd is None else self._fd
        except BaseException:
            self.remove_made()
            self.release()
            raise
        try:
            write_all(fd, b"lock", 0, self.path)
            os.fsync(fd)
        except BaseException:
            self.release()
            raise
        self._is_acquired = True

    def check(self) -> None:
        """Check that the directory, its lock file and the directories of the log are still at their paths.

        In any thread. Does nothing before `acquire`. A loss is permanent until `release`, because what happened at the
        path meanwhile is unknown.

        Raises:
            DirectoryLost: one is not.
        """
        if self._lost is not None:
            raise DirectoryLost(self._lost.path, self._lost.found)
        if not self._is_acquired:
            return
        assert self._fd is not None
        assert self._directory_fd is not None
        try:
            check_identity(self.path.parent, self._directory_fd)
            check_identity(self.path, self._fd)
            self._log_dirs.check()
        except DirectoryLost as error:
            is_first, self._lost = self._lost is None, error
            if is_first and self._on_lost is not None:
                self._on_lost(error)
            raise

    def remove_made(self) -> None:
        """Remove the directories that `acquire` created, if they are empty; before `release`."""
        self._log_dirs.remove_made()
        remove_empty(self._made)

    def _open_lock_file(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            self._lock_or_name_owner(self._fd)

    def _make_lock_file(self) -> int:
        """Create the file and lock it; another process that does either first is the owner."""
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            raise StoreLocked(self.path, self._owner_pid()) from None
        self._lock_or_name_owner(self._fd)
        if os.fstat(self._fd).st_size:
            # An owner has come and gone meanwhile: what was read of the directory may be outdated.
            raise StoreLocked(self.path, None)
        return self._fd

    def acquire_shared(self) -> bool:
        """Exclude every owner, but not other readers, and change nothing on disk.

        Returns:
            False if there is no lock file: no broker has ever opened the directory.

        Raises:
            StoreLocked: an owner has the directory.
        """
        assert self._fd is None
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            self._lock_or_name_owner(fd, shared=True)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def is_owned(self) -> bool:
        """Whether a broker, or a tool that changes it, has the directory. Takes no lock that could keep one out."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            if _SET_LOCK is None:  # the layout of the question is unknown
                return not _can_lock_shared(fd)
            question = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0)
            (kind, *_) = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, question))
            return bool(kind != fcntl.F_UNLCK)
        finally:
            os.close(fd)

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

    def _lock_or_name_owner(self, fd: int, *, shared: bool = False) -> None:
        try:
            self._lock(fd, shared=shared)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise StoreLocked(self.path, self._owner_pid()) from None
            raise

    def _owner_pid(self) -> int | None:
        """Ask the system which process holds a record lock, else read the abort marker."""
        with contextlib.suppress(OSError), open(self.path, "rb") as file:
            question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file.fileno(), fcntl.F_GETLK, question))
            if kind != fcntl.F_UNLCK and pid > 0:
                return int(pid)
        return self._abort.pid

    def release(self) -> None:
        """Release the lock; does nothing if it is not held."""
        self._is_reserved = self._is_acquired = False
        self._lost = None
        self._made.clear()
        self._log_dirs.release()
        directory_fd, self._directory_fd = self._directory_fd, None
        if directory_fd is not None:
            os.close(directory_fd)
        fd, self._fd = self._fd, None
        if fd is not None:
            _held_here.discard(self._identity)
            self._identity = (0, 0)
            os.close(fd)


def _can_lock_shared(fd: int) -> bool:
    """Whether a classic shared lock is granted; the caller closes the file, which releases it."""
    status = os.fstat(fd)
    if (status.st_dev, status.st_ino) in _held_here:
        return False
    try:
        fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True
