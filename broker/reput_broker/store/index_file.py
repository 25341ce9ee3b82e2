"""One file of the index: hash slots, and in each a chain of entries, the newest first (RocketMQ: IndexFile).

    position       size     content
    0              40       header: begin and end timestamp, begin and end physical offset, slots used, next entry
    40             4 * H    slots: number of the newest entry in the slot's chain, 0 if there is none
    40 + 4 * H     20 * N   entries: key hash, physical offset, seconds since begin, number of the chain's next entry

Entry 0 is never used, so a file holds N - 1 keys. All numbers are big-endian. (Store format 5.1 to 5.4.)

A batch is written so that a reader in another thread, at any moment, follows chains of whole entries: entries first,
then the slots that lead to them, then the header.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput_broker.store.errors import FlushFailed, ForeignFile
from reput_broker.store.file_io import create_file, set_aside, sync_data
from reput_broker.store.index_times import SECONDS_MAX, IndexTimes, time_bounds

HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
ENTRY_BYTES: Final = 20
HEADER: Final = struct.Struct(">qqqqii")
ENTRY_DTYPE: Final = np.dtype(
    [("hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
_OLDER_MAX: Final = 1024
"""After so many entries that are too old it pays to know whether all that follow are."""

IntArray = NDArray[np.int64]


class IndexHeader(NamedTuple):
    """The header's fields."""

    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_physical_offset: int
    end_physical_offset: int
    slots_used: int
    next_entry: int


class IndexFile:
    """A mapped index file of `slots` slots and `entries` entries, counting the unused entry 0.

    One thread inserts, once it is set aside; `find` is safe from any thread while the file is open, `flush` too.
    """

    def __init__(self, path: Path, slots: int, entries: int, *, create: bool) -> None:
        """Map the file, or make it first: preallocated in full, its name durable, all zeros.

        Raises:
            DiskFull: there is no room; no file is left behind.
            FlushFailed, OSError: it cannot be made; the same.
            ForeignFile: the existing file has another size.
        """
        self.path = path
        self.slots = slots
        self.entries = entries
        size = index_file_size(slots, entries)
        self._fd = create_file(path, size) if create else _open(path, size)
        try:
            self._map = mmap.mmap(self._fd, size)
        except BaseException:
            os.close(self._fd)
            if create:
                with suppress(OSError):
                    path.unlink()
            raise
        self.is_set_aside = create
        """Whether the disk has set all of the file aside."""
        self._slots: NDArray[Any] = np.frombuffer(self._map, ">i4", slots, HEADER_BYTES)
        self._entries: NDArray[Any] = np.frombuffer(
            self._map, ENTRY_DTYPE, entries, HEADER_BYTES + SLOT_BYTES * slots
        )
        self._is_open = True
        header = IndexHeader(*HEADER.unpack_from(self._map))
        self.header = header._replace(next_entry=max(1, header.next_entry))
        self._times = IndexTimes(min(self.header.next_entry, entries))

    def __repr__(self) -> str:
        return f"<IndexFile {self.path.name} {self.header.next_entry - 1} of {self.entries - 1} keys>"

    @property
    def is_full(self) -> bool:
        """Whether no key fits any more."""
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
        """Whether the header could have been written by a healthy broker."""
        header = self.header
        return (
            header.next_entry <= self.entries
            and 0 <= header.slots_used <= min(self.slots, header.next_entry - 1)
            and 0 <= header.begin_physical_offset <= header.end_physical_offset
        )

    def set_aside(self) -> None:
        """Have the disk set all of a file aside that existed, once. Blocks, and not beside `insert`.

        Without that, inserting into a file with holes dies of SIGBUS when the disk is full.

        Raises:
            DiskFull: there is no room.
            OSError: the system could not.
        """
        if not self.is_set_aside:
            set_aside(self._fd, len(self._map), self.path)
            self.is_set_aside = True

    def continue_from(self, predecessor: IndexHeader) -> None:
        """Begin an empty file where the one before it ended (RocketMQ does, and the first entry's time shows it)."""
        assert self.is_empty
        end_ms, end_offset = predecessor.end_timestamp_ms, predecessor.end_physical_offset
        self._write_header(IndexHeader(end_ms, end_ms, end_offset, end_offset, 0, 1))

    def insert(self, hashes: IntArray, physical_offsets: IntArray, timestamps_ms: IntArray) -> None:
        """Insert keys in order; there must be room for all (`room`).

        Args:
            hashes: non-negative 32-bit hashes of the keys (`index_hash`).
            physical_offsets: where the records lie, ascending.
            timestamps_ms: their store times.
        """
        count = len(hashes)
        assert 0 < count <= self.room
        header = self.header
        first = header.next_entry
        numbers = np.arange(first, first + count)
        slots = hashes % self.slots
        previous = self._previous_in_chain(slots, numbers)
        before_ms = header.end_timestamp_ms if first > 1 else int(timestamps_ms[0])
        self._times.note(timestamps_ms, before_ms)
        new = self._entries[first : first + count]
        new["hash"] = hashes
        new["physical_offset"] = physical_offsets
        new["seconds"] = self._seconds(timestamps_ms, is_first=first <= 1)
        new["previous"] = previous
        self._slots[slots] = numbers  # of equal slots the last assignment counts: the newest entry
        if first <= 1:
            header = header._replace(
                begin_timestamp_ms=int(timestamps_ms[0]), begin_physical_offset=int(physical_offsets[0])
            )
        self._write_header(
            header._replace(
                end_timestamp_ms=int(timestamps_ms[-1]),
                end_physical_offset=int(physical_offsets[-1]),
                slots_used=header.slots_used + int((previous == 0).sum()),
                next_entry=first + count,
            )
        )

    def _previous_in_chain(self, slots: IntArray, numbers: IntArray) -> IntArray:
        """Return for each new entry the entry that its slot leads to when it is inserted; 0 if to none."""
        order = np.argsort(slots, kind="stable")
        in_order = slots[order]
        starts = np.ones(len(order), dtype=bool)
        starts[1:] = in_order[1:] != in_order[:-1]
        chained = np.empty(len(order), dtype=np.int64)
        chained[1:] = numbers[order[:-1]]
        known = self._slots[in_order[starts]].astype(np.int64)
        leads_nowhere = (known <= 0) | (known > numbers[order[starts]])
        known[leads_nowhere] = 0
        chained[starts] = known
        previous = np.empty(len(order), dtype=np.int64)
        previous[order] = chained
        return previous

    def _seconds(self, timestamps_ms: IntArray, *, is_first: bool) -> IntArray:
        """Return whole seconds since the file's begin, which the file's first record sets after its own are taken."""
        begin_ms = self.header.begin_timestamp_ms
        if is_first:
            seconds = _since(timestamps_ms, int(timestamps_ms[0]))
            seconds[0] = _since(timestamps_ms[:1], begin_ms)[0]
            return seconds
        return _since(timestamps_ms, begin_ms)

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield the physical offsets of records that may have the key, newest first.

        Entries hold hashes and whole seconds: what comes out may have another key, or lie outside of
        `[begin_ms, end_ms]`. Nothing that belongs is left out.
        """
        # Held, so that the mapping stays though the file be closed.
        slots, entries = self._slots, self._entries
        if not (len(slots) and len(entries)):
            return
        number = int(slots[key_hash % self.slots])
        header = self.header  # written last: until then the first time is not known
        began_ms = header.begin_timestamp_ms if header.next_entry > number else 0
        older = 0
        while 0 < number < self.entries:
            entry_hash, physical_offset, seconds, previous = entries[number].item()
            if entry_hash == key_hash:
                earliest_ms, latest_ms = time_bounds(number, seconds, began_ms)
                if latest_ms < begin_ms:
                    older += 1
                    if older >= _OLDER_MAX and self._times.are_in_order(entries):
                        return
                elif earliest_ms <= end_ms:
                    yield physical_offset
            if previous >= number:  # chains lead to older entries only
                return
            number = previous

    def holds_times(self, begin_ms: int, end_ms: int) -> bool:
        """Whether records stored in `[begin_ms, end_ms]` can be in this file."""
        return not self.is_empty and self._times.may_hold(begin_ms, end_ms)

    def flush(self) -> None:
        """Bring the file to the disk. Blocks.

        Raises:
            FlushFailed: the system could not.
        """
        self._write_header(self.header)
        try:
            sync_data(self._fd)
        except OSError as error:
            raise FlushFailed(self.path, error) from error

    def _write_header(self, header: IndexHeader) -> None:
        HEADER.pack_into(self._map, 0, *header)
        self.header = header

    def close(self) -> None:
        """Unmap the file; nothing is synced."""
        if self._is_open:
            self._is_open = False
            self._slots = np.empty(0, dtype=np.int32)
            self._entries = np.empty(0, dtype=ENTRY_DTYPE)
            with suppress(BufferError):  # a reader is in it: the mapping goes with the reader
                self._map.close()
            os.close(self._fd)


def index_file_size(slots: int, entries: int) -> int:
    """Return the bytes of an index file."""
    return HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * entries


def _since(timestamps_ms: IntArray, begin_ms: int) -> IntArray:
    if begin_ms <= 0:
        return np.zeros(len(timestamps_ms), dtype=np.int64)
    return np.clip((timestamps_ms - begin_ms) // 1000, 0, SECONDS_MAX)


def _open(path: Path, size: int) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    actual = os.fstat(fd).st_size
    if actual != size:
        os.close(fd)
        raise ForeignFile(
            path,
            f"it has {actual} bytes, and an index file of the configured slots and entries has {size}; "
            "open the directory with the sizes it was made with, or move index/ away: it is made anew",
        )
    return fd
