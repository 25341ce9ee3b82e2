"""Check the key index against itself and against the log.

Entries are in the order of the log, so the hashes of the keys of each batch are compared with the next entries. If they
differ, the entries of that part of the log are compared as sets, and the walk continues after it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from reput_broker.store.base.dispatch import DeletedTopics
from reput_broker.store.index.file import ENTRY_BYTES, HEADER_BYTES, SLOT, SLOT_BYTES
from reput_broker.tools.index_raw import INDEX_BYTES_MIN, IndexEntry, RawIndex, common_slots, unpack_entries
from reput_broker.tools.report import Report
from reput_protocol.kernel.index import are_entries_of, index_chains, wrong_seconds
from reput_protocol.printable import counted
from reput_protocol.properties import KEYS, UNIQ_KEY, decode_properties
from reput_protocol.record.layout import index_hash, index_keys
from reput_protocol.record.scan import POSITION, DispatchRows
from reput_protocol.store.files import end_of_data
from reput_protocol.store.layout import StoreLayout
from reput_protocol.store.log_reader import Damage, LogBatch

_FAULTS_MAX = 1024
_Fault = Callable[[int, str], None]


def verify_index_file(raw: RawIndex, report: Report) -> None:
    """Check header, chains and slots of a file, and that unused parts are zero."""

    def fault(position: int, reason: str) -> None:
        report.fault("index", raw.path, position, reason)

    header, used = raw.header, raw.used
    if not 0 <= header.next_entry <= raw.entry_max:
        fault(36, f"indexCount is {header.next_entry}, the file has room for {raw.entry_max}")
    _verify_rest(raw, fault)
    if used < 2:
        return
    for at, name, value, entry in (
        (16, "beginPhyOffset", header.begin_physical_offset, 1),
        (24, "endPhyOffset", header.end_physical_offset, used - 1),
    ):
        wanted = raw.entries(entry, entry + 1)[0].physical_offset
        if value != wanted:
            fault(at, f"{name} is {value}, but the entry there gives log offset {wanted}")
    slots, slots_used, negative, wrong = index_chains(raw.data, raw.slot_count, used, _FAULTS_MAX)
    for number in negative:
        fault(raw.entry_place(number), f"entry {number} has a negative hash")
    for number, found, right in wrong:
        fault(raw.entry_place(number) + 16, f"entry {number} names entry {found} before it, should be {right}")
    if raw.slots != slots:
        _verify_slots(raw, slots, fault)
    if header.slots_used != slots_used:
        fault(32, f"hashSlotCount is {header.slots_used}, but {slots_used} slots are in use")


def _verify_slots(raw: RawIndex, slots: bytearray, fault: _Fault) -> None:
    pairs = zip(SLOT.iter_unpack(raw.slots), SLOT.iter_unpack(slots), strict=True)
    wrong = ((slot, *found, *right) for slot, (found, right) in enumerate(pairs) if found != right)
    for slot, found, right in islice(wrong, _FAULTS_MAX):
        fault(HEADER_BYTES + SLOT_BYTES * slot, f"slot {slot} names entry {found}, should be {right}")


def _verify_rest(raw: RawIndex, fault: _Fault) -> None:
    """Entry 0 and everything after the last entry must be zero."""
    with raw.path.open("rb") as file:
        fd = file.fileno()
        stop = end_of_data(fd, raw.entries_at, raw.entries_at + ENTRY_BYTES)
        if stop > raw.entries_at:
            fault(stop - 1, "entry 0 is never used, but not zero")
        free = raw.entry_place(raw.used)
        stop = end_of_data(fd, free, raw.size)
        if stop > free:
            fault(free, f"the bytes after the last entry are not zero, up to byte {stop}")


class IndexSequence:
    """The index files with readable entries, oldest first; others are reported.

    Args:
        whole_until_ms: after a disorderly stop, the store time up to which files are on disk: later
            ones are rebuilt by the next start (RocketMQ: IndexService.load), and are not examined.
            None otherwise.
    """

    def __init__(self, layout: StoreLayout, whole_until_ms: int | None, report: Report) -> None:
        self._report = report
        files = [raw for raw in map(self._open, layout.index_files()) if raw is not None]
        if whole_until_ms is not None:
            files = self._whole(files, whole_until_ms)
        self.files = self._usable(files, layout.geometry.index_slots)
        self.total = 0
        """Number of entries."""
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
            self._report.note(f"{raw.path} was in use when the broker ended: the next start rebuilds it")
            raw.close()
        return kept

    def _usable(self, files: list[RawIndex], slots: int) -> list[RawIndex]:
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
        """Return up to `count` entries from a number on, counted from 0."""
        return unpack_entries(self.read_bytes(number, count))

    def read_bytes(self, number: int, count: int) -> bytes:
        """Return the bytes of up to `count` entries from a number on."""
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
        """Return the index of an entry's file, and how many entries precede it there."""
        file_index = bisect_right(self._starts, number) - 1
        return file_index, number - self._starts[file_index]

    def close(self) -> None:
        """Close all files."""
        for raw in self.files:
            raw.close()


_SECONDS_MAX = 0x7FFF_FFFF
_SLACK = 1024


class IndexFindings(NamedTuple):
    """State of a walk in the index after a part of the log without faults; see `IndexCheck`."""

    cursor: int
    compared_until: int
    last_keys: set[tuple[int, int]]
    behind: int
    behind_from: int


class IndexCheck:
    """All index files of a store while the log is walked."""

    def __init__(
        self,
        layout: StoreLayout,
        deleted: DeletedTopics,
        damages: Sequence[Damage],
        report: Report,
        whole_until_ms: int | None,
    ) -> None:
        """Open the files.

        Args:
            deleted: topics whose records need no entries.
            damages: the damaged bytes of the log, as they are found; entries of records there are not reported.
            whole_until_ms: see `IndexSequence`.
        """
        self._layout = layout
        self._deleted = deleted
        self._report = report
        self._damages = damages
        self._entries = IndexSequence(layout, whole_until_ms, report)
        files = self._entries.files
        self._total = self._entries.total
        self._cursor = 0
        self._compared_until = -1
        self._begin_offset = files[0].header.begin_physical_offset if self._total else -1
        self._begin_times = [raw.header.begin_timestamp_ms for raw in files]
        self._last_keys: set[tuple[int, int]] = set()
        self._behind = 0
        self._behind_from = -1

    def verify_files(self) -> None:
        """Check every file against itself."""
        self._report.figures["index_entries"] += self._total
        for raw in self._entries.files:
            verify_index_file(raw, self._report)

    @property
    def files(self) -> list[RawIndex]:
        """The files with readable entries."""
        return self._entries.files

    def take_files(self, reports: Iterable[Report]) -> None:
        """Add the findings of a parallel check of every file against itself, in their order."""
        self._report.figures["index_entries"] += self._total
        for report in reports:
            for fault in report.faults:
                self._report.fault(*fault)
            for kind, count in report.kinds.items():
                self._report.kinds[kind] += count - sum(fault.kind == kind for fault in report.faults)

    # -- in parts ------------------------------------------------------------------------------------------

    def cursor_at(self, offset: int) -> int:
        """Return the first entry of a record at or after a log offset, if the entries ascend."""
        low, high = 0, self._total
        while low < high:
            middle = (low + high) // 2
            if self._entries.read(middle, 1)[0].physical_offset >= offset:
                high = middle
            else:
                low = middle + 1
        return low

    def resume(self, cursor: int, offset: int) -> None:
        """Continue with an entry, at a log offset."""
        self._cursor = cursor
        self._compared_until = offset

    def cursor_after(self, offset: int) -> int:
        """Return the entry with which the walk continues if the next batch begins at a log offset."""
        kept = self._cursor
        self._pass_over(offset)
        cursor, self._cursor = self._cursor, kept
        return cursor

    def findings(self) -> IndexFindings:
        """Return the state of the walk."""
        return IndexFindings(self._cursor, self._compared_until, self._last_keys, self._behind, self._behind_from)

    def take(self, found: IndexFindings) -> None:
        """Add the findings of a parallel walk that continued from this walk's state."""
        self._cursor = found.cursor
        self._compared_until = max(self._compared_until, found.compared_until)
        self._last_keys = found.last_keys or self._last_keys
        self._behind += found.behind
        self._behind_from = found.behind_from if self._behind_from < 0 else self._behind_from

    def close(self) -> None:
        """Close the files."""
        self._entries.close()

    @property
    def is_there(self) -> bool:
        """Whether there is an entry to compare with."""
        return self._total > 0

    # -- against the log -----------------------------------------------------------------------------------

    def compare(self, batch: LogBatch, found: DispatchRows) -> None:
        """Compare the keys of a batch, whose rows are `found`, with the next entries."""
        stop_offset = batch.offset + batch.end
        if not self._total or stop_offset <= self._begin_offset:
            return
        keys = found.keys()
        offsets = keys[1::3]
        first = bisect_left(offsets, self._begin_offset)  # earlier ones are in deleted index files
        self._pass_over(batch.offset)
        self._compared_until = stop_offset
        count = len(offsets) - first
        if not count:
            return
        entries = self._entries.read_bytes(self._cursor, count)
        if len(entries) == ENTRY_BYTES * count and are_entries_of(entries, keys, first):
            self._verify_seconds(self._cursor, keys, first, count)
            self._cursor += count
        else:
            self._compare_sets(batch, found, keys[3 * first :])
        last = offsets[-1]
        since = bisect_left(offsets, last)
        self._last_keys = {(last, key_hash) for key_hash in keys[3 * max(first, since) :: 3]}

    def _pass_over(self, offset: int) -> None:
        while offset > self._compared_until and self._cursor < self._total:
            for entry in self._entries.read(self._cursor, _SLACK):
                if entry.physical_offset >= offset:
                    return
                self._cursor += 1

    def _compare_sets(self, batch: LogBatch, rows: DispatchRows, keys: array[int]) -> None:
        wanted = list(zip(keys[1::3], keys[::3], strict=True))
        begin, end = wanted[0][0], batch.offset + batch.end
        window = self._entries.read(self._cursor, 2 * len(wanted) + _SLACK)
        while window and not begin <= window[-1].physical_offset < end:
            window.pop()
        time_of = dict(zip(wanted, keys[2::3], strict=True))
        found: set[tuple[int, int]] = set()
        right: list[tuple[int, tuple[int, int]]] = []
        for number, entry in enumerate(window, self._cursor):
            key = entry.physical_offset, entry.hash
            if key in time_of:
                found.add(key)
                right.append((number, key))
            elif key not in self._last_keys:
                self._wrong_entry(number, entry)
        starts = batch.column(POSITION)
        missing = [
            (at, bisect_left(starts, offset - batch.offset))
            for at, (offset, key_hash) in enumerate(wanted)
            if (offset, key_hash) not in found
        ]
        # If no entry follows, the index has not advanced to the keys after the last one that is there.
        end_reached = self._cursor + len(window) >= self._total
        behind_at = 1 + max((at for at, key in enumerate(wanted) if key in found), default=-1)
        for at, row in missing:
            offset, key_hash = wanted[at]
            if len(self._deleted) and self._deleted.hides(_topic_of(rows, row), offset):
                continue
            if end_reached and at >= behind_at:
                self._behind += 1
                if self._behind_from < 0:
                    self._behind_from = offset
            else:
                self._missing_key(rows, row, key_hash, offset)
        for number, key in right:
            self._verify_seconds(number, array("q", (key[1], key[0], time_of[key])), 0, 1)
        self._cursor += len(window)

    def _verify_seconds(self, number: int, keys: array[int], first: int, count: int) -> None:
        """Compare the times of valid entries, and the header's, with those of their keys."""
        while count:
            file_index, local = self._entries.place(number)
            raw = self._entries.files[file_index]
            size = min(count, raw.used - 1 - local)
            first_time, last_time = keys[3 * first + 2], keys[3 * (first + size - 1) + 2]
            begin = self._begin_times[file_index]
            if local == 0 and begin != first_time:
                self._fault(raw, 0, f"beginTimestamp is {begin}, but its first record was stored at {first_time}")
                begin = self._begin_times[file_index] = first_time
            entries = raw.entry_bytes(local + 1, local + 1 + size)
            wrong = wrong_seconds(entries, keys, first, begin)
            if local == 0:
                # A new file's first entry counts from the end of the previous file, which may have
                # been deleted.
                seconds, right = raw.entries(1, 2)[0].seconds, self._first_seconds(file_index, first_time)
                wrong = [fault for fault in wrong if fault[0]]
                if seconds != right and (file_index > 0 or self._layout.log.min_offset == 0):
                    wrong.insert(0, (0, seconds, right))
            for row, seconds, right in wrong:
                self._fault(
                    raw,
                    raw.entry_place(local + row + 1) + 12,
                    f"entry {local + row + 1} gives {seconds} seconds after the begin time, should be {right}",
                )
            if local + size == raw.used - 1 and raw.header.end_timestamp_ms != last_time:
                end = raw.header.end_timestamp_ms
                self._fault(raw, 8, f"endTimestamp is {end}, but its last record was stored at {last_time}")
            number, first, count = number + size, first + size, count - size

    def _first_seconds(self, file_index: int, time: int) -> int:
        before = self._entries.files[file_index - 1].header.end_timestamp_ms if file_index else 0
        return max(0, min(int((time - before) / 1000), _SECONDS_MAX)) if before > 0 else 0

    # -- findings ------------------------------------------------------------------------------------------

    def _wrong_entry(self, number: int, entry: IndexEntry) -> None:
        offset = entry.physical_offset
        if any(damage.offset <= offset < damage.end_offset for damage in self._damages):
            return
        file_index, before = self._entries.place(number)
        raw = self._entries.files[file_index]
        self._fault(
            raw,
            raw.entry_place(before + 1),
            f"entry {before + 1} gives hash {entry.hash} and log offset {offset}, but no record there has such a key",
        )

    def _missing_key(self, rows: DispatchRows, row: int, key_hash: int, offset: int) -> None:
        properties = decode_properties(rows.properties(row))
        keys = index_keys(_topic_of(rows, row), properties.get(UNIQ_KEY), properties.get(KEYS))
        key = next((key for key in keys if index_hash(key) == key_hash), "?")
        path, position = self._layout.log.place(offset)
        self._report.fault(
            "index", path, position, f"key {key} of the record at log offset {offset} is not in the index"
        )

    def _fault(self, raw: RawIndex, position: int, reason: str) -> None:
        self._report.fault("index", raw.path, position, reason)

    def finish(self, *, stopped: bool, log_has_damage: bool) -> None:
        """Examine what the walk has not reached, and close the files."""
        for number in range(self._cursor, self._total):
            if log_has_damage or self._cursor + _SLACK < number:
                self._report.note(f"{self._total - number} index entries name records that are not in the log")
                break
            entry = self._entries.read(number, 1)[0]
            if (entry.physical_offset, entry.hash) not in self._last_keys:
                self._wrong_entry(number, entry)
        if self._behind:
            words = (
                f"{counted(self._behind, 'key is', 'keys are')} not in the index, from the record at log offset "
                f"{self._behind_from} on"
            )
            if stopped:
                path, position = self._layout.log.place(self._behind_from)
                self._report.fault("index", path, position, words)
            else:
                self._report.note(f"{words}: the next start indexes them")
        self._entries.close()


def _topic_of(rows: DispatchRows, row: int) -> str:
    return rows.runs[bisect_right(rows.runs, row, key=lambda run: run.start) - 1].topic
