"""The log of units that form the chains of the timer wheel's slots: `timerlog/` (RocketMQ: TimerLog).

The files are allocated before their first unit, so that RocketMQ can map them even on a full disk; here they are read
and written by position. One thread appends, truncates and deletes; other threads may read units, make files ahead and
flush.

A killed process loses no appended unit. What a power loss takes is rebuilt from the queue of the timer's topic.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from reput_broker.delay.timer_checkpoint import FileDigests
from reput_broker.store.base.errors import FlushFailed, ForeignFile
from reput_broker.store.base.file_io import (
    create_file,
    list_stream_files,
    make_directories,
    sync_data,
    sync_directory,
    write_all,
    zero_range,
)
from reput_protocol.kernel.timer import timer_units, timer_units_ahead
from reput_protocol.record.layout import MAGIC_BLANK
from reput_protocol.store.files import file_name

UNIT = struct.Struct(">iqiqiqiiq")
UNIT_BYTES = 52
BLANK = struct.Struct(">iqi")
BLANK_BYTES = 16

NO_POSITION = -1
"""The position before the first unit of a chain."""
MAGIC_DEFAULT = 1
MAGIC_ROLL = 2
"""The slot is not the message's own: it is rescheduled when the slot is due."""
MAGIC_DELETE = 4
"""The message cancels another one of its slot."""
_MAGIC_BITS = 0xF

assert UNIT.size == UNIT_BYTES
assert BLANK.size == BLANK_BYTES


class TimerUnit(NamedTuple):
    """One unit: a delayed message and its slot of the wheel (RocketMQ: TimerLog). The fields in use, in order.

        position  0      4          12      16       24      28         36       40      44         52
                  +------+----------+-------+--------+-------+----------+--------+-------+----------+
                  | i32  | i64      | i32   | i64    | i32   | i64      | i32    | i32   | i64      |   big-endian
                  +------+----------+-------+--------+-------+----------+--------+-------+----------+
                  size,  previous   magic   write    delay   physical   record   hash of  reserved,
                  52     unit, -1            time     ms      offset     size     topic    0

    Units of one slot are chained backwards, and the wheel has the last one. Write time plus delay is the slot's time.
    Where a file has no room for a unit and 16 bytes more, a blank unit (rest of the file, 0, `CBD43194`) ends it. A
    unit whose size is 0 was never written.
    """

    previous: int
    """Position of the previous unit of its slot, -1 for the first."""
    magic: int
    write_time_ms: int
    delay_ms: int
    physical_offset: int
    """Log offset of the delayed record."""
    record_size: int
    topic_hash: int
    """Java's hash of the message's destination topic."""

    @property
    def slot_ms(self) -> int:
        """The time of the slot."""
        return self.write_time_ms + self.delay_ms

    @property
    def rolls(self) -> bool:
        """Whether the message is rescheduled instead of delivered."""
        return bool(self.magic & MAGIC_ROLL)

    @property
    def cancels(self) -> bool:
        """Whether the message is a delete message in its own slot."""
        return self.magic & (MAGIC_DELETE | MAGIC_ROLL) == MAGIC_DELETE

    def pack(self) -> bytes:
        """Return the 52 bytes."""
        return UNIT.pack(UNIT_BYTES, *self, 0)


def unpack_timer_unit(data: bytes, position: int = 0) -> TimerUnit | None:
    """Decode the unit at `position` of `data`; None if there is none."""
    if len(data) - position < UNIT_BYTES:
        return None
    size, *fields, _ = UNIT.unpack_from(data, position)
    unit = TimerUnit._make(fields)
    return unit if size == UNIT_BYTES and is_magic(unit.magic) else None


def is_magic(magic: int) -> bool:
    """Whether a unit may have this magic (RocketMQ: TimerMessageStore.isMagicOK)."""
    return magic | _MAGIC_BITS == _MAGIC_BITS


def is_blank(data: bytes, position: int) -> bool:
    """Whether a blank unit, which ends a file, is there."""
    return len(data) - position >= BLANK_BYTES and BLANK.unpack_from(data, position)[2] == MAGIC_BLANK


def encode_blank_unit(size: int) -> bytes:
    """Return the blank unit for `size` remaining bytes of a file."""
    return BLANK.pack(size, 0, MAGIC_BLANK)


FILE_SIZE_MIN = UNIT_BYTES + BLANK_BYTES
_READ_UNITS = 16_384
_BLOCK_BYTES = 64 * 1024


class _File(NamedTuple):
    start: int
    fd: int


class TimerLog:
    """Positions `[first, end)` of a stream of units; `flushed <= end`.

    Args:
        directory: of the files; made with the first.
        file_size: bytes of one file (RocketMQ: mappedFileSizeTimerLog).
    """

    def __init__(self, directory: Path, file_size: int) -> None:
        assert file_size >= FILE_SIZE_MIN
        self.directory = directory
        self.file_size = file_size
        self.end = 0
        """Position of the next unit, unless that needs a new file."""
        self.flushed = 0
        self._files: tuple[_File, ...] = ()
        self._prepared: _File | None = None
        self._retired: list[int] = []
        self._digests: dict[int, int] = {}
        self._strays: list[Path] = []
        """Files after a gap."""
        self._making = threading.Lock()
        self._list_lock = threading.Lock()
        self._units_end = (file_size - BLANK_BYTES) // UNIT_BYTES * UNIT_BYTES

    # -- opening -------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Open the existing files and set `end` behind the last valid unit.

        Changes nothing; `cut` removes what follows.

        Raises:
            ForeignFile: a file has an unexpected length or name.
        """
        try:
            starts = list_stream_files(self.directory, self.file_size, [], strays=self._strays)
        except ForeignFile as error:
            raise ForeignFile(error.path, f"{error.reason} (delay.timer_log_file_size)") from None
        self._files = tuple(_File(start, os.open(self._path(start), os.O_RDWR | os.O_CLOEXEC)) for start in starts)
        self.end = self.flushed = self._find_end()

    def _find_end(self) -> int:
        """Find the first position without a unit in the last two files (RocketMQ: recoverAndRevise)."""
        for file in self._files[-2:]:
            position = 0
            for start, units in self._pieces_of(file, self._units_end):
                sound = timer_units(units) * UNIT_BYTES
                position = start + sound
                if sound < len(units):
                    break
            rest = os.pread(file.fd, BLANK_BYTES, position)
            if not is_blank(rest, 0):
                return file.start + position
        return self._files[-1].start + self.file_size if self._files else 0

    def holds(self, position: int, digests: FileDigests) -> bool:
        """Whether the files are complete up to a position and match these digests. Blocks.

        Older files may have been deleted.
        """
        if self.end < position or self._strays:
            return False
        found = {file.start: self._digest_of(file, position) for file in self._files}
        return all(found.get(start) == digest for start, digest in digests if self.first <= start < position)

    def _digest_of(self, file: _File, end: int) -> int:
        stop, position, digest = min(self._units_end, end - file.start), 0, 0
        while position < stop:
            data = os.pread(file.fd, min(_READ_UNITS * UNIT_BYTES, stop - position), position)
            digest = crc32(data, digest)
            position += len(data)
        return digest

    @property
    def digests(self) -> FileDigests:
        """For each file the position of its first unit and a checksum of its units."""
        return tuple(self._digests.items())

    def cut(self, end: int) -> None:
        """Truncate the log at a position, from the newest file on. Blocks.

        Raises:
            OSError, FlushFailed: the call may be repeated.
        """
        assert end <= self.end or not self._files
        while self._strays:
            self._strays.pop().unlink(missing_ok=True)
        while self._files and self._files[-1].start > end:
            self._remove(self._files[-1])
            self._files = self._files[:-1]
            sync_directory(self.directory)
        if self._files:
            file = self._files[-1]
            if end < file.start + self.file_size:
                zero_range(file.fd, end - file.start, self.file_size, self._path(file.start))
        else:
            end = 0
        self._digests = {file.start: self._digest_of(file, end) for file in self._files}
        self.end = end
        self.flushed = min(self.flushed, end)

    # -- appending -----------------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """Position of the first unit."""
        return self._files[0].start if self._files else self.end

    def needs_file(self) -> bool:
        """Whether `make_file` must be called before the next `append`."""
        return self._prepared is None and (not self._files or self._is_full())

    def should_prepare_file(self) -> bool:
        """Whether the current file is half full and the next one does not exist."""
        if self._prepared is not None or not self._files:
            return False
        return 2 * (self.end - self._files[-1].start) >= self.file_size

    def make_file(self) -> None:
        """Make the next file. Blocks; any thread, one call at a time.

        Raises:
            DiskFull, FlushFailed: there is no file.
        """
        with self._making:
            if self._prepared is None:
                start = self._files[-1].start + self.file_size if self._files else self.end
                make_directories(self.directory)
                path = self._path(start)
                path.unlink(missing_ok=True)  # a leftover of length 0, as `load` has checked
                self._prepared = _File(start, create_file(path, self.file_size))

    def begin_append(self) -> int:
        """Return the position of the next unit, in a file with `room` for it."""
        if not self._files or self._is_full():
            self._roll()
        return self.end

    @property
    def room(self) -> int:
        """How many more units fit into the current file."""
        return (self._units_end - (self.end - self._files[-1].start)) // UNIT_BYTES if self._files else 0

    def append(self, units: bytes) -> None:
        """Write at most `room` units. They survive a killed process; a power loss only after `flush`.

        Raises:
            DiskFull: the file system had not allocated the file; the call may be repeated.
        """
        file = self._files[-1]
        write_all(file.fd, units, self.end - file.start, self._path(file.start))
        self._digests[file.start] = crc32(units, self._digests[file.start])
        self.end += len(units)

    def _is_full(self) -> bool:
        return self.end - self._files[-1].start + UNIT_BYTES > self._units_end

    def _roll(self) -> None:
        assert self._prepared is not None, "`make_file` is called while `needs_file`"
        if self._files:
            file = self._files[-1]
            inside = self.end - file.start
            if inside < self.file_size:
                write_all(file.fd, encode_blank_unit(self.file_size - inside), inside, self._path(file.start))
        with self._list_lock:
            self._files += (self._prepared,)
        self.end = self._prepared.start
        self._digests[self.end] = 0
        self._prepared = None

    def flush(self) -> int:
        """Flush every unit written before the call; return where they end. Blocks.

        Raises:
            FlushFailed: the sync failed; final, as for any file.
        """
        files, end, position = self._files, self.end, self.flushed
        for file in files:
            if file.start + self.file_size > position and file.start < end:
                try:
                    sync_data(file.fd)
                except OSError as error:
                    raise FlushFailed(self._path(file.start), error) from error
        self.flushed = end
        return end

    # -- reading -------------------------------------------------------------------------------------------

    def chain(self, position: int, count: int) -> tuple[list[TimerUnit], int]:
        """Follow a chain backwards over at most `count` units; return them, newest first, and the next position.

        The chain ends (-1) at its first unit, or where it leads to a position without one. Thread-safe.
        """
        units: list[TimerUnit] = []
        block, block_start = b"", 0
        while position != NO_POSITION and len(units) < count:
            inside = position - block_start
            if not 0 <= inside <= len(block) - UNIT_BYTES:
                block, block_start = self._block_around(position)
                inside = position - block_start
            unit = unpack_timer_unit(block, inside) if inside >= 0 else None
            if unit is None or unit.previous >= position:
                return units, NO_POSITION
            units.append(unit)
            position = unit.previous
        return units, position

    def _block_around(self, position: int) -> tuple[bytes, int]:
        """Read a unit and the bytes before it, which often hold the next one of the chain."""
        for file in reversed(self._files):
            if file.start <= position:
                end = position - file.start + UNIT_BYTES
                start = max(0, end - _BLOCK_BYTES)
                return os.pread(file.fd, end - start, start), file.start + start
        return b"", position

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield all units in order: the position of each piece and its bytes, which may hold
        invalid units. Blocks."""
        for file in self._files:
            for start, units in self._pieces_of(file, self.end - file.start):
                yield file.start + start, units

    def _pieces_of(self, file: _File, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yield pieces of a file up to a position: where each is in the file, and its bytes."""
        position, stop = 0, min(self._units_end, stop)
        while position < stop:
            data = os.pread(file.fd, min(_READ_UNITS * UNIT_BYTES, stop - position), position)
            units = data[: len(data) // UNIT_BYTES * UNIT_BYTES]
            if not units:
                return
            yield position, units
            position += len(units)

    def last_unit(self) -> TimerUnit | None:
        """Return the unit before `end`; None if there is none."""
        for file in reversed(self._files):
            inside = min(self._units_end, self.end - file.start)
            if inside >= UNIT_BYTES:
                return unpack_timer_unit(os.pread(file.fd, UNIT_BYTES, inside - UNIT_BYTES))
        return None

    # -- deleting ------------------------------------------------------------------------------------------

    def drop_first_before(self, slot_ms: int) -> bool:
        """Delete the first file, durably, if it is not the last and its slots are before a time. Blocks;
        any thread, one call at a time.

        Raises:
            OSError, FlushFailed: it could not be deleted, or that may not be durable.
        """
        if len(self._files) < 2:
            return False
        file = self._files[0]
        if any(timer_units_ahead(units, slot_ms) for _, units in self._pieces_of(file, self._units_end)):
            return False
        with self._list_lock:
            self._files = self._files[1:]
        self._digests.pop(file.start, None)
        self._remove(file)
        sync_directory(self.directory)
        return True

    def _remove(self, file: _File) -> None:
        Path(self._path(file.start)).unlink(missing_ok=True)
        # A reader in another thread may still use it; it is finished long before the next removal.
        retired, self._retired = self._retired, [file.fd]
        for fd in retired:
            os.close(fd)

    def close(self) -> None:
        """Close every file without a flush; delete a file that was made ahead and not used."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            self._path(prepared.start).unlink(missing_ok=True)
            os.close(prepared.fd)
        for fd in (*self._retired, *(file.fd for file in self._files)):
            os.close(fd)
        self._files, self._retired = (), []

    def _path(self, start: int) -> Path:
        return self.directory / file_name(start)
