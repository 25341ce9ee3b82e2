"""Read the files of a store directory, and the units of queues in them."""

from __future__ import annotations

import os
from collections import OrderedDict
from functools import cached_property
from pathlib import Path
from typing import Protocol

from reput_protocol.store.files import end_of_data, open_file, read_at, read_into
from reput_protocol.store.layout import Stream, StreamFile
from reput_protocol.store.unit import UNIT_BYTES, ConsumeQueueUnit, unpack_units

_OPEN_MAX = 256


class FileReads(Protocol):
    """Reads files by their paths. Each method raises FileNotFoundError for a file that is gone."""

    def read_at(self, path: Path, size: int, position: int) -> bytes:
        """Return `size` bytes of a file from a position on, fewer at its end."""
        ...

    def read_into(self, path: Path, view: memoryview, position: int) -> int:
        """Fill a view from a file from a position on; return how many bytes were read, fewer at its end."""
        ...

    def end_of_data(self, path: Path, size: int) -> int:
        """Return the position after the last non-zero byte of the first `size` bytes of a file."""
        ...


class OpenFiles:
    """Reads local files; keeps the most recently used descriptors, and is closed when done."""

    def __init__(self) -> None:
        self._fds: OrderedDict[Path, int] = OrderedDict()

    def read_at(self, path: Path, size: int, position: int) -> bytes:
        """Return `size` bytes of a file from a position on, fewer at its end."""
        return read_at(self._fd(path), size, position)

    def read_into(self, path: Path, view: memoryview, position: int) -> int:
        """Fill a view from a file from a position on; return how many bytes were read, fewer at its end."""
        return read_into(self._fd(path), view, position)

    def end_of_data(self, path: Path, size: int) -> int:
        """Return the position after the last non-zero byte of the first `size` bytes of a file."""
        return end_of_data(self._fd(path), 0, size)

    def _fd(self, path: Path) -> int:
        """Return a descriptor that is valid until the next call."""
        fd = self._fds.get(path)
        if fd is None:
            fd = self._fds[path] = open_file(path)
            if len(self._fds) > _OPEN_MAX:
                os.close(self._fds.popitem(last=False)[1])
        else:
            self._fds.move_to_end(path)
        return fd

    def close(self) -> None:
        """Close them all."""
        while self._fds:
            os.close(self._fds.popitem()[1])


class UnitFiles:
    """The units of one queue by number; what is in no file reads as zeros, like an unwritten unit."""

    def __init__(self, stream: Stream, files: FileReads) -> None:
        self.stream = stream
        self._files = files
        self.first = stream.min_offset // UNIT_BYTES

    @cached_property
    def end(self) -> int:
        """Number after the last non-zero unit, at the first use of this property."""
        for file in reversed(self.stream.files):
            stop = self._files.end_of_data(file.path, file.size)
            if stop:
                return -(-(file.start + stop) // UNIT_BYTES)
        return self.first

    def read(self, number: int, count: int) -> list[ConsumeQueueUnit]:
        """Return `count` units from a number on."""
        return unpack_units(self.read_bytes(number * UNIT_BYTES, count * UNIT_BYTES))

    def read_bytes(self, position: int, size: int) -> bytes:
        """Return bytes of the stream."""
        file = self.stream.find(position)
        if file is not None and position + size <= file.end:
            return self._read(file, size, position).ljust(size, b"\0")
        data = bytearray(size)
        for file in self.stream.files:
            start, stop = max(position, file.start), min(position + size, file.end)
            if start < stop:
                piece = self._read(file, stop - start, start)
                data[start - position : start - position + len(piece)] = piece
        return bytes(data)

    def _read(self, file: StreamFile, size: int, position: int) -> bytes:
        """Return bytes of the stream that are in one file; none if it was deleted."""
        try:
            return self._files.read_at(file.path, size, position - file.start)
        except FileNotFoundError:
            return b""

    def place(self, number: int) -> tuple[Path, int]:
        """Return the file of a unit and its position there."""
        return self.stream.place(number * UNIT_BYTES)
