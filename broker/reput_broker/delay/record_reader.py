"""Read delayed records from the log: directly if they are in the page cache, else in a worker thread.

Records wait for days, and a page fault on one would stop the whole event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from reput_broker.store.base.errors import FileMissing
from reput_broker.store.base.results import Extent
from reput_broker.store.message_store import ACCESS_IN_MEMORY_PERCENT, MessageStore
from reput_protocol.record.record import RecordView
from reput_protocol.record.scan import ScanStatus, scan_record

RecordRange = tuple[int, int]
"""Log offset and size of a record."""


class RecordReader:
    """Reads records of one store; those before `warm_from` have not been read since the start."""

    def __init__(self, store: MessageStore, warm_from: int) -> None:
        self._store = store
        self._warm_from = warm_from
        self._memory_bytes = store.options.memory_bytes * ACCESS_IN_MEMORY_PERCENT // 100
        self._limiter = trio.CapacityLimiter(1)

    async def read(self, places: Sequence[RecordRange]) -> list[bytes | None]:
        """Return the records at these places, checked; None where the record is missing or damaged."""
        warm_from = max(self._warm_from, self._store.max_physical_offset - self._memory_bytes)
        extents = [Extent(*place) for place in places]
        if all(physical_offset >= warm_from for physical_offset, _ in places) and self._store.is_resident(extents):
            return [self._read_one(*place, cold=False) for place in places]
        return await trio.to_thread.run_sync(self.read_cold, places, limiter=self._limiter)

    def read_cold(self, places: Sequence[RecordRange]) -> list[bytes | None]:
        """Do the same with positioned reads. Blocks; thread-safe."""
        return [self._read_one(*place, cold=True) for place in places]

    def _read_one(self, physical_offset: int, size: int, *, cold: bool) -> bytes | None:
        try:
            data = self._store.read_extents((Extent(physical_offset, size),), cold=cold)
        except (FileMissing, ValueError):  # a file that holds the place was deleted, or a damaged file named it
            return None
        if scan_record(data, 0, len(data), check_crc=True).status is not ScanStatus.RECORD:
            return None
        return data if RecordView(data, 0).physical_offset == physical_offset else None
