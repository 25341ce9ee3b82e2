"""Read the units of queues on disk, read-only."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path

from reput_protocol.store.files import end_of_data, open_file, read_at
from reput_protocol.store.layout import Stream
from reput_protocol.store.unit import UNIT_BYTES, ConsumeQueueUnit, unpack_units

_OPEN_MAX = 256


class OpenFiles:
    """The most recently used descriptors for reading; close it when done."""

    def __init__(self, open_max: int = _OPEN_MAX) -> None:
        self._fds: OrderedDict[Path, int] = OrderedDict()
        self._open_max = open_max

    def fd(self, path: Path) -> int:
        """Return a descriptor that is valid until the next call."""
        fd = self._fds.get(path)
        if fd is None:
            fd = self._fds[path] = open_file(path)
            if len(self._fds) > self._open_max:
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

    def __init__(self, stream: Stream, files: OpenFiles) -> None:
        self.stream = stream
        self._files = files
        self.first = stream.min_offset // UNIT_BYTES
        self.end = self._find_end()
        """Number after the last non-zero unit."""

    def _find_end(self) -> int:
        for file in reversed(self.stream.files):
            stop = end_of_data(self._files.fd(file.path), 0, file.size)
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
            return read_at(self._files.fd(file.path), size, position - file.start)
        data = bytearray(size)
        for file in self.stream.files:
            start, stop = max(position, file.start), min(position + size, file.end)
            if start < stop:
                piece = read_at(self._files.fd(file.path), stop - start, start - file.start)
                data[start - position : start - position + len(piece)] = piece
        return bytes(data)

    def place(self, number: int) -> tuple[Path, int]:
        """Return the file of a unit and its position there."""
        return self.stream.place(number * UNIT_BYTES)
