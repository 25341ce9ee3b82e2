"""The extended entries of one queue, in files beside it: `consumequeue_ext/TOPIC/QUEUEID/` (RocketMQ: ConsumeQueueExt).

They are derived from the log like the queue itself, and only the queue says which of them count: it knows the address
of its last entry, and whatever lies behind that one is cut off (`consume_queue`). An entry that cannot be read filters
nothing out. What must never happen is that an address which the queue still holds comes to mean another message's
entry; so the stream goes on behind the last address, and a queue whose last entry is gone is built anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .consume_queue_ext_unit import (
    END_BLANK_BYTES,
    END_OF_FILE,
    EXT_UNIT,
    EXT_UNIT_BYTES_MIN,
    EXT_UNIT_DTYPE,
    MAX_ADDRESS,
    MIN_ADDRESS,
    ConsumeQueueExtUnit,
    address_of,
    is_address,
    position_of,
)
from .errors import FileMissing
from .queue_files import QueueFileCache
from .sparse_file_queue import SparseFileQueue

BitMaps = Sequence[bytes | None]
"""For each message the bit map of the consumers whose filters let it through, or None."""

_ARRAY_THRESHOLD = 32
_SPAN_BYTES_MAX = 1 << 20
"""Up to so many bytes entries are read together, with whatever lies between them."""
_HEAD = np.arange(EXT_UNIT_BYTES_MIN)


class ConsumeQueueExt:
    """Entries in files of `file_size` bytes.

    One thread owns it; only `flush` may run in another.

    Args:
        directory: where the files lie.
        file_size: bytes per file (RocketMQ: mappedFileSizeConsumeQueueExt).
        bit_map_bytes: length of every bit map that is put; entries with bit maps of any length can be read.
        cache: open files, shared with the queues.
    """

    __slots__ = ("_bit_map_bytes", "_files")

    def __init__(self, directory: Path, file_size: int, bit_map_bytes: int, cache: QueueFileCache) -> None:
        assert file_size >= EXT_UNIT_BYTES_MIN + bit_map_bytes + END_BLANK_BYTES
        self._files = SparseFileQueue(directory, file_size, cache)
        self._bit_map_bytes = bit_map_bytes

    def load(self, *, after_crash: bool = False) -> None:
        """Find the files; `cut` must follow before anything is put.

        After a crash the files behind a gap do not count: `drop_strays` removes them, as `SparseFileQueue.load` says.

        Raises:
            ForeignFile, StoreDamaged: as `SparseFileQueue.load`.
        """
        self._files.load(after_crash=after_crash)

    def drop_strays(self) -> int:
        """Delete the files that `load` found behind a gap, durably; return how many there were."""
        return self._files.drop_strays()

    @property
    def directory(self) -> Path:
        """Where the files lie."""
        return self._files.directory

    @property
    def has_files(self) -> bool:
        """Whether there is anything on the disk."""
        return not self._files.is_empty

    @property
    def end(self) -> int:
        """The position after the last entry; 0 without files."""
        return self._files.end

    @property
    def bytes_to_flush(self) -> int:
        """Bytes put and not yet known to be on the disk."""
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

    def put_many(self, tags_codes: NDArray[Any], store_timestamps_ms: NDArray[Any]) -> NDArray[np.int64]:
        """Do the same for many messages without bit maps, with array code."""
        count = len(tags_codes)
        units = np.empty(count, EXT_UNIT_DTYPE)
        units["size"] = EXT_UNIT_BYTES_MIN
        units["tags_code"] = tags_codes
        units["store_timestamp_ms"] = store_timestamps_ms
        units["bit_map_size"] = 0
        addresses = np.empty(count, np.int64)
        position = self._files.end
        pieces: list[bytes] = []
        done = 0
        while done < count:
            taken = min(self._room_at(position) // EXT_UNIT_BYTES_MIN, count - done)
            if taken <= 0:
                pieces.append(self._end_of_file(position))
            else:
                first = address_of(position)
                addresses[done : done + taken] = first + EXT_UNIT_BYTES_MIN * np.arange(taken, dtype=np.int64)
                pieces.append(units[done : done + taken].tobytes())
                done += taken
            position += len(pieces[-1])
        self._files.write(self._files.end, b"".join(pieces))
        return addresses

    def _room_at(self, position: int) -> int:
        """How many bytes a unit that starts there may have."""
        return self._files.file_size - position % self._files.file_size - END_BLANK_BYTES

    def _end_of_file(self, position: int) -> bytes:
        left = self._files.file_size - position % self._files.file_size
        return END_OF_FILE.ljust(left, b"\0")

    # -- getting -------------------------------------------------------------------------------------------

    def get(self, address: int) -> ConsumeQueueExtUnit | None:
        """Return the entry at an address; None if there is no sound one, or its file is gone."""
        files = self._files
        position = position_of(address)
        if not is_address(address) or files.is_empty or position < files.first_start:
            return None
        left = min(files.end - position, self._room_at(position))
        if left < EXT_UNIT_BYTES_MIN:
            return None
        try:
            size, tags_code, stored_ms, bit_map_size = EXT_UNIT.unpack(
                files.read(position, EXT_UNIT_BYTES_MIN)
            )
            if bit_map_size < 0 or not size == EXT_UNIT_BYTES_MIN + bit_map_size <= left:
                return None
            bit_map = files.read(position + EXT_UNIT_BYTES_MIN, bit_map_size) if bit_map_size else b""
        except FileMissing:
            return None
        return ConsumeQueueExtUnit(tags_code, stored_ms, bit_map)

    def tags_codes_at(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `codes` with each address replaced by the tags code of its entry; what cannot be read stays."""
        found = codes.copy()
        files = self._files
        positions = codes ^ np.int64(MIN_ADDRESS)
        wanted = (
            (codes <= MAX_ADDRESS)
            & (positions >= files.first_start)
            & (positions <= files.end - EXT_UNIT_BYTES_MIN)
        )
        starts = positions - positions % files.file_size
        for start in np.unique(starts[wanted]).tolist():
            rows = np.flatnonzero(wanted & (starts == start))
            if len(rows) < _ARRAY_THRESHOLD or np.ptp(positions[rows]) > _SPAN_BYTES_MAX:
                for row in rows.tolist():
                    unit = self.get(int(codes[row]))
                    if unit is not None:
                        found[row] = unit.tags_code
            else:
                self._read_together(positions, rows, start, found)
        return found

    def _read_together(
        self, positions: NDArray[np.int64], rows: NDArray[np.intp], start: int, found: NDArray[np.int64]
    ) -> None:
        low = int(positions[rows].min())
        stop = min(int(positions[rows].max()) + EXT_UNIT_BYTES_MIN, start + self._files.file_size)
        try:
            data = np.frombuffer(self._files.read(low, stop - low), np.uint8)
        except FileMissing:
            return
        inside = positions[rows] - low
        whole = inside <= len(data) - EXT_UNIT_BYTES_MIN
        rows, inside = rows[whole], inside[whole]
        heads = data[inside[:, None] + _HEAD].view(EXT_UNIT_DTYPE).reshape(-1)
        bit_map_sizes = heads["bit_map_size"].astype(np.int64)
        left = np.minimum(
            self._files.end - positions[rows],
            start + self._files.file_size - END_BLANK_BYTES - positions[rows],
        )
        sizes = heads["size"].astype(np.int64)
        sound = (bit_map_sizes >= 0) & (sizes == EXT_UNIT_BYTES_MIN + bit_map_sizes) & (sizes <= left)
        found[rows[sound]] = heads["tags_code"][sound]

    # -- cutting and expiring ------------------------------------------------------------------------------

    def end_of(self, address: int) -> int | None:
        """Return the position after the sound entry at an address; None if there is none."""
        unit = self.get(address)
        if unit is None:
            return None
        return position_of(address) + EXT_UNIT_BYTES_MIN + len(unit.bit_map)

    def cut(self, end: int) -> None:
        """End the stream at a position: what lies behind becomes zero, or is deleted (RocketMQ: truncateByMaxAddress).

        At the position where the first file begins, or before, nothing is left.
        """
        self._files.cut(end)

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

    def is_able_to_flush(self, least_pages: int) -> bool:
        """Whether a file is full and unsynced, or has so many unsynced pages; anything at all if that is 0."""
        return self._files.is_able_to_flush(least_pages)

    def flush(self) -> int:
        """Bring all entries put before the call to the disk; return the position up to which that is certain. Blocks.

        Raises:
            FlushFailed: a sync failed, now or earlier; final.
        """
        return self._files.flush()
