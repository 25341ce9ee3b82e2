"""Locks on the directories of a log themselves, so that two stores cannot be given one log.

A log may lie outside of the store directory, where the lock file says nothing about it; and no file of another kind
may be put into a directory of the log. So each directory is locked (`flock`). A directory that is missing cannot be:
those in which new files will be made are made first. RocketMQ does not know these locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from .errors import DiskFull, LogDirectoryLocked
from .file_io import PAGE_BYTES, is_no_space, make_directories


class LogDirectoryLocks:
    """The locks of one store on the directories of its log.

    Args:
        directories: where the log lies.
        new_file_dirs: those of them in which new files are made.
    """

    def __init__(self, directories: Iterable[Path] = (), new_file_dirs: Iterable[Path] = ()) -> None:
        self._directories = tuple(dict.fromkeys(directories))
        self._new_file_dirs = tuple(dict.fromkeys(new_file_dirs))
        self._fds: dict[Path, int] = {}
        self._made: list[Path] = []

    def lock_existing(self) -> None:
        """Lock every directory that is there, without waiting. Changes nothing.

        Raises:
            LogDirectoryLocked: another store has one of them.
        """
        for directory in self._directories:
            self._lock(directory)

    def lock_new(self) -> None:
        """Make the directories for new files that are missing, and lock them.

        Raises:
            LogDirectoryLocked: another store was faster.
            DiskFull, FlushFailed, OSError: one could not be made.
        """
        for directory in self._new_file_dirs:
            # Made by a start that is refused, it may be gone again before it is locked.
            is_new = directory not in self._fds
            while directory not in self._fds and not self._lock(directory):
                make_noting(directory, self._made)
            if is_new and os.listdir(directory):
                # Another store has come and gone meanwhile, and nobody has judged what it left.
                raise LogDirectoryLocked(directory)

    def remove_made(self) -> None:
        """Remove what `lock_new` has made, as far as nobody else has taken it; before the locks are given back."""
        taken = [path for path in self._new_file_dirs if path not in self._fds]
        remove_empty(self._made, but=taken)

    def release(self) -> None:
        """Give all locks back."""
        self._made.clear()
        while self._fds:
            os.close(self._fds.popitem()[1])

    def _lock(self, directory: Path) -> bool:
        """Lock a directory; False if it is not there. File systems without such locks go without."""
        while True:
            try:
                fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECTORY", 0))
            except FileNotFoundError:
                return False
            try:
                with contextlib.suppress(FileNotFoundError):
                    _flock(fd, directory)
                    if os.path.samestat(os.stat(directory), os.fstat(fd)):
                        self._fds[directory] = fd
                        return True
            finally:
                if directory not in self._fds:
                    os.close(fd)
            # A start that was refused had made it, and has just removed it.


def _flock(fd: int, directory: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LogDirectoryLocked(directory) from None
    except OSError:
        return


def make_noting(directory: Path, made: list[Path]) -> None:
    """Make a directory with its parents, durably, and add those that were missing to `made`, the outermost first.

    Raises:
        DiskFull: there is no room for it.
        FlushFailed, OSError: it could not be made.
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


def remove_empty(made: list[Path], *, but: Iterable[Path] = ()) -> None:
    """Remove directories that were made and are not used, the last one first; the list is empty then."""
    kept = set(but)
    while made:
        path = made.pop()
        if path not in kept:
            with contextlib.suppress(OSError):
                path.rmdir()
