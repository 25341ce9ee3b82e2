"""Planning over a store directory: tasks read by queue, by segment of the log, or by the key index.

For most messages the log is read sequentially; for few queues or tags the tasks follow the queues' units, which hold
the tag hashes. Both yield the same messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from reput_broker.tools.index_raw import RawIndex, common_slots
from reput_pipeline.source.narrowing import Narrowing
from reput_pipeline.source.offline_store import OfflineStore
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.source.places import QueueKey
from reput_pipeline.source.ranges import QueueRange, cores, pack
from reput_pipeline.source.resolve import batch_ranges, narrowed
from reput_protocol.record.hashing import index_hash


class FoundByKeys(NamedTuple):
    """Where messages with keys may be."""

    log_offsets: list[int]
    """Ascending."""
    indexed_end: int
    """Log offset at which the index ends."""


def find_by_keys(store: OfflineStore, topics: Iterable[str], keys: Iterable[str]) -> FoundByKeys | None:
    """Look keys up in the index; None if it may be incomplete.

    It may be without an index, while a broker runs or after it was killed, or if the index starts after the log. Of
    several keys in a value of the column `keys`, one finds the message.
    """
    paths = store.layout.index_files()
    if not paths or store.layout.abort.exists():
        return None
    tokens = [next((key for key in text.split(" ") if key), "") for text in keys]
    if not all(tokens):
        return None
    hashes = {index_hash(f"{topic}#{token}") for topic in set(topics) for token in tokens}
    files: list[RawIndex] = []
    try:
        files = [RawIndex(path) for path in paths]
        slots = common_slots(files)
        if not slots or files[0].header.begin_physical_offset > _first_record(store):
            return None
        log_offsets: set[int] = set()
        for file in files:
            file.set_slots(slots)
            log_offsets.update(_log_offsets_in(file, hashes))
        end = max(file.header.end_physical_offset for file in files)
        # The last record's keys may not all be in the index.
        return FoundByKeys(
            sorted(offset for offset in log_offsets if store.log.min_offset <= offset < end), end
        )
    except (OSError, ValueError):
        return None  # the query is slower, but complete
    finally:
        for file in files:
            file.close()


def _log_offsets_in(file: RawIndex, hashes: set[int]) -> list[int]:
    """Return the log offsets in the chains of hashes in one file, from newer to older entries."""
    log_offsets: list[int] = []
    for key_hash in sorted(hashes):
        number = file.head(key_hash % file.slot_count)
        while 0 < number < file.used:
            entry = file.entries(number, number + 1)[0]
            if entry.hash == key_hash:
                log_offsets.append(entry.physical_offset)
            if entry.previous >= number:
                raise ValueError(
                    f"{file.path}: entry {number} leads to entry {entry.previous}, which is not older"
                )
            number = entry.previous
    return log_offsets


def _first_record(store: OfflineStore) -> int:
    """Return the lowest log offset of a message of any queue."""
    bounds = store.bounds(store.queue_keys())
    return min(
        (store.physical_offset(queue, low)[0] for queue, (low, high) in bounds.items() if low < high),
        default=0,
    )


SEGMENT_SHARE: Final = 0.5
"""Wanted share of the messages in a part of the log from which it is read sequentially."""
_TASK_BYTES_MIN: Final = 8 << 20
_TASK_BYTES_MAX: Final = 512 << 20
_TASKS_PER_CORE: Final = 2
_TASK_BYTES_EVEN: Final = 128 << 20


class WantedRange(NamedTuple):
    """A range of a queue, and the log offsets around its records."""

    queue: QueueKey
    start: int
    end: int
    log_start: int
    log_end: int


class Stretch(NamedTuple):
    """A part of one log file as log offsets, from the start of a record to that of another."""

    start: int
    end: int


@dataclass
class QueuePartition(InputPartition):
    """A task that follows the units of queues."""

    ranges: list[QueueRange]


@dataclass
class SegmentPartition(InputPartition):
    """A task that reads parts of the log and selects the records of the wanted ranges."""

    stretches: list[Stretch]
    wanted: list[WantedRange]


@dataclass
class RecordsPartition(InputPartition):
    """A task that reads single records, each of a wanted range."""

    log_offsets: list[int]
    wanted: list[WantedRange]


def plan(store: OfflineStore, options: SourceOptions, narrowing: Narrowing) -> list[InputPartition]:
    """Return the tasks of a query.

    Raises:
        NoSuchTopic, DataLost, OptionError, DamagedStore: the query cannot be answered.
    """
    ranges = [
        part
        for part in (narrowed(store, part, narrowing) for part in batch_ranges(store, options))
        if part.size > 0
    ]
    if not ranges:
        return []
    wanted = [_located(store, part) for part in ranges]
    if narrowing.keys is not None:
        found = find_by_keys(store, [part.topic for part, *_ in wanted], narrowing.keys)
        if found is not None:
            tasks: list[InputPartition] = (
                [RecordsPartition(found.log_offsets, wanted)] if found.log_offsets else []
            )
            tail = [Stretch(max(low, found.indexed_end), high) for low, high in _files(store, wanted)]
            tail = [stretch for stretch in tail if stretch.start < stretch.end]
            return tasks + ([SegmentPartition(tail, wanted)] if tail else [])
    low = min(part.log_start for part in wanted)
    high = max(part.log_end for part in wanted)
    count = sum(part.size for part in ranges)
    of_all = count / max(count, _messages_between(store, low, high))
    bytes_wanted = int((high - low) * of_all)
    parts = options.min_partitions or task_count(bytes_wanted, cores())
    by_tag = narrowing.tags is not None or not options.tag_filter.matches_all
    if by_tag or of_all < SEGMENT_SHARE:
        return [QueuePartition(part) for part in pack(ranges, parts)]
    return [SegmentPartition(stretches, wanted) for stretches in _divided(store, wanted, parts)]


def _located(store: OfflineStore, part: QueueRange) -> WantedRange:
    log_start, _ = store.physical_offset(part.queue, part.start)
    _, log_end = store.physical_offset(part.queue, part.end - 1)
    return WantedRange(*part, log_start, log_end)


def _messages_between(store: OfflineStore, low: int, high: int) -> int:
    """Estimate the number of messages in a part of the log; all if it is most of the log."""
    keys = store.queue_keys()
    total = sum(high - low for low, high in store.bounds(keys).values())
    files = store.log.files
    log_bytes = max(1, max(high, _last_end(store)) - files[0].start) if files else 1
    return int(total * min(1.0, (high - low) / log_bytes))


def _last_end(store: OfflineStore) -> int:
    """Return the end of the last message of any queue in the log."""
    bounds = store.bounds(store.queue_keys())
    return max(
        (store.physical_offset(queue, high - 1)[1] for queue, (low, high) in bounds.items() if low < high),
        default=0,
    )


def task_count(size: int, at_once: int) -> int:
    """Return the number of tasks for `size` bytes: as many as run at once, fewer or more for very few or many bytes.

    With enough bytes it is twice as many, which balances the load; a task start costs 50 to 70 ms of CPU.
    """
    even = _TASKS_PER_CORE * at_once
    many = even if size >= even * _TASK_BYTES_EVEN else at_once
    return int(max(1, min(many, size // _TASK_BYTES_MIN), -(-size // _TASK_BYTES_MAX)))


def _files(store: OfflineStore, wanted: Sequence[WantedRange]) -> list[Stretch]:
    """Return the parts of the log files that contain the wanted ranges."""
    low = min(part.log_start for part in wanted)
    high = max(part.log_end for part in wanted)
    return [
        Stretch(max(low, file.start), min(high, file.end))
        for file in store.log.files
        if file.start < high and file.end > low
    ]


def _divided(store: OfflineStore, wanted: Sequence[WantedRange], parts: int) -> list[list[Stretch]]:
    """Divide the log's bytes into tasks; files are split at known starts of records."""
    stretches = _files(store, wanted)
    total = sum(end - start for start, end in stretches)
    tasks: list[list[Stretch]] = [[]]
    done = 0
    for start, end in stretches:
        while start < end:
            goal = total * len(tasks) // parts
            stop = end
            if done + end - start > goal and len(tasks) < parts:
                stop = min(end, _record_from(store, wanted, start + goal - done))
            if stop > start:
                tasks[-1].append(Stretch(start, stop))
                done += stop - start
                start = stop
            if done >= goal and len(tasks) < parts:
                tasks.append([])
    return [task for task in tasks if task]


def _record_from(store: OfflineStore, wanted: Sequence[WantedRange], offset: int) -> int:
    """Return the start of the next record of a wanted queue at or after a log offset."""
    found = max(part.log_end for part in wanted)
    for queue, start, end, log_start, log_end in sorted(wanted, key=lambda part: part.start - part.end)[:8]:
        if log_start >= offset:
            found = min(found, log_start)
        elif log_end > offset:
            low, high = start, end
            while low < high:
                middle = (low + high) // 2
                if store.physical_offset(queue, middle)[0] >= offset:
                    high = middle
                else:
                    low = middle + 1
            if low < end:
                found = min(found, store.physical_offset(queue, low)[0])
    return found
