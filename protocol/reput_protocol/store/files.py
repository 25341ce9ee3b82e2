"""Names of the files and directories of a store, and which parts of a file hold anything.

A file of a stream is named by the offset of its first byte in its stream, 20 decimal digits (RocketMQ: UtilAll,
MappedFileQueue).
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

_CHUNK_BYTES = 1 << 20
_ZEROS = bytes(_CHUNK_BYTES)
_NAME_DIGITS = 20
_OFFSET_MAX = (1 << 63) - 1


def file_name(base_offset: int) -> str:
    """Return the name of the file whose first byte is byte `base_offset` of its stream."""
    return f"{base_offset:020d}"


def is_file_name(name: str) -> bool:
    """Tell whether a file of a stream may have this name."""
    return len(name) == _NAME_DIGITS and name.isascii() and name.isdecimal() and int(name) <= _OFFSET_MAX


def replaced(place: Path) -> Path:
    """Name of a directory between the two renames."""
    return place.with_name(place.name + ".replaced")


def standing_for(place: Path) -> Path:
    """Path of a directory: its place, or, after a kill between the two renames, its other name."""
    old = replaced(place)
    return old if old.is_dir() and not place.exists() else place


def open_file(path: Path) -> int:
    """Open a file for reading, and return its descriptor."""
    if sys.platform == "win32":
        return os.open(path, os.O_RDONLY | os.O_BINARY)
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def read_at(fd: int, size: int, position: int) -> bytes:
    """Return `size` bytes of a file from a position on, fewer at its end; one thread at a time."""
    if sys.platform == "win32":
        os.lseek(fd, position, os.SEEK_SET)
        return os.read(fd, size)
    return os.pread(fd, size, position)


def read_into(fd: int, view: memoryview, position: int) -> int:
    """Fill a view from a file from a position on; return how many bytes were read, fewer at its end."""
    done = 0
    while done < len(view):
        if sys.platform == "win32":
            data = read_at(fd, len(view) - done, position + done)
            size = len(data)
            view[done : done + size] = data
        else:
            size = os.preadv(fd, [view[done:]], position + done)
        if not size:
            break
        done += size
    return done


def holds_only_zeros(path: Path, size: int) -> bool:
    """Whether the first `size` bytes of a file are zero; holes are not read."""
    fd = open_file(path)
    try:
        return is_all_zero(fd, 0, size)
    finally:
        os.close(fd)


def is_all_zero(fd: int, start: int, end: int) -> bool:
    """Whether `[start, end)` of a file holds only zeros (a part past its end counts as zeros)."""
    for position, stop in stretches_of_data(fd, start, end):
        while position < stop:
            chunk = read_at(fd, min(_CHUNK_BYTES, stop - position), position)
            if not chunk:
                return True
            if chunk != _ZEROS[: len(chunk)]:
                return False
            position += len(chunk)
    return True


def end_of_data(fd: int, start: int, end: int) -> int:
    """Return the position after the last non-zero byte in `[start, end)`; `start` if all are zero."""
    found = start
    for position, stop in stretches_of_data(fd, start, end):
        while position < stop:
            chunk = read_at(fd, min(_CHUNK_BYTES, stop - position), position)
            if not chunk:
                return found
            if chunk != _ZEROS[: len(chunk)]:
                found = position + len(chunk.rstrip(b"\0"))
            position += len(chunk)
    return found


def stretches_of_data(fd: int, start: int, end: int) -> list[tuple[int, int]]:
    """Return every stretch of `[start, end)` that may hold anything but zeros, in order.

    All are looked up before any is read: reading brings zeros of a preallocated extent into the page cache, where they
    count as data, so one read would lead to the next through the whole file.
    """
    stretches: list[tuple[int, int]] = []
    position = start
    while position < end:
        begin, position = _next_data(fd, position, end)
        if begin < position:
            stretches.append((begin, position))
    return stretches


def _next_data(fd: int, position: int, end: int) -> tuple[int, int]:
    """The next stretch in `[position, end)` that may hold data; empty at `end` if none does."""
    if sys.platform == "win32" or not hasattr(os, "SEEK_DATA"):
        return position, end
    try:
        start = os.lseek(fd, position, os.SEEK_DATA)
        if start >= end:
            return end, end
        return start, min(os.lseek(fd, start, os.SEEK_HOLE), end)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a hole up to the end of the file
            return end, end
        return position, end
