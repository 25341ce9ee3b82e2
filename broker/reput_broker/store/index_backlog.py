"""Keys that have been dispatched and wait for their place in an index file, until there are enough of them.

Hashing and inserting keys costs per call more than per key: one by one they cost ten times their share of a thousand.
So they are gathered, small batches even as they came. Nothing is at stake by that: what no full index file holds is
indexed again after a crash anyway.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput_broker.store.dispatch import DispatchBatch
from reput_protocol.dispatch_rows import DispatchRows
from reput_protocol.dispatch_scan import scan_dispatch
from reput_protocol.index_keys import hash_keys

IntArray = NDArray[np.int64]

KEYS_AT_ONCE = 1024
"""So many keys are worth inserting."""
_SMALL_BATCH_ROWS = 32
_SMALL_BATCHES_ROWS = 256
_SMALL_BATCHES_BYTES = 1 << 20


class GatheredKeys(NamedTuple):
    """Keys in the order in which they are to be inserted; columns of equal length."""

    hashes: IntArray
    physical_offsets: IntArray
    store_timestamps_ms: IntArray

    def __len__(self) -> int:
        return len(self.hashes)

    def part(self, start: int, stop: int) -> GatheredKeys:
        """Return the keys `[start, stop)`."""
        return GatheredKeys(*(column[start:stop] for column in self))


_NONE = GatheredKeys(*(np.empty(0, dtype=np.int64) for _ in range(3)))


class KeyBacklog:
    """The keys of the records before the log offset `end_offset` that are not in a file yet."""

    def __init__(self) -> None:
        self.end_offset = 0
        self._keys: list[GatheredKeys] = []
        self._count = 0
        self.is_due = False
        """Whether there are enough keys to insert them."""
        self._small: list[DispatchBatch] = []
        self._small_rows = self._small_bytes = 0

    def start_at(self, offset: int) -> None:
        """Forget everything; the keys of records from a log offset on are wanted."""
        self.end_offset = offset
        self._forget_small()
        self._replace([])

    def add(self, batch: DispatchBatch) -> None:
        """Take the keys of the batch that were not taken before."""
        if batch.end_offset <= self.end_offset:
            return
        rows = batch.rows.count
        if rows < _SMALL_BATCH_ROWS and batch.start_offset >= self.end_offset:
            self._small.append(batch)
            self._small_rows += rows
            self._small_bytes += batch.rows.consumed
            if self._small_rows >= _SMALL_BATCHES_ROWS or self._small_bytes >= _SMALL_BATCHES_BYTES:
                self._hash_small()
        else:
            self._hash_small()
            taken_before = self.end_offset if self.end_offset > batch.start_offset else 0
            self._hash(batch.data, batch.rows, from_offset=taken_before)
        self.end_offset = batch.end_offset

    def gathered(self) -> GatheredKeys:
        """Return all keys; they stay until they are dropped."""
        self._hash_small()
        if len(self._keys) > 1:
            columns = (np.concatenate(column) for column in zip(*self._keys, strict=True))
            self._replace([GatheredKeys(*columns)])
        return self._keys[0] if self._keys else _NONE

    def drop(self, count: int) -> None:
        """Forget the first `count` keys: they have been inserted."""
        if count:
            left = self.gathered().part(count, self._count)
            self._replace([left] if len(left) else [])

    def _replace(self, keys: list[GatheredKeys]) -> None:
        self._keys = keys
        self._count_is(sum(map(len, keys)))

    def _count_is(self, count: int) -> None:
        self._count = count
        self.is_due = count >= KEYS_AT_ONCE

    def _hash_small(self) -> None:
        """Hash the small batches as if they had come as one."""
        batches = self._small
        if not batches:
            return
        if len(batches) == 1:
            self._hash(batches[0].data, batches[0].rows)
        else:
            data = b"".join([batch.data[: batch.rows.consumed] for batch in batches])
            self._hash(data, scan_dispatch(data))
        self._forget_small()

    def _forget_small(self) -> None:
        self._small = []
        self._small_rows = self._small_bytes = 0

    def _hash(self, data: bytes, rows: DispatchRows, *, from_offset: int = 0) -> None:
        found = hash_keys(data, rows)
        owners = np.asarray(found.rows, np.int64)
        keys = GatheredKeys(
            np.asarray(found.hashes, np.int64), rows.physical_offset[owners], rows.store_timestamp_ms[owners]
        )
        if from_offset:
            wanted = keys.physical_offsets >= from_offset
            keys = GatheredKeys(*(column[wanted] for column in keys))
        if len(keys):
            self._keys.append(keys)
            self._count_is(self._count + len(keys))
