"""Locks (`flock`) on the directories of a log, so that two stores cannot share one log.

A log may be outside of the store directory, where the lock file has no effect, and no other files may be put into a log
directory. RocketMQ does not know these locks. They are on the directory, not on its name: `check` detects that it was
moved, removed or covered by a mount.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from reput_broker.store.checked_path import check_identity
from reput_broker.store.errors import DiskFull, LogDirectoryLocked, LogDirectoryUnusable
from reput_broker.store.file_io import PAGE_BYTES, is_no_space, make_directories
from reput_broker.store.options import EventHandler, ignore_event

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
                    directory,
                    f"it cannot be locked: {error.strerror}; check its file system, or choose another",
                ) from error
            self._on_event(
                "commit_log_dir_not_locked", {"path": str(directory), "reason": str(error.strerror)}
            )


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
