"""What a queue does with its extended entries: they come and go with the units that hold their addresses.

Most queues keep none; then there is nothing to do anywhere. Where the entries lie is `consume_queue_ext`'s business,
where the queue's units end is the queue's: this knows both, and so which entries count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from reput_broker.store import consume_queue_recovery as recovery
from reput_broker.store.consume_queue_ext import BitMaps, ConsumeQueueExt
from reput_broker.store.consume_queue_ext_unit import ConsumeQueueExtUnit, is_address
from reput_broker.store.consume_queue_unit import UNIT, UNIT_BYTES, ConsumeQueueUnit
from reput_broker.store.sparse_file_queue import SparseFileQueue


class QueueExtEntries:
    """The extended entries of one queue, owned as the queue is.

    Args:
        units: the queue's units.
        ext: the entries; None if the queue keeps none.
    """

    __slots__ = ("_end", "_ext", "_units", "are_kept", "is_lost")

    def __init__(self, units: SparseFileQueue, ext: ConsumeQueueExt | None) -> None:
        self.are_kept = ext is not None
        """Whether units hold addresses of extended entries instead of tags codes."""
        self.is_lost = False
        """Whether the queue holds an address whose entry is gone although its message is not."""
        self._units = units
        self._ext = ext
        self._end = 0

    def load(self, *, after_crash: bool = False) -> None:
        """Find their files; raises as `ConsumeQueueExt.load` does."""
        if self._ext is not None:
            self._ext.load(after_crash=after_crash)

    # -- putting -------------------------------------------------------------------------------------------

    @contextmanager
    def put(
        self, tags_codes: Sequence[int], store_timestamps_ms: Sequence[int], bit_maps: BitMaps | None
    ) -> Iterator[list[int]]:
        """Put an entry for each message; the block writes the units that hold their addresses.

        Should it not be able to, the entries are taken back. Raises as `ConsumeQueueExt.put` does.
        """
        with self._undoing() as ext:
            yield ext.put(tags_codes, store_timestamps_ms, bit_maps)

    @contextmanager
    def _undoing(self) -> Iterator[ConsumeQueueExt]:
        ext = self._ext
        assert ext is not None, "the queue keeps extended entries"
        end = ext.end
        try:
            yield ext
        except BaseException:
            ext.cut(end)
            raise

    # -- getting -------------------------------------------------------------------------------------------

    def get(self, unit: ConsumeQueueUnit | None) -> ConsumeQueueExtUnit | None:
        """Return the entry of a unit's message; None if it has none, or it cannot be read."""
        return None if unit is None or self._ext is None else self._ext.get(unit.tags_code)

    def with_tags_codes(self, units: bytes) -> bytes:
        """Return units with tags codes where they hold addresses; an address whose entry cannot be read stays."""
        if self._ext is None or not units:
            return units
        places, sizes, codes = zip(*UNIT.iter_unpack(units), strict=True)
        resolved = bytearray(len(units))
        for number, unit in enumerate(zip(places, sizes, self._ext.tags_codes_at(codes), strict=True)):
            UNIT.pack_into(resolved, number * UNIT_BYTES, *unit)
        return bytes(resolved)

    # -- cutting and expiring ------------------------------------------------------------------------------

    def look(self, min_physical_offset: int) -> None:
        """Find out which entries belong to the units that there are, and whether any of those is lost.

        Changes nothing; `settle` must follow. Of messages before `min_physical_offset` entries may be gone.
        """
        self._end, self.is_lost = self._end_at(self._units.end, min_physical_offset)

    def would_be_lost(self, units_end: int, min_physical_offset: int) -> bool:
        """Whether any would be lost if the units ended at a position."""
        return self._end_at(units_end, min_physical_offset)[1]

    def _end_at(self, units_end: int, min_physical_offset: int) -> tuple[int, bool]:
        """Where the entries end whose addresses lie before a position, and whether any of them is lost.

        Their files have no gap, so it is enough to look at the first and the last that a message in the log needs.
        """
        ext = self._ext
        if ext is None:
            return 0, False
        last = recovery.last_address(self._units, units_end)
        if last is None:
            return 0, False
        found = ext.end_of(last.tags_code)
        if last.physical_offset < min_physical_offset:
            return found or 0, False
        first = recovery.first_address(self._units, units_end, min_physical_offset)
        return found or 0, found is None or (first is not None and ext.end_of(first.tags_code) is None)

    def drop_strays(self) -> int:
        """Delete the files that `load` found behind a gap, durably; return how many there were."""
        return 0 if self._ext is None else self._ext.drop_strays()

    def settle(self) -> None:
        """Cut off what lies behind the last entry that belongs to a unit; nothing is done if that one is lost."""
        ext = self._ext
        if ext is None or self.is_lost:
            return
        if self._end:
            ext.cut(self._end)
        else:
            ext.destroy()

    def delete_before(self, unit: ConsumeQueueUnit | None) -> None:
        """Delete the files of entries that come before a unit's."""
        if self._ext is not None and unit is not None and is_address(unit.tags_code):
            self._ext.delete_before(unit.tags_code)

    def destroy(self) -> None:
        """Delete all of them."""
        if self._ext is not None:
            self._ext.destroy()
            self._end = 0
            self.is_lost = False

    # -- flushing ------------------------------------------------------------------------------------------

    @property
    def bytes_to_flush(self) -> int:
        """Bytes put and not yet known to be on the disk."""
        return 0 if self._ext is None else self._ext.bytes_to_flush

    def is_able_to_flush(self, least_pages: int) -> bool:
        """Whether a file is full and unsynced, or has so many unsynced pages."""
        return self._ext is not None and self._ext.is_able_to_flush(least_pages)

    def flush(self) -> None:
        """Bring all that were put before the call to the disk. Blocks; raises FlushFailed, which is final."""
        if self._ext is not None:
            self._ext.flush()
