"""Copy, move and cut files so that it is on the disk on return."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from reput_broker.store.file_io import end_of_data, sync_directory, write_all, zero_range
from reput_broker.store_tools.layout import Stream, StreamFile

_COPY_BYTES = 1 << 20


def data_end(file: StreamFile) -> int:
    """Return the position after a file's last byte that is not zero."""
    fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return end_of_data(fd, 0, file.size)
    finally:
        os.close(fd)


def copy_part(source: Path, start: int, stop: int, target: Path) -> None:
    """Copy bytes `[start, stop)` of a file into a new one, and sync that; its name is the caller's."""
    with source.open("rb") as reader, target.open("wb") as writer:
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
    """Cut a file off or fill it up with zeros, and sync it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)


def move(path: Path, target: Path) -> None:
    """Move a file or a directory, if it is there, and sync both names."""
    if not path.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(path, target)
    except OSError:  # a log directory may lie on another disk
        shutil.copytree(path, target) if path.is_dir() else copy_part(path, 0, path.stat().st_size, target)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    sync_directory(target.parent)
    sync_directory(path.parent)


def cut_log(log: Stream, offset: int) -> None:
    """End the log: later files go, the last one first; the file of the place is filled up with zeros."""
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
