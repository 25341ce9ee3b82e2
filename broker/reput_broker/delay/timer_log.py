"""The log of units that the timer wheel's slots are chains of: `timerlog/` (RocketMQ: TimerLog).

The files have the names and sizes of mapped files and are set aside whole before their first unit, so that RocketMQ may
map them on a disk that has become full; here they are written and read by position. One thread appends, cuts and
deletes; units may be read, files made ahead of need and everything flushed in others.

What a crash leaves: a killed process loses nothing that `append` returned for; a power cut may lose anything behind
what `flush` returned. Whatever is lost can be made again from the queue of the timer's topic.
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
from reput_broker.store.errors import FlushFailed, ForeignFile
from reput_broker.store.file_io import (
    create_file,
    make_directories,
    sync_data,
    sync_directory,
    write_all,
    zero_range,
)
from reput_broker.store.file_names import file_name
from reput_protocol.kernel.timer import timer_units, timer_units_ahead
from reput_protocol.record.layout import MAGIC_BLANK

UNIT = struct.Struct(">iqiqiqiiq")
UNIT_BYTES = 52
BLANK = struct.Struct(">iqi")
BLANK_BYTES = 16

NO_POSITION = -1
"""Stands where there is no unit: before the first of a slot."""
MAGIC_DEFAULT = 1
MAGIC_ROLL = 2
"""The slot is not the message's own: it is parked anew when the slot's time comes."""
MAGIC_DELETE = 4
"""The message cancels another one of its slot."""
_MAGIC_BITS = 0xF

assert UNIT.size == UNIT_BYTES
assert BLANK.size == BLANK_BYTES


class TimerUnit(NamedTuple):
    """One unit: a parked message and its slot of the wheel (RocketMQ: TimerLog). The fields in use, in their order.

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
    """Position of the unit before it in its slot, -1 if it is the first."""
    magic: int
    write_time_ms: int
    delay_ms: int
    physical_offset: int
    """Where the parked record lies in the log."""
    record_size: int
    topic_hash: int
    """Java's hash of the topic that the message is for."""

    @property
    def slot_ms(self) -> int:
        """The time of the slot."""
        return self.write_time_ms + self.delay_ms

    @property
    def rolls(self) -> bool:
        """Whether the message is parked anew instead of delivered."""
        return bool(self.magic & MAGIC_ROLL)

    @property
    def cancels(self) -> bool:
        """Whether the message cancels another one, now that its own slot has come."""
        return self.magic & (MAGIC_DELETE | MAGIC_ROLL) == MAGIC_DELETE

    def pack(self) -> bytes:
        """Return the 52 bytes."""
        return UNIT.pack(UNIT_BYTES, *self, 0)


def unpack_timer_unit(data: bytes, position: int = 0) -> TimerUnit | None:
    """Decode the unit at `position` of `data`; None if what lies there is none."""
    if len(data) - position < UNIT_BYTES:
        return None
    size, *fields, _ = UNIT.unpack_from(data, position)
    unit = TimerUnit._make(fields)
    return unit if size == UNIT_BYTES and is_magic(unit.magic) else None


def is_magic(magic: int) -> bool:
    """Whether a unit may have this magic (RocketMQ: TimerMessageStore.isMagicOK)."""
    return magic | _MAGIC_BITS == _MAGIC_BITS


def is_blank(data: bytes, position: int) -> bool:
    """Whether a blank unit lies there, which ends a file."""
    return len(data) - position >= BLANK_BYTES and BLANK.unpack_from(data, position)[2] == MAGIC_BLANK


def encode_blank_unit(size: int) -> bytes:
    """Return the blank unit that says that `size` bytes of the file are left."""
    return BLANK.pack(size, 0, MAGIC_BLANK)


FILE_SIZE_MIN = UNIT_BYTES + BLANK_BYTES
_NAME_DIGITS = 20
_READ_UNITS = 16_384
_BLOCK_BYTES = 64 * 1024


class _File(NamedTuple):
    start: int
    fd: int


class TimerLog:
    """Positions `[first, end)` of a stream of units; `flushed <= end`.

    Args:
        directory: where the files lie; made with the first.
        file_size: bytes of one file (RocketMQ: mappedFileSizeTimerLog).
    """

    def __init__(self, directory: Path, file_size: int) -> None:
        assert file_size >= FILE_SIZE_MIN
        self.directory = directory
        self.file_size = file_size
        self.end = 0
        """Where the next unit goes, unless it needs a new file."""
        self.flushed = 0
        self._files: tuple[_File, ...] = ()
        self._prepared: _File | None = None
        self._retired: list[int] = []
        self._digests: dict[int, int] = {}
        self._is_whole = True
        self._making = threading.Lock()
        self._list_lock = threading.Lock()
        self._units_end = (file_size - BLANK_BYTES) // UNIT_BYTES * UNIT_BYTES

    # -- opening -------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Open the files that are there; `end` is then the end of the last one's units, found by looking.

        Changes nothing; `cut` removes what lies behind.

        Raises:
            ForeignFile: a file of another length or name.
        """
        starts = self._starts()
        self._files = tuple(
            _File(start, os.open(self._path(start), os.O_RDWR | os.O_CLOEXEC)) for start in starts
        )
        self.end = self.flushed = self._find_end()

    def _starts(self) -> list[int]:
        if not self.directory.is_dir():
            return []
        starts: list[int] = []
        entries = sorted((entry.name, entry.stat().st_size) for entry in os.scandir(self.directory))
        for name, size in entries:
            path = self.directory / name
            if len(name) != _NAME_DIGITS or not name.isdecimal() or int(name) % self.file_size:
                raise ForeignFile(
                    path, f"its name is no multiple of the timer log's file size ({self.file_size})"
                )
            if size == 0 and name == entries[-1][0]:
                continue  # a process was killed while it made the file
            if size != self.file_size:
                raise ForeignFile(
                    path,
                    f"it has {size} bytes and the timer log's file size is {self.file_size}; "
                    "set delay.timer_log_file_size to the size it was made with",
                )
            if starts and int(name) != starts[-1] + self.file_size:
                self._is_whole = False
            starts.append(int(name))
        return starts

    def _find_end(self) -> int:
        """Find the first place in the last two files that holds no unit (RocketMQ: recoverAndRevise)."""
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
        """Whether no file is missing, and they hold up to a position what these digests say. Blocks.

        Older files may have been deleted since.
        """
        if self.end < position or not self._is_whole:
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
        """End the log at a position; what lies behind is gone for good. Blocks; from the newest file on.

        Raises:
            OSError, FlushFailed: it may be done again.
        """
        assert end <= self.end or not self._files
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
        """Where the first unit lies."""
        return self._files[0].start if self._files else self.end

    def needs_file(self) -> bool:
        """Whether the next `append` needs a file that is not there yet: `make_file` first."""
        return self._prepared is None and (not self._files or self._is_full())

    def should_prepare_file(self) -> bool:
        """Whether the file in use is half full and the next one not made."""
        if self._prepared is not None or not self._files:
            return False
        return 2 * (self.end - self._files[-1].start) >= self.file_size

    def make_file(self) -> None:
        """Make the next file. Blocks; in whatever thread, one at a time.

        Raises:
            DiskFull, FlushFailed: there is no file.
        """
        with self._making:
            if self._prepared is None:
                start = self._files[-1].start + self.file_size if self._files else self.end
                make_directories(self.directory)
                path = self._path(start)
                path.unlink(missing_ok=True)  # of length 0, as `load` has seen
                self._prepared = _File(start, create_file(path, self.file_size))

    def begin_append(self) -> int:
        """Return the position of the next unit, in a file that is there; `room` says how many go in there."""
        if not self._files or self._is_full():
            self._roll()
        return self.end

    @property
    def room(self) -> int:
        """How many more units the file in use takes."""
        return (self._units_end - (self.end - self._files[-1].start)) // UNIT_BYTES if self._files else 0

    def append(self, units: bytes) -> None:
        """Write units, at most `room` of them, behind each other. They survive the process; a power cut only after
        `flush`.

        Raises:
            DiskFull: the file system did not really set the file aside; they may be written again.
        """
        file = self._files[-1]
        write_all(file.fd, units, self.end - file.start, self._path(file.start))
        self._digests[file.start] = crc32(units, self._digests[file.start])
        self.end += len(units)

    def _is_full(self) -> bool:
        return self.end - self._files[-1].start + UNIT_BYTES > self._units_end

    def _roll(self) -> None:
        assert self._prepared is not None, "`needs_file` was asked"
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
        """Bring every unit written before the call to the disk; return where they end. Blocks.

        Raises:
            FlushFailed: the system could not; final, as for any file.
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
        """Follow a chain backwards over at most `count` units; return them, newest first, and where it goes on.

        The chain ends (-1) at its first unit, and where it leads to what is no unit or not in the log any more. In
        whatever thread.
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
        """Read the bytes before and with a unit: the next one of the chain lies before it, often near."""
        for file in reversed(self._files):
            if file.start <= position:
                end = position - file.start + UNIT_BYTES
                start = max(0, end - _BLOCK_BYTES)
                return os.pread(file.fd, end - start, start), file.start + start
        return b"", position

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Read all units in order, many at a time: the position of the first, and their bytes. Blocks.

        There may be what is no unit although it should be one.
        """
        for file in self._files:
            for start, units in self._pieces_of(file, self.end - file.start):
                yield file.start + start, units

    def _pieces_of(self, file: _File, stop: int) -> Iterator[tuple[int, bytes]]:
        """Read the units of a file up to a place in it, many at a time: where in the file they lie, and their bytes."""
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
        """Delete the first file if it is not the last and all of its slots lie before a time. Blocks.

        Durable on return. In whatever thread, one at a time.

        Raises:
            OSError, FlushFailed: its name could not be removed, or the removal is not certain.
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
        # A reader in another thread may be at it; it is done long before the next file is removed.
        retired, self._retired = self._retired, [file.fd]
        for fd in retired:
            os.close(fd)

    def close(self) -> None:
        """Close every file; one that was made and not needed is deleted. Flushes nothing."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            self._path(prepared.start).unlink(missing_ok=True)
            os.close(prepared.fd)
        for fd in (*self._retired, *(file.fd for file in self._files)):
            os.close(fd)
        self._files, self._retired = (), []

    def _path(self, start: int) -> Path:
        return self.directory / file_name(start)
