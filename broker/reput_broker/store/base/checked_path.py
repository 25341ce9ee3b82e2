"""Paths below directories that an open store has locked: checked at every system call.

While a broker runs, its directory can be moved, deleted or unmounted, and another one can take its name. So the store
derives all its paths from one that runs a check whenever it is converted for a system call (`os.fspath`), which no
caller can forget. Text made of a path (`str`, an f-string) bypasses the check: open nothing by such text.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path, PosixPath

from reput_broker.store.base.errors import DirectoryLost

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
