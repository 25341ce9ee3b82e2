"""One owner per store directory: a lock on byte 0 of the file `lock` (RocketMQ: DefaultMessageStore).

It is an open-file-description lock. A classic record lock, as Java takes, belongs to the process: a second broker in
the same process would get it too, and closing any other descriptor of the file would drop it. Both kinds exclude each
other.

Locking has two steps, so that a refused start leaves the directory unchanged. `reserve` locks what exists. `acquire`
creates and locks what is missing, once nothing else can refuse the start. A lock file is never removed, and precedes
every change to a directory: if `acquire` has to create it, nothing has changed since `reserve`.

The directories of a log have locks (`flock`) of their own, so that two stores cannot share one log: a log may be
outside of the store directory, where the lock file has no effect, and no other files may be put into a log directory.
RocketMQ does not know these locks. They are on the directory, not on its name: `check` detects that it was moved,
removed or covered by a mount.

While a broker runs, its directory can be moved, deleted or unmounted, and another one can take its name. So the store
derives all its paths from one that runs a check whenever it is converted for a system call (`checked_path`), which no
caller can forget. Text made of a path (`str`, an f-string) bypasses the check: open nothing by such text.

The file `abort` exists while a broker runs. It holds the process id as decimal text, without a newline. Only a
complete, orderly stop removes it; if a start finds it, the queues and the log may not agree.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PosixPath

from reput_broker.store.base.errors import (
    DirectoryLost,
    DiskFull,
    FlushFailed,
    LogDirectoryLocked,
    LogDirectoryUnusable,
    StoreLocked,
)
from reput_broker.store.base.file_io import PAGE_BYTES, is_no_space, make_directories, sync_directory, write_all
from reput_broker.store.base.options import EventHandler, ignore_event

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
            self._directory_fd = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECTORY", 0))
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


# Errors that mean that something other than a directory is at the path.
_NO_DIRECTORY = frozenset({errno.ENOTDIR, errno.ELOOP, errno.EEXIST})
# Errors of file systems without such locks; EBADF: NFS, which needs a descriptor open for writing.
_NO_LOCKS = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF})


class LogDirectoryLocks:
    """The locks of one store on the directories of its log.

    Args:
        new_file_dirs: directories in which new files are created.
        on_event: receives `commit_log_dir_not_locked` if a file system has no such locks.
    """

    def __init__(
        self,
        directories: Iterable[Path] = (),
        new_file_dirs: Iterable[Path] = (),
        on_event: EventHandler = ignore_event,
    ) -> None:
        self._directories = tuple(dict.fromkeys(directories))
        self._new_file_dirs = tuple(dict.fromkeys(new_file_dirs))
        self._on_event = on_event
        self._fds: dict[Path, int] = {}
        self._made: list[Path] = []

    def lock_existing(self) -> None:
        """Lock every existing directory, without waiting. Changes nothing.

        Raises:
            LogDirectoryLocked: another store has one of them.
            LogDirectoryUnusable: one is not a directory, cannot be locked, or is another one under
                a second name.
        """
        for directory in self._directories:
            self._lock(directory)

    def lock_new(self) -> None:
        """Create the missing directories for new files, and lock them.

        Raises:
            LogDirectoryLocked: another store was faster.
            LogDirectoryUnusable: as `lock_existing`.
            DiskFull, FlushFailed, OSError: one could not be created.
        """
        for directory in self._new_file_dirs:
            if directory not in self._fds:
                # A refused start that created it may remove it before it is locked.
                try:
                    while not self._lock(directory):
                        with _naming(directory):
                            make_recorded(directory, self._made)
                except LogDirectoryUnusable:
                    if directory in self._made:  # no other store can have locked it either
                        with contextlib.suppress(OSError):
                            directory.rmdir()
                    raise
                if _holds_files(directory):
                    # Another store has come and gone meanwhile, and what it left has not been
                    # judged.
                    raise LogDirectoryLocked(directory)

    def check(self) -> None:
        """Check that every locked directory is still at its path. Raises DirectoryLost."""
        for directory, fd in self._fds.items():
            check_identity(directory, fd)

    def remove_made(self) -> None:
        """Remove what `lock_new` created and no other store has taken; before the locks are released."""
        taken = [path for path in self._new_file_dirs if path not in self._fds]
        remove_empty(self._made, keep=taken)

    def release(self) -> None:
        """Release all locks."""
        self._made.clear()
        while self._fds:
            os.close(self._fds.popitem()[1])

    def _lock(self, directory: Path) -> bool:
        while True:
            try:
                with _naming(directory):
                    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECTORY", 0))
            except FileNotFoundError:
                return False
            is_locked = False
            try:
                self._refuse_second_name(directory, fd)
                with contextlib.suppress(FileNotFoundError):
                    self._flock(fd, directory)
                    is_locked = os.path.samestat(os.stat(directory), os.fstat(fd))
            finally:
                if not is_locked:
                    os.close(fd)
            if is_locked:
                self._fds[directory] = fd
                return True
            # A refused start had created it, and has just removed it.

    def _refuse_second_name(self, directory: Path, fd: int) -> None:
        status = os.fstat(fd)
        for other, held in self._fds.items():
            if os.path.samestat(status, os.fstat(held)):
                raise LogDirectoryUnusable(directory, f"it is the same directory as {other}; name it once")

    def _flock(self, fd: int, directory: Path) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogDirectoryLocked(directory) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise LogDirectoryUnusable(
                    directory, f"it cannot be locked: {error.strerror}; check its file system, or choose another"
                ) from error
            self._on_event("commit_log_dir_not_locked", {"path": str(directory), "reason": str(error.strerror)})


def _holds_files(directory: Path) -> bool:
    with os.scandir(directory) as entries:
        return any(not entry.is_dir() for entry in entries)  # a new disk has `lost+found`


@contextlib.contextmanager
def _naming(directory: Path) -> Iterator[None]:
    """Name the configuration entry that does not lead to a directory."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_DIRECTORY:
            raise
        raise LogDirectoryUnusable(
            directory,
            f"{error.strerror} ({error.filename}); name a directory that exists or can be created, or move away "
            "what is in its place",
        ) from error


def make_recorded(directory: Path, made: list[Path]) -> None:
    """Create a directory with its parents, durably, and add the created ones to `made`, outermost first.

    Raises:
        DiskFull: there is no room for it.
        FlushFailed, OSError: it could not be created.
    """
    missing = [path for path in (directory, *directory.parents) if not os.path.exists(path)]
    try:
        make_directories(directory)
    except OSError as error:
        if is_no_space(error):
            raise DiskFull(directory, PAGE_BYTES) from error
        raise
    finally:
        made += [path for path in reversed(missing) if os.path.exists(path)]


def remove_empty(made: list[Path], *, keep: Iterable[Path] = ()) -> None:
    """Remove unused directories of a list, the last one first, and clear the list."""
    kept = set(keep)
    while made:
        path = made.pop()
        if path not in kept:
            with contextlib.suppress(OSError):
                path.rmdir()


@dataclass(eq=False, repr=False)
class AbortMarker:
    """The marker of one store directory."""

    path: Path

    @property
    def exists(self) -> bool:
        """Whether the last owner is still running, or ended without an orderly stop."""
        return self.path.exists()

    @property
    def pid(self) -> int | None:
        """Process id of that owner, None if the file is missing or holds none."""
        try:
            text = self.path.read_text("ascii", "replace").strip()
        except OSError:
            return None
        return int(text) if text.isdecimal() else None

    def create(self, pid: int | None = None) -> None:
        """Write the marker durably, before anything is appended.

        Raises:
            DiskFull: there is no room.
            FlushFailed: the sync failed.
        """
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, str(os.getpid() if pid is None else pid).encode("ascii"), 0, self.path)
            os.fsync(fd)
        except OSError as error:
            raise FlushFailed(self.path, error) from error
        finally:
            os.close(fd)
        sync_directory(self.path.parent)

    def remove(self) -> None:
        """Delete the marker durably, after everything else is durable."""
        self.path.unlink(missing_ok=True)
        sync_directory(self.path.parent)


_LEADS_NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE})


def checked_path(path: Path, check: Callable[[], None]) -> Path:
    """Return a path that runs `check` before each system call; so does every path derived from it."""

    class CheckedPath(PosixPath):
        __slots__ = ()

        def __fspath__(self) -> str:
            check()
            return str(self)

    return CheckedPath(str(path))


def check_identity(path: Path, fd: int) -> None:
    """Check that a path leads to the file or directory that is open as `fd`, and not to another of that name.

    The open descriptor keeps the system from reusing the inode number. A path that cannot be examined for another
    reason, such as an I/O error, passes: using it reports that.

    Raises:
        DirectoryLost: the path leads elsewhere or nowhere.
    """
    try:
        now = os.stat(str(path))
    except OSError as error:
        if error.errno in _LEADS_NOWHERE:
            raise DirectoryLost(path, f"nothing is there ({error.strerror})") from error
        return
    held = os.fstat(fd)
    if not os.path.samestat(now, held):
        raise DirectoryLost(
            path,
            f"another one is there (device {now.st_dev}, inode {now.st_ino}; "
            f"opened was device {held.st_dev}, inode {held.st_ino})",
        )
