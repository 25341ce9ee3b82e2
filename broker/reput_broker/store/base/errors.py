"""Errors of the store; each carries its facts and says what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reput_protocol.errors import ReputError

REPAIR_REMEDY = (
    "restore the file from a copy, or run `reput store repair` to see what would be lost and to truncate the log there"
)


class StoreError(ReputError):
    """Base class of everything the store raises."""


class StoreLocked(StoreError):
    """Another broker, in this process or another, owns the directory. Nothing was changed.

    Attributes:
        path: the lock file.
        pid: of the owner, or None if it is unknown.
    """

    def __init__(self, path: Path, pid: int | None) -> None:
        owner = f"process {pid}" if pid is not None else "another broker"
        if pid == os.getpid():
            owner = f"a broker in this process ({pid})"
        super().__init__(
            f"the store directory {path.parent} is in use by {owner} (lock file {path}); "
            "stop that broker or choose another data directory (--data-dir, data_dir)"
        )
        self.path = path
        self.pid = pid


class LogDirectoryLocked(StoreLocked):
    """A directory of the log is part of another open store. Nothing was changed.

    Attributes:
        path: the directory.
        pid: None; the owner is unknown.
    """

    def __init__(self, path: Path) -> None:
        StoreError.__init__(
            self,
            f"the log directory {path} is in use by another store; stop that broker, or give this one directories of "
            "its own (store.commit_log_dirs)",
        )
        self.path = path
        self.pid = None


class LogDirectoryUnusable(StoreError):
    """An entry of `store.commit_log_dirs` cannot be used as a directory of the log. Nothing was changed.

    Attributes:
        reason: why, and the remedy.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"the log directory {path} (store.commit_log_dirs) cannot be used: {reason}")
        self.path = path
        self.reason = reason


class StoreDamaged(StoreError):
    """A file does not hold what it must. Nothing was changed.

    Attributes:
        file: the damaged file or directory.
        position: byte position in it.
        remedy: what an operator can do.
    """

    def __init__(self, file: Path, position: int, reason: str, remedy: str) -> None:
        super().__init__(f"{file} is damaged at byte {position}: {reason}; {remedy}")
        self.file = file
        self.position = position
        self.reason = reason
        self.remedy = remedy


class ForeignFile(StoreError):
    """A file that this store, with this configuration, did not write. It was left unchanged.

    Attributes:
        reason: why it is not one of this store's files, and the remedy.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} does not belong to this store: {reason}")
        self.path = path
        self.reason = reason


class StoreReadOnly(StoreError):
    """The store accepts no more writes until it is restarted or the cause is removed.

    Attributes:
        reason: the cause.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the store is read-only: {reason}")
        self.reason = reason


class DirectoryLost(StoreError, OSError):
    """A directory of the store, or its lock file, was moved, deleted, unmounted or covered while it was open.

    Nothing was read or written through its path. The store is read-only until it is opened again.

    Attributes:
        path: what was opened.
        found: what is there now.
    """

    def __init__(self, path: Path, found: str) -> None:
        reason = (
            f"{path} is not what this broker opened: {found}. Stop the broker, bring the directory back to its path "
            "(move it there, or mount it) and start the broker again"
        )
        OSError.__init__(self, errno.ESTALE, reason, str(path))
        self.path = path
        self.found = found

    def __str__(self) -> str:
        return str(self.strerror)


class DiskFull(StoreError):
    """The disk, or the quota, is full; nothing was half-applied and the call may be repeated.

    Attributes:
        path: what could not be created or written.
        needed_bytes: how many bytes were requested.
        reason: the text without the remedy.
    """

    def __init__(self, path: Path | str, needed_bytes: int) -> None:
        self.reason = f"no space left for {needed_bytes} bytes of {path}"
        super().__init__(f"{self.reason}; free disk space and send again")
        self.path = Path(path)
        self.needed_bytes = needed_bytes


NOT_PERMITTED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""Error numbers that mean that something may not be written."""


_EFFECTIVE = os.access in os.supports_effective_ids
_CANNOT_BE_MADE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL})


def _permission_remedy(cause_errno: int | None, path: Path) -> str:
    if cause_errno == errno.EROFS:
        return f"mount the file system of {path} for writing"
    is_readable = not os.path.exists(path) or os.access(path, os.R_OK, effective_ids=_EFFECTIVE)
    what = "write to" if is_readable else "read and write"
    return f"let the user that the broker runs as (uid {os.geteuid()}) {what} {path}"


class StoreNotWritable(StoreError):
    """The system does not allow the store directory, or a part of it, to be written. Nothing was changed.

    Attributes:
        path: what could not be created or opened.
        cause_errno: the system's error number.
    """

    def __init__(self, path: Path | str, cause_errno: int) -> None:
        super().__init__(
            f"the store cannot be opened: {path}: {os.strerror(cause_errno)}; "
            f"{_permission_remedy(cause_errno, Path(path))}, or choose another data directory (data_dir)"
        )
        self.path = Path(path)
        self.cause_errno = cause_errno


class DataDirUnusable(StoreError):
    """The data directory is not there, and cannot be created where its path says. Nothing was changed.

    Attributes:
        path: what is in the way, or the directory.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} {reason}; choose another data directory (data_dir)")
        self.path = path


@contextmanager
def directory_refusals(data_dir: Path) -> Iterator[None]:
    """Say in place of an OSError what is wrong with a data directory that cannot be opened; others pass.

    Raises:
        StoreNotWritable: the system does not allow something in it to be read or written.
        DataDirUnusable: it is no directory, and cannot be made.
    """
    try:
        yield
    except OSError as error:
        if error.errno in NOT_PERMITTED:
            raise StoreNotWritable(error.filename or data_dir, error.errno) from error
        place = Path(os.path.abspath(data_dir))
        if error.errno not in _CANNOT_BE_MADE or os.path.isdir(place):
            raise
        if os.path.islink(place) and not os.path.exists(place):
            raise DataDirUnusable(place, "is a symbolic link to what does not exist") from error
        for path in (place, *place.parents):
            if os.path.exists(path) and not os.path.isdir(path):
                raise DataDirUnusable(path, "is not a directory") from error
        raise DataDirUnusable(place, f"cannot be made: {error.strerror}") from error


class FileNotMade(StoreError):
    """A file of the log cannot be created or prepared, for another reason than a full disk.

    Nothing was stored and nothing is lost: creating it is retried.

    Attributes:
        cause_errno: the system's error number, or None.
        is_out_of_descriptors: whether the only cause is the limit of open files.
        is_out_of_memory: whether the only cause is that no more memory can be mapped.
    """

    def __init__(self, path: Path | str, cause: OSError | FlushFailed) -> None:
        self.path = Path(path)
        self.cause_errno: int | None = None
        if isinstance(cause, FlushFailed):
            self.cause_errno = cause.cause_errno
        elif isinstance(cause, OSError):
            self.cause_errno = cause.errno
        self.is_out_of_descriptors = self.cause_errno in (errno.EMFILE, errno.ENFILE)
        self.is_out_of_memory = self.cause_errno == errno.ENOMEM
        if isinstance(cause, DirectoryLost):
            reason = str(cause)
        else:
            reason = str(cause) if self.cause_errno is None else os.strerror(self.cause_errno)
            reason += f"; {self._remedy(self.path.parent)}"
        super().__init__(f"{path} cannot be created: {reason}; this is retried automatically")

    def _remedy(self, directory: Path) -> str:
        if self.is_out_of_descriptors:
            return "allow the broker more open files (ulimit -n, LimitNOFILE)"
        if self.is_out_of_memory:
            return "give the broker more memory, or allow it more address space (ulimit -v, vm.max_map_count)"
        if self.cause_errno in NOT_PERMITTED:
            return _permission_remedy(self.cause_errno, directory)
        if self.cause_errno == errno.EEXIST:
            return "the existing file was not created by a broker; move it away"
        return f"check the disk of {directory}"


class FlushFailed(StoreError):
    """The system could not write data to the disk.

    Final for the file: the kernel may have dropped the pages, so a later sync that succeeds proves nothing. What was
    acknowledged as flushed before is not affected; nothing after it may be acknowledged.

    Attributes:
        path: the file or directory whose sync failed.
        cause_errno: the system's error number, or None.
    """

    def __init__(self, path: Path | str, cause: OSError) -> None:
        super().__init__(
            f"syncing {path} failed: {cause.strerror or cause}; "
            "check the disk, then restart the broker so that it recovers from what is on disk"
        )
        self.path = Path(path)
        self.cause_errno = cause.errno


class StorePoolExhausted(StoreError):
    """No buffer of the pool is free until appended data is committed. Nothing was stored; send again soon.

    (RocketMQ: fastFailIfNoBufferInStorePool.)
    """

    def __init__(self, count: int) -> None:
        super().__init__(
            f"all {count} buffers of the transient store pool are waiting for the disk; send again in a moment"
        )
        self.count = count


class StoreClosed(StoreError):
    """The store, or the file in question, has been closed or destroyed."""


class FileFull(StoreError):
    """An append needs more bytes than are left in a file; nothing was written."""

    def __init__(self, path: Path | str, left_bytes: int, needed_bytes: int) -> None:
        super().__init__(
            f"{path} has {left_bytes} bytes left and the append needs {needed_bytes}; roll to the next file"
        )
        self.path = Path(path)
        self.left_bytes = left_bytes
        self.needed_bytes = needed_bytes


class FileMissing(StoreError):
    """A file that the store relies on is missing.

    Attributes:
        path: the missing file.
        reason: how its absence was noticed, and the remedy.
    """

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path} is missing: {reason}")
        self.path = Path(path)
        self.reason = reason
