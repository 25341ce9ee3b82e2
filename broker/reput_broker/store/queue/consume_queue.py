"""One topic queue: which record of the log is message number k (RocketMQ: ConsumeQueue).

Unit k is at logic position 20k. The queue is derived from the log and can be rebuilt, so it is written without waiting
for the disk, and recovery verifies it (`files.find_end`).

Store times are read from the records in the log, so every step of a search by time may need the disk. It chooses the
file first and then bisects its units. Units of records that have left the log, and pre-blank units, precede everything
that it can find. Store times are assumed to ascend; if the broker's clock was set back, a search ends at one of the
places where the time is passed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Literal, NamedTuple

from reput_broker.store.base.dispatch import Column
from reput_broker.store.base.errors import FileMissing, StoreDamaged
from reput_broker.store.base.options import EventHandler, ignore_event
from reput_broker.store.queue.extension import BitMaps, ConsumeQueueExt, QueueExtEntries
from reput_broker.store.queue.files import QueueFileCache, SparseFileQueue, find_end, find_end_before
from reput_protocol.kernel.units import queue_units
from reput_protocol.store.files import file_name
from reput_protocol.store.unit import PRE_BLANK, UNIT_BYTES, ConsumeQueueExtUnit, ConsumeQueueUnit, unpack_unit

Boundary = Literal["lower", "upper"]
StoreTimeOf = Callable[[int, int], int]
"""(physical offset, size) -> store time of that record in milliseconds, -1 if it is not in the log."""
FileTimes = dict[int, tuple[int, int]]
"""Start of a full file -> store times of its first and last unit."""


def first_live_position(files: SparseFileQueue, low: int, min_physical_offset: int) -> int:
    """Return the position of the first unit, from `low` on, whose record is at or after a physical offset.

    The end of the queue if there is none.
    """
    high = files.end
    if low >= high or _is_live(_unit_at(files, low), min_physical_offset):
        return low
    while low < high:
        middle = (low + high) // (2 * UNIT_BYTES) * UNIT_BYTES
        if _is_live(_unit_at(files, middle), min_physical_offset):
            high = middle
        else:
            low = middle + UNIT_BYTES
    return high


def offset_by_timestamp(
    files: SparseFileQueue,
    timestamp_ms: int,
    boundary: Boundary,
    store_time_of: StoreTimeOf,
    *,
    min_logic_offset: int,
    min_physical_offset: int,
    file_times: FileTimes,
) -> int:
    """Return the queue offset for a store time, within [min offset, max offset].

    "lower": the first message stored at or after the time, or the end of the queue. "upper": the last message stored at
    or before it, or the minimum.

    Args:
        timestamp_ms: milliseconds since the epoch.
        boundary: "lower" or "upper".
        store_time_of: reads a record's time from the log.
        min_logic_offset: position of the first live unit.
        min_physical_offset: where the log begins.
        file_times: cached times of full files; filled here.
    """
    if files.is_empty:
        return 0
    look_up = _TimeLookUp(files, store_time_of, min_logic_offset, min_physical_offset, file_times)
    position = look_up.lower(timestamp_ms) if boundary == "lower" else look_up.upper(timestamp_ms)
    return min(max(position, min_logic_offset), files.end) // UNIT_BYTES


class _Found(NamedTuple):
    """A position with the time, and the positions of its neighbours before and after."""

    exact: int | None
    left: int
    right: int


@dataclass(eq=False, repr=False)
class _TimeLookUp:
    """One look-up: choose the file by the times of its ends, then search in it."""

    files: SparseFileQueue
    store_time_of: StoreTimeOf
    min_logic_offset: int
    min_physical_offset: int
    file_times: FileTimes

    def lower(self, timestamp_ms: int) -> int:
        files = self.files
        start = files.first_start
        while start < files.last_start and self._times(start)[1] < timestamp_ms:
            start += files.file_size
        floor, ceiling = self._bounds(start)
        if self._time_at(ceiling) < timestamp_ms:
            return ceiling + UNIT_BYTES
        if self._time_at(floor) > timestamp_ms:
            return start
        found = self._search(floor, ceiling, timestamp_ms)
        if found.exact is None:
            return found.right
        return self._first_of_equals(floor, found.exact, timestamp_ms)

    def upper(self, timestamp_ms: int) -> int:
        files = self.files
        start = files.last_start
        while self._times(start)[0] > timestamp_ms:
            start -= files.file_size
            if start < files.first_start:
                return 0
        floor, ceiling = self._bounds(start)
        if self._time_at(ceiling) < timestamp_ms:
            return ceiling
        if self._time_at(floor) > timestamp_ms:
            return 0
        found = self._search(floor, ceiling, timestamp_ms)
        if found.exact is None:
            return found.left
        return self._last_of_equals(found.exact, ceiling, timestamp_ms)

    def _bounds(self, start: int) -> tuple[int, int]:
        ceiling = min(start + self.files.file_size, self.files.end) - UNIT_BYTES
        return min(max(start, self.min_logic_offset), ceiling), ceiling

    def _search(self, low: int, high: int, timestamp_ms: int) -> _Found:
        """Bisect the units from `low` to `high` for one with the time, or its neighbours before and after.

        As in RocketMQ, a record that cannot be read ends the search at the start of the queue.
        """
        left, right = low, high + UNIT_BYTES
        while low <= high:
            middle = (low + high) // (2 * UNIT_BYTES) * UNIT_BYTES
            unit = _unit_at(self.files, middle)
            if not _is_live(unit, self.min_physical_offset):
                low = middle + UNIT_BYTES
                continue
            time_ms = self.store_time_of(unit.physical_offset, unit.size)
            if time_ms < 0:
                return _Found(0, 0, 0)
            if time_ms == timestamp_ms:
                return _Found(middle, left, right)
            if time_ms < timestamp_ms:
                left, low = middle, middle + UNIT_BYTES
            else:
                right, high = middle, middle - UNIT_BYTES
        return _Found(None, left, right)

    # RocketMQ walks over equal times one by one; a batch gives thousands of messages one time.

    def _first_of_equals(self, low: int, found: int, timestamp_ms: int) -> int:
        while low < found:
            middle = (low + found) // (2 * UNIT_BYTES) * UNIT_BYTES
            if self._time_at(middle) == timestamp_ms:
                found = middle
            else:
                low = middle + UNIT_BYTES
        return found

    def _last_of_equals(self, found: int, high: int, timestamp_ms: int) -> int:
        while found < high:
            middle = -(-(found + high) // (2 * UNIT_BYTES)) * UNIT_BYTES
            if self._time_at(middle) == timestamp_ms:
                found = middle
            else:
                high = middle - UNIT_BYTES
        return found

    def _time_at(self, position: int) -> int:
        unit = _unit_at(self.files, position)
        if not _is_live(unit, self.min_physical_offset):
            return -1
        return self.store_time_of(unit.physical_offset, unit.size)

    def _times(self, start: int) -> tuple[int, int]:
        files = self.files
        if start == files.last_start:
            return self._time_at(start), self._time_at(files.end - UNIT_BYTES)
        times = self.file_times.get(start)
        if times is None:
            times = self._time_at(start), self._time_at(start + files.file_size - UNIT_BYTES)
            if min(times) >= 0:
                self.file_times[start] = times
        return times


def _unit_at(files: SparseFileQueue, position: int) -> ConsumeQueueUnit:
    return unpack_unit(files.read(position, UNIT_BYTES))


def _is_live(unit: ConsumeQueueUnit, min_physical_offset: int) -> bool:
    return unit.physical_offset >= min_physical_offset and not unit.is_pre_blank


class QueueRest(NamedTuple):
    """What a queue would be after a truncation; all zero if nothing would be left."""

    first_queue_offset: int
    max_queue_offset: int
    ext_is_lost: bool


_TAGS_CODE = Struct(">q")


class ConsumeQueue:
    """The units of one topic queue, in files of `entries_per_file` units.

    One thread owns it; only `flush` and `delete_expired` may each run in another. Positions are logic positions (queue
    offset x 20): `min_logic_offset` is the first unit that points to live data, `max_physical_offset` the end of the
    last indexed record in the log, -1 if unknown.
    """

    __slots__ = (
        "_ext", "_files", "_on_event", "_time_cache", "duplicates", "entries_per_file", "max_physical_offset",
        "min_logic_offset", "order_errors", "queue_id", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: Path,
        entries_per_file: int,
        cache: QueueFileCache,
        on_event: EventHandler = ignore_event,
        ext: ConsumeQueueExt | None = None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.entries_per_file = entries_per_file
        self.max_physical_offset = -1
        self.min_logic_offset = 0
        self.duplicates = 0
        """Units that were offered again and skipped."""
        self.order_errors = 0
        """Units whose queue offset did not follow the previous one."""
        self._files = SparseFileQueue(directory, entries_per_file * UNIT_BYTES, cache)
        self._on_event = on_event
        self._ext = QueueExtEntries(self._files, ext)
        self._time_cache: FileTimes = {}

    def __repr__(self) -> str:
        return f"<ConsumeQueue {self.topic}/{self.queue_id} [{self.min_queue_offset}, {self.max_queue_offset})>"

    def load(self, *, after_crash: bool = False) -> None:
        """List the queue's files; `recover` must follow before the queue is used.

        Raises:
            ForeignFile, StoreDamaged: as `SparseFileQueue.load`.
        """
        self._files.load(after_crash=after_crash)
        self._ext.load(after_crash=after_crash)
        self.min_logic_offset = self._files.first_start

    # -- offsets -------------------------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """Directory of the queue's files; it does not exist for a queue without messages."""
        return self._files.directory

    @property
    def has_files(self) -> bool:
        """Whether anything was ever put."""
        return not self._files.is_empty

    @property
    def first_queue_offset(self) -> int:
        """Queue offset at which the oldest file begins; 0 without files."""
        return self._files.first_start // UNIT_BYTES

    @property
    def min_queue_offset(self) -> int:
        """Queue offset of the first message that is still in the log."""
        return self.min_logic_offset // UNIT_BYTES

    @property
    def max_queue_offset(self) -> int:
        """Queue offset after the last unit; 0 without files."""
        return self._files.end // UNIT_BYTES

    @property
    def bytes_to_flush(self) -> int:
        """Bytes put and not yet known to be on disk."""
        return self._files.bytes_to_flush + self._ext.bytes_to_flush

    @property
    def ext_is_lost(self) -> bool:
        """Whether a unit's extended entry is gone although its message is not."""
        return self._ext.is_lost

    def roll_next_file(self, queue_offset: int) -> int:
        """Return the first queue offset of the file after the one that contains `queue_offset`."""
        return queue_offset + self.entries_per_file - queue_offset % self.entries_per_file

    # -- putting -------------------------------------------------------------------------------------------

    def put_batch(
        self,
        physical_offsets: Column,
        sizes: Column,
        tags_codes: Column,
        first_queue_offset: int,
        store_timestamps_ms: Sequence[int] = (),
        bit_maps: BitMaps | None = None,
    ) -> None:
        """Put the units of messages with consecutive queue offsets, in log order: one write per file touched.

        A record at or before `max_physical_offset`, or a queue offset that is already built, is skipped. A queue offset
        beyond the end is reported (event `consume_queue_order_error`) and the unit still goes to the end, as in
        RocketMQ. The first file of an empty queue is filled with pre-blank units up to the first unit.

        With extended entries, the tags codes, store times and bit maps go into those, whose addresses the units hold.
        Otherwise the last two arguments are ignored.

        Raises:
            DiskFull: nothing was applied; the same call may be repeated.
        """
        files = self._files
        end = -1 if files.is_empty else self.max_queue_offset
        units, taken, max_physical_offset, wrong, wrong_offset, wrong_end = queue_units(
            physical_offsets, sizes, tags_codes, first_queue_offset, end, self.max_physical_offset
        )
        if taken:
            expected = (first_queue_offset + taken[0]) * UNIT_BYTES
            if self._ext.are_kept:
                with self._ext.put(
                    [tags_codes[number] for number in taken],
                    [store_timestamps_ms[number] for number in taken],
                    None if bit_maps is None else [bit_maps[number] for number in taken],
                ) as addresses:
                    for number, address in enumerate(addresses):
                        _TAGS_CODE.pack_into(units, number * UNIT_BYTES + 12, address)
                    self._append(expected, units, max_physical_offset)
            else:
                self._append(expected, units, max_physical_offset)
        self.duplicates += len(sizes) - len(taken)
        if wrong:
            self._report_order_errors(wrong, wrong_offset, wrong_end)

    def _append(self, expected: int, data: bytes | bytearray, max_physical_offset: int) -> None:
        files = self._files
        if files.is_empty:
            start = expected - expected % files.file_size
            files.write(start, PRE_BLANK * ((expected - start) // UNIT_BYTES) + data)
            self.min_logic_offset = expected
        else:
            files.write(files.end, data)
        self.max_physical_offset = max_physical_offset

    def _report_order_errors(self, count: int, expected: int, actual: int) -> None:
        self.order_errors += count
        self._on_event(
            "consume_queue_order_error",
            {
                "topic": self.topic,
                "queue_id": self.queue_id,
                "queue_offset": expected,
                "put_at_queue_offset": actual,
                "units": count,
            },
        )

    # -- getting -------------------------------------------------------------------------------------------

    def get_unit(self, queue_offset: int) -> ConsumeQueueUnit | None:
        """Return one unit; None before the minimum and from the end on."""
        data = self.read_units(queue_offset, 1)
        return unpack_unit(data) if data else None

    def read_units(self, queue_offset: int, count: int) -> bytes:
        """Return up to `count` units from a queue offset on, at most to the end of their file.

        Empty before the minimum and from the end on.
        """
        position = queue_offset * UNIT_BYTES
        files = self._files
        if count <= 0 or position < self.min_logic_offset or not files.first_start <= position < files.end:
            return b""
        stop = min(position + count * UNIT_BYTES, files.end, position - position % files.file_size + files.file_size)
        try:
            return files.read(position, stop - position)
        except FileMissing:
            if position >= files.first_start:
                raise
            return b""  # it has expired meanwhile

    def with_tags_codes(self, units: bytes) -> bytes:
        """Return the units with addresses of extended entries replaced by their tags codes.

        An address whose entry cannot be read stays: no filter may reject that message.
        """
        return self._ext.with_tags_codes(units)

    def get_ext_unit(self, queue_offset: int) -> ConsumeQueueExtUnit | None:
        """Return the extended entry of one message; None if it has none, or it cannot be read."""
        return self._ext.get(self.get_unit(queue_offset))

    def offset_by_timestamp(
        self, timestamp_ms: int, boundary: Boundary, store_time_of: StoreTimeOf, min_physical_offset: int = 0
    ) -> int:
        """Return the queue offset for a store time; see the function `offset_by_timestamp` of this module."""
        while True:
            first_start = self._files.first_start
            try:
                return offset_by_timestamp(
                    self._files,
                    timestamp_ms,
                    boundary,
                    store_time_of,
                    min_logic_offset=self.min_logic_offset,
                    min_physical_offset=min_physical_offset,
                    file_times=self._time_cache,
                )
            except FileMissing:
                if first_start == self._files.first_start:
                    raise
                # The oldest file expired meanwhile: search the rest.

    def damaged(self, queue_offset: int) -> StoreDamaged:
        """Return the error to raise for an invalid entry."""
        start = queue_offset - queue_offset % self.entries_per_file
        return StoreDamaged(
            self.directory / file_name(start * UNIT_BYTES),
            (queue_offset - start) * UNIT_BYTES,
            f"entry {queue_offset} of queue {self.queue_id} of topic {self.topic} points to an impossible place in "
            "the log",
            f"stop the broker and move {self.directory} away; the next start rebuilds the queue from the log",
        )

    # -- truncating and deleting -----------------------------------------------------------------------

    def recover(self, *, min_physical_offset: int = 0) -> None:
        """Find the end of the valid units. Changes nothing; `apply_recovery` and `apply_ext_recovery` must follow.

        If `ext_is_lost`, the queue must be truncated at `min_physical_offset`, where the log begins, and rebuilt.
        Extended entries of older messages may be gone.
        """
        end, last = find_end(self._files)
        self._files.set_end(end)
        self.max_physical_offset = -1 if last is None else last.end_offset
        self.min_logic_offset = self._files.first_start
        self._time_cache.clear()
        self._ext.look(min_physical_offset)

    def apply_recovery(self) -> None:
        """Truncate what follows the end that `recover` found, and delete files that do not count."""
        strays = self._files.drop_strays() + self._ext.drop_strays()
        if strays:
            facts = {"topic": self.topic, "queue_id": self.queue_id, "files": strays}
            self._on_event("consume_queue_files_dropped", facts)
        end = self._files.end
        rewritten = self._files.apply_recovery()
        if rewritten:
            self._report_cut(end + rewritten, end)

    def rest_before(self, physical_offset: int, min_physical_offset: int = 0) -> QueueRest:
        """Return what `truncate_dirty` with the same arguments would leave. Changes nothing."""
        files = self._files
        end, last = find_end_before(files, physical_offset)
        if last is None:
            return QueueRest(0, 0, False)
        ext_is_lost = self._ext.would_be_lost(end, min_physical_offset)
        return QueueRest(files.first_start // UNIT_BYTES, end // UNIT_BYTES, ext_is_lost)

    def truncate_dirty(self, physical_offset: int, *, quiet: bool = False, min_physical_offset: int = 0) -> None:
        """Remove the units of records at or after a physical offset; what follows on disk becomes zero.

        `max_physical_offset` is then the end of the last unit left, or `physical_offset` if there is none. With `quiet`
        nothing is reported, because the units will be put back. Extended entries are removed with their units; see
        `recover` for `ext_is_lost`.
        """
        old_end = self._files.end
        end, last = find_end_before(self._files, physical_offset)
        if (self._files.truncate(end) or end < old_end) and not quiet:
            self._report_cut(old_end, end)
        self.max_physical_offset = physical_offset if last is None else last.end_offset
        self.min_logic_offset = min(self.min_logic_offset, self._files.end)
        self._time_cache.clear()
        self._ext.look(min_physical_offset)
        self._ext.apply_recovery()

    def apply_ext_recovery(self) -> None:
        """Truncate extended entries after the last one that the queue refers to, unless that one is lost."""
        self._ext.apply_recovery()

    def _report_cut(self, old_end: int, new_end: int) -> None:
        self._on_event(
            "consume_queue_truncated",
            {
                "topic": self.topic,
                "queue_id": self.queue_id,
                "queue_offset": new_end // UNIT_BYTES,
                "units_removed": max(0, old_end - new_end) // UNIT_BYTES,
            },
        )

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Advance the minimum to the first unit whose record is still in the log; it never moves back.

        Pre-blank units are never live (RocketMQ counts them as live if the log begins at 0). While the log has lost
        nothing, no other unit is skipped, so that a damaged one is noticed.
        """
        if self._files.is_empty or (min_physical_offset <= 0 and not self._begins_with_pre_blank()):
            return
        before = self.min_logic_offset
        self.min_logic_offset = first_live_position(
            self._files, max(self.min_logic_offset, self._files.first_start), min_physical_offset
        )
        if self._ext.are_kept and self.min_logic_offset != before:
            self._ext.delete_before(self.get_unit(self.min_queue_offset))

    def _begins_with_pre_blank(self) -> bool:
        files = self._files
        return not files.is_empty and unpack_unit(files.read(files.first_start, UNIT_BYTES)).is_pre_blank

    def queue_offset_of(self, physical_offset: int) -> int:
        """Return the offset of the first message at or after a physical offset; the end if there is none."""
        if self._files.is_empty:
            return 0
        return first_live_position(self._files, self._files.first_start, physical_offset) // UNIT_BYTES

    def delete_expired(self, min_physical_offset: int, durable_offset: int) -> int:
        """Correct the minimum, then delete files whose last record has left the log, except the last file.

        A file that is not followed by durable entries is kept too: after a power failure the queue would assign its
        offsets again. Blocks; may run in a worker thread during all other calls. Every removal is durable before the
        next.

        Args:
            min_physical_offset: where the log begins.
            durable_offset: records before this log offset and their units are on disk.

        Returns:
            How many files were deleted.

        Raises:
            FlushFailed: a removal is not certain.
        """
        files = self._files
        deleted = 0
        try:
            self.correct_min_offset(min_physical_offset)
            while not files.is_empty and files.first_start < files.last_start:
                start = files.first_start
                last_unit = unpack_unit(files.read(start + files.file_size - UNIT_BYTES, UNIT_BYTES))
                next_unit = unpack_unit(files.read(start + files.file_size, UNIT_BYTES))
                if (
                    last_unit.physical_offset >= min_physical_offset
                    or next_unit.end_offset > durable_offset
                    or not files.drop_first()
                ):
                    break
                self._time_cache.pop(start, None)
                deleted += 1
        except FileMissing:
            if not files.is_empty:
                raise
            # The topic was deleted meanwhile.
        return deleted

    def destroy(self) -> None:
        """Delete all files and the queue's directory; the queue is then empty."""
        self._files.destroy()
        self._ext.destroy()
        self._empty()

    def forget(self) -> None:
        """Become empty, but leave the files to the caller, which moves the topic's directory away."""
        self._files.forget()
        self._ext.forget()
        self._empty()

    def _empty(self) -> None:
        self.max_physical_offset = -1
        self.min_logic_offset = 0
        self._time_cache.clear()

    def is_able_to_flush(self, least_pages: int) -> bool:
        """Whether to flush; see `file_io.is_able_to_flush`."""
        return self._files.is_able_to_flush(least_pages) or self._ext.is_able_to_flush(least_pages)

    def flush(self) -> int:
        """Sync all units put before the call; return the logic position up to which that is certain.

        Blocks; may run in a worker thread during all other calls. Raises FlushFailed, which is final.
        """
        self._ext.flush()
        return self._files.flush()
