"""Read an index file on disk, whatever is wrong with it and without knowing its geometry."""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from reput_broker.store.index.file import (
    ENTRY,
    ENTRY_BYTES,
    HEADER,
    HEADER_BYTES,
    SLOT_BYTES,
    IndexHeader,
    index_file_size,
)
from reput_protocol.kernel.index import fitting_slots
from reput_protocol.store.layout import StoreLayout

INDEX_BYTES_MIN = index_file_size(slots=1, entries=2)
"""Size of the smallest index file: one slot, the unused entry and one more."""
ROCKETMQ_SLOTS = 5_000_000


class IndexEntry(NamedTuple):
    """One entry of an index file."""

    hash: int
    physical_offset: int
    seconds: int
    """From the begin time in the file's header to the record's store time."""
    previous: int
    """The entry before it in its slot; 0 for none."""


def unpack_entries(data: bytes) -> list[IndexEntry]:
    """Decode adjacent entries."""
    return list(map(IndexEntry._make, ENTRY.iter_unpack(data)))


class RawIndex:
    """A mapped index file; `data` is its contents."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.size = len(self.data)
        self.header = IndexHeader(*HEADER.unpack_from(self.data))
        self.slot_count = 0
        """Number of slots; 0 until `set_slots`."""
        self.entry_max = 0
        """Number of entries that fit."""

    @property
    def used(self) -> int:
        """Number of entries in use, including entry 0; limited to the size of the file."""
        return max(1, min(self.header.next_entry, self.entry_max))

    def set_slots(self, slot_count: int) -> None:
        """Set how many slots the file has."""
        self.slot_count = slot_count
        self.entry_max = (self.size - HEADER_BYTES - SLOT_BYTES * slot_count) // ENTRY_BYTES

    @property
    def entries_at(self) -> int:
        """Position of entry 0."""
        return HEADER_BYTES + SLOT_BYTES * self.slot_count

    @property
    def slots(self) -> bytes:
        """All slots, 4 bytes each."""
        return self.data[HEADER_BYTES : self.entries_at]

    def head(self, slot: int) -> int:
        """Return the number of the newest entry of a slot."""
        at = HEADER_BYTES + SLOT_BYTES * slot
        return int.from_bytes(self.data[at : at + SLOT_BYTES], "big", signed=True)

    def entry_bytes(self, first: int, stop: int) -> bytes:
        """Return the bytes of entries `[first, stop)`, which must be within the file."""
        return self.data[self.entry_place(first) : self.entry_place(stop)]

    def entries(self, first: int, stop: int) -> list[IndexEntry]:
        """Return entries `[first, stop)`, which must be within the file."""
        return unpack_entries(self.entry_bytes(first, stop))

    def entry_place(self, number: int) -> int:
        """Position of an entry."""
        return self.entries_at + ENTRY_BYTES * number

    def close(self) -> None:
        """Unmap the file."""
        self.data.close()

    def guess_slots(self) -> int:
        """Determine how many slots the file has; 0 if that is not possible.

        The newest entry is the head of its chain, and the first and the newest entry have the offsets of the header.
        Only with very few entries can another number of slots fit too.
        """
        header, rest = self.header, self.size - HEADER_BYTES
        if header.next_entry < 2 or rest % SLOT_BYTES or header.next_entry > rest // ENTRY_BYTES:
            return 0
        offsets = header.begin_physical_offset, header.end_physical_offset
        first = rest // SLOT_BYTES % 5 or 5
        for usual in (ROCKETMQ_SLOTS, rest // 84):
            if usual % 5 == first % 5 and fitting_slots(self.data, usual, usual + 1, 1, header.next_entry, *offsets):
                return usual
        return fitting_slots(self.data, first, rest // SLOT_BYTES, 5, header.next_entry, *offsets)


def common_slots(files: Sequence[RawIndex]) -> int:
    """Return the most frequent guess of `guess_slots`; 0 if there is none."""
    known = [guess for guess in (raw.guess_slots() for raw in files) if guess]
    return max(set(known), key=known.count, default=0)


ROCKETMQ_ENTRIES = 20_000_000


class IndexSizes(NamedTuple):
    """Number of slots and entries of a file."""

    slots: int
    entries: int
    """Including the unused entry."""


def index_sizes(layout: StoreLayout) -> IndexSizes | None:
    """Return the caller's geometry, completed by what fits the files; None if nothing does."""
    slots, entries = layout.geometry.index_slots, layout.geometry.index_entries
    if slots and entries:
        return IndexSizes(slots, entries)
    sizes = Counter(path.stat().st_size for path in layout.index_files())
    size = max(sizes, key=lambda size: sizes[size], default=0)
    if size < INDEX_BYTES_MIN:
        return None
    if not slots:
        slots = (size - HEADER_BYTES - ENTRY_BYTES * entries) // SLOT_BYTES if entries else _guess(layout, size)
    entries = entries or (size - HEADER_BYTES - SLOT_BYTES * slots) // ENTRY_BYTES
    fits = slots > 0 and entries > 1 and index_file_size(slots, entries) == size
    return IndexSizes(slots, entries) if fits else None


def _guess(layout: StoreLayout, size: int) -> int:
    if size == index_file_size(ROCKETMQ_SLOTS, ROCKETMQ_ENTRIES):
        return ROCKETMQ_SLOTS
    files = [RawIndex(path) for path in layout.index_files() if path.stat().st_size == size]
    try:
        return common_slots(files)
    finally:
        for raw in files:
            raw.close()
