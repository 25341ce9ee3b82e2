"""Copy, move and truncate files durably, so that a kill or a power failure loses nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

from reput_broker.store.base.file_io import make_directories, sync_directory, write_all, zero_range
from reput_protocol.store.files import end_of_data
from reput_protocol.store.layout import Stream, StreamFile

_COPY_BYTES = 1 << 20


def data_end(file: StreamFile) -> int:
    """Return the position after a file's last non-zero byte."""
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return end_of_data(fd, 0, file.size)
    finally:
        os.close(fd)


def copy_part(source: Path, start: int, stop: int, target: Path) -> None:
    """Copy bytes `[start, stop)` of a file into a new one and sync it; the caller syncs its name.

    Raises:
        FileExistsError: the name is taken; that file is unchanged.
    """
    with source.open("rb") as reader, target.open("xb") as writer:
        reader.seek(start)
        left = stop - start
        while left > 0:
            chunk = reader.read(min(_COPY_BYTES, left))
            if not chunk:
                break
            writer.write(chunk)
            left -= len(chunk)
        writer.flush()
        os.fsync(writer.fileno())


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Write bytes into a file and sync it."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        write_all(fd, data, position, path)
        os.fsync(fd)
    finally:
        os.close(fd)


def resize(path: Path, size: int) -> None:
    """Truncate a file or extend it with zeros, and sync it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)


def move(path: Path, target: Path) -> None:
    """Move a file or directory, if it exists, and sync both names.

    To another disk it is copied, and removed once the copy and its names are on disk.

    Raises:
        FileExistsError: the name is taken; nothing was moved.
        OSError: it could not be moved, or not completely removed: one of both is complete.
    """
    if not path.exists():
        return
    make_directories(target.parent)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    try:
        os.rename(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(path, target)
        sync_directory(target.parent)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    sync_directory(target.parent)
    sync_directory(path.parent)


def _copy(path: Path, target: Path) -> None:
    """Copy and sync a file or a directory tree; the caller syncs its name."""
    if path.is_dir():
        target.mkdir()
        for entry in sorted(path.iterdir()):
            _copy(entry, target / entry.name)
        sync_directory(target)
    else:
        copy_part(path, 0, path.stat().st_size, target)
    with contextlib.suppress(OSError):
        shutil.copystat(path, target)


def truncate_log(log: Stream, offset: int) -> None:
    """Truncate the log: delete later files, the last one first; zero the rest of the file at the offset."""
    for index in range(len(log.files) - 1, -1, -1):
        file = log.files[index]
        if file.start > offset or (file.start == offset and index > 0):
            file.path.unlink(missing_ok=True)
            sync_directory(file.path.parent)
        elif file.start + log.file_size > offset:
            fd = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                os.ftruncate(fd, log.file_size)
                zero_range(fd, offset - file.start, log.file_size, file.path)
                os.fsync(fd)
            finally:
                os.close(fd)
