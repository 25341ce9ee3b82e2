"""One file of the index: hash slots, each with a chain of entries, the newest first (RocketMQ: IndexFile).

docs/formats.md has the layout. Entry 0 is never used, so a file of N entries holds N - 1 keys. A reader in another
thread always follows chains of complete entries: an entry is written before the slot that leads to it, and the header
last.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from reput_broker.store.base.errors import FlushFailed, ForeignFile
from reput_broker.store.base.file_io import create_file, map_file, reserve_space, sync_data
from reput_broker.store.log.mapped_file import OpenMappings
from reput_protocol.kernel.index import follow_chain, insert_keys, seconds_ascend

SECONDS_MAX: Final = 0x7FFF_FFFF
_EARLIEST: Final = -(1 << 63)
_LATEST: Final = (1 << 63) - 1


class IndexTimes:
    """The store times of one file's entries, as far as they are known.

    An entry holds whole seconds since the file's first time, clamped to 0 to 2^31 - 1. If the clock was set back, an
    entry of 0 seconds may have any earlier time, and the header's bounds, on which RocketMQ relies, are wrong too. Here
    a time excludes a record only if that is certain.

    One thread notes what is inserted; everything else is thread-safe.

    Args:
        loaded: number of entries when the file was opened, including the unused one; 1 for a new file.
    """

    def __init__(self, loaded: int) -> None:
        self._loaded = loaded
        self._earliest_ms = _LATEST if loaded <= 1 else _EARLIEST
        self._latest_ms = _EARLIEST if loaded <= 1 else _LATEST
        self._inserted_in_order = True
        self._loaded_in_order: bool | None = True if loaded <= 2 else None

    def note(self, earliest_ms: int, latest_ms: int, *, in_order: bool) -> None:
        """Note the store times of inserted entries, and whether they ascend."""
        self._earliest_ms = min(self._earliest_ms, earliest_ms)
        self._latest_ms = max(self._latest_ms, latest_ms)
        self._inserted_in_order &= in_order

    def may_hold(self, begin_ms: int, end_ms: int) -> bool:
        """Whether a record stored in `[begin_ms, end_ms]` can be in the file."""
        return begin_ms <= self._latest_ms and self._earliest_ms <= end_ms

    def are_in_order(self, seconds_ascend: Callable[[int, int], bool]) -> bool:
        """Whether no entry is earlier than the one before it.

        `seconds_ascend` answers that for a range of entries; called once, for a loaded file.
        """
        if not self._inserted_in_order:
            return False
        if self._loaded_in_order is None:
            # The first entry's seconds count from the previous file; by the header it is the earliest.
            self._loaded_in_order = seconds_ascend(2, self._loaded)
        return self._loaded_in_order


def time_bounds(number: int, seconds: int, began_ms: int) -> tuple[int, int]:
    """The earliest and the latest possible store time of an entry.

    Args:
        number: of the entry; the first one's time is the file's.
        began_ms: the first time in the file's header, 0 if it is not known.
    """
    if began_ms <= 0:
        return _EARLIEST, _LATEST
    if number == 1:
        return began_ms, began_ms
    stored_ms = began_ms + 1000 * seconds
    return (stored_ms if seconds > 0 else _EARLIEST, stored_ms + 999 if seconds < SECONDS_MAX else _LATEST)


HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
ENTRY_BYTES: Final = 20
HEADER: Final = struct.Struct(">qqqqii")
SLOT: Final = struct.Struct(">i")
ENTRY: Final = struct.Struct(">iqii")
_OLDER_MAX: Final = 1024
"""After so many entries that are too old, check whether all that follow are."""
_STEPS_AT_ONCE: Final = 4096
"""How many entries are examined before other threads may run."""


class IndexHeader(NamedTuple):
    """The header's fields."""

    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_physical_offset: int
    end_physical_offset: int
    slots_used: int
    next_entry: int


class IndexFile:
    """A mapped index file of `slots` slots and `entries` entries, including the unused entry 0.

    One thread inserts, once disk space is reserved; `find` and `flush` are thread-safe while the file is open.
    """

    def __init__(self, path: Path, slots: int, entries: int, *, create: bool) -> None:
        """Map the file, or create it: fully allocated, its name durable, all zeros.

        Raises:
            DiskFull: there is no room; no file is left behind.
            FlushFailed, OSError: it cannot be created; no file is left behind.
            ForeignFile: the existing file has another size.
        """
        self.path = path
        self.slots = slots
        self.entries = entries
        self._size = index_file_size(slots, entries)
        self._lock = threading.Lock()
        self._map: mmap.mmap
        fd = create_file(path, self._size) if create else _open(path, self._size)
        try:
            self._open_with(fd)
        except BaseException:
            if create:
                with suppress(OSError):
                    path.unlink()
            raise
        status = os.fstat(fd)
        self._identity = status.st_dev, status.st_ino
        self.is_reserved = create
        self._is_on_disk = not create  # `IndexService` keeps only full files that are on disk
        self._is_closed = False
        self.mappings: OpenMappings | None = None
        """Limits how many files are open; notified after the file was opened again."""
        header = IndexHeader(*HEADER.unpack_from(self._map))
        self.header = header._replace(next_entry=max(1, header.next_entry))
        self._times = IndexTimes(min(self.header.next_entry, entries))

    def _open_with(self, fd: int) -> None:
        try:
            self._map = map_file(fd, self._size, self.path)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def __repr__(self) -> str:
        return f"<IndexFile {self.path.name} {self.header.next_entry - 1} of {self.entries - 1} keys>"

    @property
    def is_full(self) -> bool:
        """Whether no more keys fit."""
        return self.header.next_entry >= self.entries

    @property
    def is_empty(self) -> bool:
        """Whether no key has been inserted."""
        return self.header.next_entry <= 1

    @property
    def room(self) -> int:
        """How many more keys fit."""
        return max(0, self.entries - self.header.next_entry)

    @property
    def is_plausible(self) -> bool:
        """Whether a healthy broker could have written the header."""
        header = self.header
        return (
            header.next_entry <= self.entries
            and 0 <= header.slots_used <= min(self.slots, header.next_entry - 1)
            and 0 <= header.begin_physical_offset <= header.end_physical_offset
        )

    def reserve_space(self) -> None:
        """Reserve disk space for all of an existing file, once. Blocks; not during `insert`.

        Otherwise an insert into a file with holes kills the process with SIGBUS when the disk is full.

        Raises:
            DiskFull: there is no room.
            OSError: the system call failed.
        """
        if not self.is_reserved:
            reserve_space(self._fd, self._size, self.path)
            self.is_reserved = True

    def continue_from(self, predecessor: IndexHeader) -> None:
        """Begin an empty file where the previous one ended, like RocketMQ."""
        assert self.is_empty
        end_ms, end_offset = predecessor.end_timestamp_ms, predecessor.end_physical_offset
        self._write_header(IndexHeader(end_ms, end_ms, end_offset, end_offset, 0, 1))

    def insert(self, keys: array[int], start: int, stop: int) -> None:
        """Insert the keys `[start, stop)` in order; there must be room for all (`room`).

        Args:
            keys: three numbers per key: hash (`index_hash`, not negative), physical offset of its record (ascending),
                store time.
        """
        assert 0 < stop - start <= self.room
        self._is_on_disk = False
        header = self.header
        first = header.next_entry
        _, begin_offset, begin_ms = keys[3 * start : 3 * start + 3]
        _, end_offset, end_ms = keys[3 * stop - 3 : 3 * stop]
        before_ms = header.end_timestamp_ms if first > 1 else begin_ms
        slots_used, earliest_ms, latest_ms, in_order = insert_keys(
            self._map, self.slots, self.entries, keys, start, stop, first, header.begin_timestamp_ms, before_ms
        )
        self._times.note(earliest_ms, latest_ms, in_order=in_order)
        if first <= 1:
            header = header._replace(begin_timestamp_ms=begin_ms, begin_physical_offset=begin_offset)
        self._write_header(
            header._replace(
                end_timestamp_ms=end_ms,
                end_physical_offset=end_offset,
                slots_used=header.slots_used + slots_used,
                next_entry=first + stop - start,
            )
        )

    def _opened(self) -> memoryview | None:
        """Return the bytes, reopening a file at rest; None once it is closed."""
        with self._lock:
            was_at_rest = self._fd < 0 and not self._is_closed
            if was_at_rest and self.mappings is not None:
                self.mappings.open_again(self._open_again)
            elif was_at_rest:
                self._open_again()
            found = None if self._fd < 0 else memoryview(self._map)
        if was_at_rest and self.mappings is not None:
            self.mappings.opened(self)
        return found

    def _open_again(self) -> None:
        fd = _open(self.path, self._size)
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != self._identity:
            os.close(fd)
            raise ForeignFile(self.path, "it is not the file that was there when it was last read")
        self._open_with(fd)

    def rest(self) -> bool:
        """Close descriptors and mapping until the next `find`; False unless full and on disk."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if not (self._is_closed or (self.is_full and self._is_on_disk)):
                return False
            self._unmap()
            return True
        finally:
            self._lock.release()

    def _unmap(self) -> None:
        if self._fd >= 0:
            with suppress(BufferError):  # a reader is using it and closes the mapping
                self._map.close()
            del self._map
            os.close(self._fd)
            self._fd = -1

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the physical offsets of records that may have the key, newest first.

        Entries hold hashes and whole seconds, so results may have another key or time. No match is omitted.
        """
        # The view keeps the mapping open even if the file is closed.
        file = self._opened()
        if file is None:
            return
        (number,) = SLOT.unpack_from(file, HEADER_BYTES + SLOT_BYTES * (key_hash % self.slots))
        header = self.header  # written last: until then the first time is not known
        began_ms = header.begin_timestamp_ms if header.next_entry > number else 0
        older = 0
        while number > 0:
            found, physical_offset, seconds, number = follow_chain(
                file, self.slots, self.entries, number, key_hash, _STEPS_AT_ONCE
            )
            if not found:
                continue
            earliest_ms, latest_ms = time_bounds(found, seconds, began_ms)
            if latest_ms < begin_ms:
                older += 1
                if older >= _OLDER_MAX and self._times.are_in_order(partial(self._seconds_ascend, file)):
                    return
            elif earliest_ms <= end_ms:
                yield physical_offset

    def find_by_time(self, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the physical offset of each key's record that may be stored in `[begin_ms, end_ms]`, newest first."""
        file = self._opened()
        if file is None:
            return
        header, first = self.header, HEADER_BYTES + SLOT_BYTES * self.slots
        began_ms = header.begin_timestamp_ms

        def at(number: int) -> tuple[int, int]:
            _, physical_offset, seconds, _ = ENTRY.unpack_from(file, first + ENTRY_BYTES * number)
            return physical_offset, seconds

        numbers = range(1, min(header.next_entry, self.entries))
        in_order = began_ms > 0 and self._times.are_in_order(partial(self._seconds_ascend, file))
        if in_order:
            second = (end_ms - began_ms) // 1000
            numbers = numbers[: bisect_right(numbers, second, key=lambda number: number > 1 and at(number)[1])]
        for number in reversed(numbers):
            physical_offset, seconds = at(number)
            earliest_ms, latest_ms = time_bounds(number, seconds, began_ms)
            if earliest_ms <= end_ms and begin_ms <= latest_ms:
                yield physical_offset
            elif in_order and latest_ms < begin_ms:
                return

    def _seconds_ascend(self, file: memoryview, start: int, stop: int) -> bool:
        return all(
            seconds_ascend(file, self.slots, self.entries, at - 1, min(at + _STEPS_AT_ONCE, stop))
            for at in range(start + 1, stop, _STEPS_AT_ONCE)
        )

    def holds_times(self, begin_ms: int, end_ms: int) -> bool:
        """Whether records stored in `[begin_ms, end_ms]` can be in this file."""
        return not self.is_empty and self._times.may_hold(begin_ms, end_ms)

    def flush(self) -> None:
        """Sync the file. Blocks.

        Raises:
            FlushFailed: the sync failed.
        """
        if self.is_full and self._is_on_disk:
            return
        self._write_header(self.header)
        try:
            sync_data(self._fd)
        except OSError as error:
            raise FlushFailed(self.path, error) from error
        self._is_on_disk = True

    def _write_header(self, header: IndexHeader) -> None:
        HEADER.pack_into(self._map, 0, *header)
        self.header = header

    def close(self) -> None:
        """Unmap the file; nothing is synced."""
        with self._lock:
            self._is_closed = True
            self._unmap()


def index_file_size(slots: int, entries: int) -> int:
    """Return the size of an index file in bytes."""
    return HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * entries


def _open(path: Path, size: int) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    actual = os.fstat(fd).st_size
    if actual != size:
        os.close(fd)
        raise ForeignFile(
            path,
            f"it has {actual} bytes, and an index file of the configured slots and entries has {size}; "
            "open the directory with the sizes it was created with, or move index/ away: it is rebuilt",
        )
    return fd
