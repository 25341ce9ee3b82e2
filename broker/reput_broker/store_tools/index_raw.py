"""One index file as it lies on the disk, whatever is wrong with it: read only, and without knowing its geometry.

What its bytes mean stands in `store/index_file.py`.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reput_broker.store.index_file import (
    ENTRY_BYTES,
    HEADER,
    HEADER_BYTES,
    SLOT_BYTES,
    IndexHeader,
    index_file_size,
)

ENTRY_DTYPE = np.dtype([("hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
assert ENTRY_DTYPE.itemsize == ENTRY_BYTES
INDEX_BYTES_MIN = index_file_size(slots=1, entries=2)
"""Bytes of the smallest index file: a slot, the entry that is never used, and one more."""
ROCKETMQ_SLOTS = 5_000_000
_GUESS_STEP = 1 << 20


class RawIndex:
    """A mapped index file. Arrays are views of the mapping."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.size = len(self._map)
        self.header = IndexHeader(*HEADER.unpack_from(self._map))
        self.slot_count = 0
        """H; 0 until `set_slots`."""
        self.entry_max = 0
        """N."""

    @property
    def used(self) -> int:
        """Entries in use, entry 0 included; never more than the file has room for."""
        return max(1, min(self.header.next_entry, self.entry_max))

    def set_slots(self, slot_count: int) -> None:
        """Say how many slots the file has."""
        self.slot_count = slot_count
        self.entry_max = (self.size - HEADER_BYTES - SLOT_BYTES * slot_count) // ENTRY_BYTES

    @property
    def entries_at(self) -> int:
        """Where entry 0 lies."""
        return HEADER_BYTES + SLOT_BYTES * self.slot_count

    def slots(self) -> NDArray[np.int32]:
        """Return all slots."""
        return np.frombuffer(self._map, ">i4", self.slot_count, HEADER_BYTES)

    def entries(self, first: int, stop: int) -> NDArray[Any]:
        """Return entries `[first, stop)`, which the file must have."""
        return np.frombuffer(self._map, ENTRY_DTYPE, stop - first, self.entries_at + ENTRY_BYTES * first)

    def entry_place(self, number: int) -> int:
        """Byte of an entry."""
        return self.entries_at + ENTRY_BYTES * number

    def close(self) -> None:
        """Unmap the file, at the latest when the last array of it is gone."""
        with contextlib.suppress(BufferError):
            self._map.close()

    def guess_slots(self) -> int:
        """Find out how many slots the file has; 0 if it cannot be told.

        The newest entry is the head of its chain, and it and the first entry have the offsets of the header. No other
        division of the file fits that, unless there are next to no entries.
        """
        rest = self.size - HEADER_BYTES
        first = rest // SLOT_BYTES % 5 or 5
        if rest % SLOT_BYTES:
            return 0
        for usual in (ROCKETMQ_SLOTS, rest // 84):
            if usual % 5 == first % 5 and self._fitting(np.array([usual])):
                return usual
        largest = (rest - 2 * ENTRY_BYTES) // SLOT_BYTES
        for start in range(first, largest + 1, 5 * _GUESS_STEP):
            fitting = self._fitting(np.arange(start, min(start + 5 * _GUESS_STEP, largest + 1), 5))
            if fitting:
                return fitting
        return 0

    def _fitting(self, slots: NDArray[np.int64]) -> int:
        count = self.header.next_entry
        if count < 2 or len(self._map) < 24:
            return 0
        entries = HEADER_BYTES + SLOT_BYTES * slots
        slots = slots[(slots > 0) & (entries + ENTRY_BYTES * count <= self.size)]
        ints = np.ndarray((self.size - 3,), ">i4", self._map, 0, (1,))
        longs = np.ndarray((self.size - 7,), ">i8", self._map, 0, (1,))
        at = HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES
        slots = slots[longs[at + 4] == self.header.begin_physical_offset]
        at = HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * (count - 1)
        slots = slots[longs[at + 4] == self.header.end_physical_offset]
        at = HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * (count - 1)
        hashes = ints[at].astype(np.int64)
        slots, hashes = slots[hashes >= 0], hashes[hashes >= 0]
        heads = ints[HEADER_BYTES + SLOT_BYTES * (hashes % np.maximum(slots, 1))]
        fitting = slots[heads == count - 1]
        return int(fitting[0]) if len(fitting) else 0


def common_slots(files: Sequence[RawIndex]) -> int:
    """Return how many slots most files have, as far as it can be guessed; 0 if it cannot be told for any."""
    known = [guess for guess in (raw.guess_slots() for raw in files) if guess]
    return max(set(known), key=known.count, default=0)
