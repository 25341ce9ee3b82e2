"""The entries of all index files of a store as one sequence, in the order in which they were written."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from reput_broker.store.index.file import ENTRY_BYTES
from reput_broker.store_tools.index_raw import (
    INDEX_BYTES_MIN,
    IndexEntry,
    RawIndex,
    common_slots,
    unpack_entries,
)
from reput_broker.store_tools.layout import StoreLayout
from reput_broker.store_tools.report import Report


class IndexSequence:
    """The index files whose entries can be read, oldest first; others are reported.

    Args:
        layout: the directory.
        whole_until_ms: after a disorderly stop, the store time up to which files were brought to the disk: later ones
            are made anew by the next start (RocketMQ: IndexService.load), and are not looked at. None otherwise.
        report: where faults go.
    """

    def __init__(self, layout: StoreLayout, whole_until_ms: int | None, report: Report) -> None:
        self._report = report
        files = [raw for raw in map(self._open, layout.index_files()) if raw is not None]
        if whole_until_ms is not None:
            files = self._whole(files, whole_until_ms)
        self.files = self._usable(files, layout.geometry.index_slots)
        self.total = 0
        """How many entries there are."""
        self._starts: list[int] = []
        for raw in self.files:
            self._starts.append(self.total)
            self.total += raw.used - 1

    def _open(self, path: Path) -> RawIndex | None:
        if path.stat().st_size < INDEX_BYTES_MIN:
            self._report.fault("index", path, path.stat().st_size, "the file is too short for an index")
            return None
        return RawIndex(path)

    def _whole(self, files: list[RawIndex], whole_until_ms: int) -> list[RawIndex]:
        kept: list[RawIndex] = []
        for number, raw in enumerate(files):
            if raw.header.end_timestamp_ms <= whole_until_ms and len(kept) == number:
                kept.append(raw)
                continue
            self._report.note(f"{raw.path} was in use when the broker ended: the next start makes it anew")
            raw.close()
        return kept

    def _usable(self, files: list[RawIndex], slots: int) -> list[RawIndex]:
        """Find out how many slots the files have, where nobody says it, and leave out those that it does not fit."""
        slots = slots or common_slots(files)
        usable: list[RawIndex] = []
        for raw in files:
            if not slots:
                if raw.header.next_entry > 1 or raw.header.next_entry < 0:
                    words = "no number of slots fits the header and the entries; name it with --index-slots"
                    self._report.fault("index", raw.path, 0, words)
                raw.close()
                continue
            raw.set_slots(slots)
            if (raw.size - raw.entries_at) % ENTRY_BYTES or raw.entry_max < 2:
                words = f"{raw.size} bytes do not hold {raw.slot_count} slots"
                self._report.fault("index", raw.path, raw.size, words)
                raw.close()
                continue
            usable.append(raw)
        return usable

    def read(self, number: int, count: int) -> list[IndexEntry]:
        """Return up to `count` entries from number `number` on, counted from 0."""
        return unpack_entries(self.read_bytes(number, count))

    def read_bytes(self, number: int, count: int) -> bytes:
        """Return up to `count` entries from number `number` on as they are in the files."""
        parts: list[bytes] = []
        while count > 0 and number < self.total:
            file_index, local = self.place(number)
            raw = self.files[file_index]
            take = min(count, raw.used - 1 - local)
            parts.append(raw.entry_bytes(local + 1, local + 1 + take))
            number += take
            count -= take
        return b"".join(parts)

    def place(self, number: int) -> tuple[int, int]:
        """Return which file entry `number` is in, and how many entries come before it there."""
        file_index = bisect_right(self._starts, number) - 1
        return file_index, number - self._starts[file_index]

    def close(self) -> None:
        """Close all files."""
        for raw in self.files:
            raw.close()
