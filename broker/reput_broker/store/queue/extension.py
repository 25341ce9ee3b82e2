"""The extended entries of one queue: `consumequeue_ext/TOPIC/QUEUEID/` (RocketMQ: ConsumeQueueExt).

They are derived from the log like the queue, and the queue determines which of them count: it holds the address of the
last one, and everything after that is truncated. An entry that cannot be read filters nothing out. An address that the
queue still holds must never refer to another message's entry; so the stream continues after the last address, and a
queue whose last entry is gone is rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from reput_broker.store.base.errors import FileMissing
from reput_broker.store.queue.files import QueueFileCache, SparseFileQueue, first_address, last_address
from reput_protocol.store.unit import (
    END_BLANK_BYTES,
    END_OF_FILE,
    EXT_UNIT,
    EXT_UNIT_BYTES_MIN,
    UNIT,
    UNIT_BYTES,
    ConsumeQueueExtUnit,
    ConsumeQueueUnit,
    address_of,
    is_address,
    position_of,
)

BitMaps = Sequence[bytes | None]
"""For each message the bit map of the consumers whose filters accept it, or None."""

_BLOCK_BYTES = 16 * 1024


class ConsumeQueueExt:
    """Entries in files of `file_size` bytes (RocketMQ: mappedFileSizeConsumeQueueExt).

    One thread owns it; only `flush` may run in another.

    Args:
        bit_map_bytes: length of the bit maps that are put; any length can be read.
        cache: open files, shared with the queues.
    """

    __slots__ = ("_bit_map_bytes", "_files")

    def __init__(self, directory: Path, file_size: int, bit_map_bytes: int, cache: QueueFileCache) -> None:
        assert file_size >= EXT_UNIT_BYTES_MIN + bit_map_bytes + END_BLANK_BYTES
        self._files = SparseFileQueue(directory, file_size, cache)
        self._bit_map_bytes = bit_map_bytes

    def load(self, *, after_crash: bool = False) -> None:
        """List the files; `truncate` must follow before anything is put.

        After a crash, files after a gap do not count; `drop_strays` removes them.

        Raises:
            ForeignFile, StoreDamaged: as `SparseFileQueue.load`.
        """
        self._files.load(after_crash=after_crash)

    def drop_strays(self) -> int:
        """Durably delete the files that `load` found after a gap; return how many there were."""
        return self._files.drop_strays()

    @property
    def end(self) -> int:
        """The position after the last entry; 0 without files."""
        return self._files.end

    @property
    def bytes_to_flush(self) -> int:
        """Bytes put and not yet known to be on disk."""
        return self._files.bytes_to_flush

    # -- putting -------------------------------------------------------------------------------------------

    def put(
        self, tags_codes: Sequence[int], store_timestamps_ms: Sequence[int], bit_maps: BitMaps | None = None
    ) -> list[int]:
        """Append an entry for each message and return their addresses.

        Raises:
            DiskFull: nothing was applied; the same call may be repeated.
        """
        position = self._files.end
        pieces: list[bytes] = []
        addresses: list[int] = []
        for number, (tags_code, stored_ms) in enumerate(zip(tags_codes, store_timestamps_ms, strict=True)):
            bit_map = (bit_maps[number] if bit_maps is not None else None) or b""
            assert len(bit_map) in (0, self._bit_map_bytes), "bit maps have the length that the option says"
            unit = ConsumeQueueExtUnit(tags_code, stored_ms, bit_map).encode()
            if self._room_at(position) < len(unit):
                pieces.append(self._end_of_file(position))
                position += len(pieces[-1])
            addresses.append(address_of(position))
            pieces.append(unit)
            position += len(unit)
        self._files.write(self._files.end, b"".join(pieces))
        return addresses

    def _room_at(self, position: int) -> int:
        return self._files.file_size - position % self._files.file_size - END_BLANK_BYTES

    def _end_of_file(self, position: int) -> bytes:
        left = self._files.file_size - position % self._files.file_size
        return END_OF_FILE.ljust(left, b"\0")

    # -- getting -------------------------------------------------------------------------------------------

    def get(self, address: int) -> ConsumeQueueExtUnit | None:
        """Return the entry at an address; None if there is no valid one, or its file is gone."""
        files = self._files
        position = position_of(address)
        if not is_address(address) or files.is_empty or position < files.first_start:
            return None
        left = min(files.end - position, self._room_at(position))
        if left < EXT_UNIT_BYTES_MIN:
            return None
        try:
            size, tags_code, stored_ms, bit_map_size = EXT_UNIT.unpack(files.read(position, EXT_UNIT_BYTES_MIN))
            if bit_map_size < 0 or not size == EXT_UNIT_BYTES_MIN + bit_map_size <= left:
                return None
            bit_map = files.read(position + EXT_UNIT_BYTES_MIN, bit_map_size) if bit_map_size else b""
        except FileMissing:
            return None
        return ConsumeQueueExtUnit(tags_code, stored_ms, bit_map)

    def tags_codes_at(self, codes: Sequence[int]) -> list[int]:
        """Return `codes` with each address replaced by its entry's tags code; unreadable ones stay."""
        found = list(codes)
        block, block_start = b"", 0
        for row, address in enumerate(codes):
            if not is_address(address):
                continue
            position = position_of(address)
            if not block_start <= position <= block_start + len(block) - EXT_UNIT_BYTES_MIN:
                block, block_start = self._block_at(position), position
            left = min(self._files.end - position, self._room_at(position))
            if len(block) < EXT_UNIT_BYTES_MIN or left < EXT_UNIT_BYTES_MIN:
                continue
            size, tags_code, _, bit_map_size = EXT_UNIT.unpack_from(block, position - block_start)
            if bit_map_size >= 0 and size == EXT_UNIT_BYTES_MIN + bit_map_size <= left:
                found[row] = tags_code
        return found

    def _block_at(self, position: int) -> bytes:
        files = self._files
        if files.is_empty or not files.first_start <= position < files.end:
            return b""
        in_file = files.file_size - position % files.file_size
        try:
            return files.read(position, min(_BLOCK_BYTES, in_file, files.end - position))
        except FileMissing:
            return b""

    # -- truncating and deleting -----------------------------------------------------------------------

    def end_of(self, address: int) -> int | None:
        """Return the position after the valid entry at an address; None if there is none."""
        unit = self.get(address)
        if unit is None:
            return None
        return position_of(address) + EXT_UNIT_BYTES_MIN + len(unit.bit_map)

    def truncate(self, end: int) -> None:
        """End the stream at a position; what follows is zeroed or deleted (RocketMQ: truncateByMaxAddress).

        At or before the position where the first file begins, nothing is left.
        """
        self._files.truncate(end)

    def delete_before(self, address: int) -> int:
        """Delete the files that end before an address, never the last; return how many.

        (RocketMQ: truncateByMinAddress.)
        """
        files = self._files
        deleted = 0
        while not files.is_empty and files.first_start + files.file_size < position_of(address):
            if not files.drop_first():
                break
            deleted += 1
        return deleted

    def destroy(self) -> None:
        """Delete all files and the directory; the next entry is the first again (RocketMQ: truncateAll)."""
        self._files.destroy()

    def forget(self) -> None:
        """As `destroy`, but leave the files to the caller."""
        self._files.forget()

    def is_able_to_flush(self, least_pages: int) -> bool:
        """Whether to flush; see `file_io.is_able_to_flush`."""
        return self._files.is_able_to_flush(least_pages)

    def flush(self) -> int:
        """Sync all entries put before the call. Blocks; raises FlushFailed, which is final."""
        return self._files.flush()


class QueueExtEntries:
    """The extended entries of one queue, kept in step with the units that refer to them."""

    __slots__ = ("_end", "_ext", "_units", "are_kept", "is_lost")

    def __init__(self, units: SparseFileQueue, ext: ConsumeQueueExt | None) -> None:
        self.are_kept = ext is not None
        """Whether units hold addresses of extended entries instead of tags codes."""
        self.is_lost = False
        """Whether a unit's entry is gone although its message is not."""
        self._units = units
        self._ext = ext
        self._end = 0

    def load(self, *, after_crash: bool = False) -> None:
        """List the files; raises as `ConsumeQueueExt.load` does."""
        if self._ext is not None:
            self._ext.load(after_crash=after_crash)

    # -- putting -------------------------------------------------------------------------------------------

    @contextmanager
    def put(
        self, tags_codes: Sequence[int], store_timestamps_ms: Sequence[int], bit_maps: BitMaps | None
    ) -> Iterator[list[int]]:
        """Put an entry for each message; the block then writes the units with their addresses.

        If the block raises, the entries are removed. Raises as `ConsumeQueueExt.put` does.
        """
        ext = self._ext
        assert ext is not None, "the queue keeps extended entries"
        end = ext.end
        try:
            yield ext.put(tags_codes, store_timestamps_ms, bit_maps)
        except BaseException:
            ext.truncate(end)
            raise

    # -- getting -------------------------------------------------------------------------------------------

    def get(self, unit: ConsumeQueueUnit | None) -> ConsumeQueueExtUnit | None:
        """Return the entry of a unit's message; None if it has none, or it cannot be read."""
        return None if unit is None or self._ext is None else self._ext.get(unit.tags_code)

    def with_tags_codes(self, units: bytes) -> bytes:
        """Return units with addresses replaced by tags codes; the address of an unreadable entry stays."""
        if self._ext is None or not units:
            return units
        places, sizes, codes = zip(*UNIT.iter_unpack(units), strict=True)
        resolved = bytearray(len(units))
        for number, unit in enumerate(zip(places, sizes, self._ext.tags_codes_at(codes), strict=True)):
            UNIT.pack_into(resolved, number * UNIT_BYTES, *unit)
        return bytes(resolved)

    # -- truncating and deleting -----------------------------------------------------------------------

    def look(self, min_physical_offset: int) -> None:
        """Determine which entries belong to the present units, and whether any of those is lost.

        Changes nothing; `apply_recovery` must follow. Entries of messages before `min_physical_offset` may
        be gone.
        """
        self._end, self.is_lost = self._end_at(self._units.end, min_physical_offset)

    def would_be_lost(self, units_end: int, min_physical_offset: int) -> bool:
        """Whether any entry would be lost if the units ended at a position."""
        return self._end_at(units_end, min_physical_offset)[1]

    def _end_at(self, units_end: int, min_physical_offset: int) -> tuple[int, bool]:
        """End of the entries whose addresses are before a position, and whether any of them is lost.

        Their files have no gap, so only the first and the last entry of messages in the log are checked.
        """
        ext = self._ext
        if ext is None:
            return 0, False
        last = last_address(self._units, units_end)
        if last is None:
            return 0, False
        found = ext.end_of(last.tags_code)
        if last.physical_offset < min_physical_offset:
            return found or 0, False
        first = first_address(self._units, units_end, min_physical_offset)
        return found or 0, found is None or (first is not None and ext.end_of(first.tags_code) is None)

    def drop_strays(self) -> int:
        """Durably delete the files that `load` found after a gap; return how many there were."""
        return 0 if self._ext is None else self._ext.drop_strays()

    def apply_recovery(self) -> None:
        """Truncate after the last entry that belongs to a unit, unless that one is lost."""
        ext = self._ext
        if ext is None or self.is_lost:
            return
        if self._end:
            ext.truncate(self._end)
        else:
            ext.destroy()

    def delete_before(self, unit: ConsumeQueueUnit | None) -> None:
        """Delete the files of entries before a unit's."""
        if self._ext is not None and unit is not None and is_address(unit.tags_code):
            self._ext.delete_before(unit.tags_code)

    def destroy(self) -> None:
        """Delete all entries."""
        if self._ext is not None:
            self._ext.destroy()
            self._end = 0
            self.is_lost = False

    def forget(self) -> None:
        """As `destroy`, but leave the files to the caller."""
        if self._ext is not None:
            self._ext.forget()
            self._end = 0
            self.is_lost = False

    # -- flushing ------------------------------------------------------------------------------------------

    @property
    def bytes_to_flush(self) -> int:
        """Bytes put and not yet known to be on disk."""
        return 0 if self._ext is None else self._ext.bytes_to_flush

    def is_able_to_flush(self, least_pages: int) -> bool:
        """Whether to flush; see `file_io.is_able_to_flush`."""
        return self._ext is not None and self._ext.is_able_to_flush(least_pages)

    def flush(self) -> None:
        """Sync all entries put before the call. Blocks; raises FlushFailed, which is final."""
        if self._ext is not None:
            self._ext.flush()
