"""A store directory as a `Catalog`, and planning over it: tasks read by queue, by segment, or by the key index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from reput_broker.tools.index_raw import RawIndex, common_slots
from reput_client.arrow.directory import (
    StoreDirectory,
    Stretch,
    WantedRange,
    divided,
    is_sequential,
    located,
    log_files,
    share_of,
)
from reput_client.arrow.queues import QueueKey, QueueRange
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.source.ranges import InputPartition, Narrowing, batch_ranges, cores, narrowed, pack
from reput_protocol.record.layout import index_hash


class OfflineStore(StoreDirectory):
    """The queues of one directory; a context manager that closes its files."""

    def topic_queues(self, options: SourceOptions) -> dict[str, list[QueueKey]]:
        """Return the queues of the wanted topics."""
        own_names = self.clusters
        found: dict[str, list[QueueKey]] = {topic: [] for topic in self.topics if options.is_wanted(topic, own_names)}
        for queue in self.queue_keys():
            if queue.topic in found:
                found[queue.topic].append(queue)
        return found

    def committed(self, queue: QueueKey) -> int | None:
        """Raise NotImplementedError: a directory is read without a group, so the planning never asks."""
        raise NotImplementedError(f"a store directory is read without a group, and {queue} has no offset of one")


class FoundByKeys(NamedTuple):
    """Where messages with keys may be."""

    log_offsets: list[int]
    """Ascending."""
    indexed_end: int
    """Log offset at which the index ends."""


def find_by_keys(store: OfflineStore, topics: Iterable[str], keys: Iterable[str]) -> FoundByKeys | None:
    """Look keys up in the index; None if it may be incomplete.

    It may be without an index, while a broker runs or after it was killed, or if the index starts after the log; in a
    bucket it is not used. Of several keys in a value of the column `keys`, one finds the message.
    """
    paths = [] if store.layout is None else store.layout.index_files()
    if store.layout is None or not paths or store.layout.abort.exists():
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
        return FoundByKeys(sorted(offset for offset in log_offsets if store.log.min_offset <= offset < end), end)
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
                raise ValueError(f"{file.path}: entry {number} leads to entry {entry.previous}, which is not older")
            number = entry.previous
    return log_offsets


def _first_record(store: OfflineStore) -> int:
    """Return the lowest log offset of a message of any queue."""
    bounds = store.bounds(store.queue_keys())
    return min((store.physical_offset(queue, low)[0] for queue, (low, high) in bounds.items() if low < high), default=0)


_TASK_BYTES_MIN: Final = 8 << 20
_TASK_BYTES_MAX: Final = 512 << 20
_TASKS_PER_CORE: Final = 2
_TASK_BYTES_EVEN: Final = 128 << 20


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
        part for part in (narrowed(store, part, narrowing) for part in batch_ranges(store, options)) if part.size > 0
    ]
    if not ranges:
        return []
    wanted = [located(store, part) for part in ranges]
    if narrowing.keys is not None:
        found = find_by_keys(store, [part.topic for part, *_ in wanted], narrowing.keys)
        if found is not None:
            tasks: list[InputPartition] = [RecordsPartition(found.log_offsets, wanted)] if found.log_offsets else []
            tail = [Stretch(max(low, found.indexed_end), high) for low, high in log_files(store, wanted)]
            tail = [stretch for stretch in tail if stretch.start < stretch.end]
            return tasks + ([SegmentPartition(tail, wanted)] if tail else [])
    log_bytes = max(part.log_end for part in wanted) - min(part.log_start for part in wanted)
    bytes_wanted = int(log_bytes * share_of(store, wanted))
    parts = options.min_partitions or task_count(bytes_wanted, cores())
    by_tag = narrowing.tags is not None or not options.tag_filter.matches_all
    if is_sequential(store, wanted, all_tags=not by_tag):
        return [SegmentPartition(stretches, wanted) for stretches in divided(store, wanted, parts)]
    return [QueuePartition(part) for part in pack(ranges, parts)]


def task_count(size: int, at_once: int) -> int:
    """Return the number of tasks for `size` bytes: as many as run at once, fewer or more for very few or many bytes.

    With enough bytes it is twice as many, which balances the load; a task start costs 50 to 70 ms of CPU.
    """
    even = _TASKS_PER_CORE * at_once
    many = even if size >= even * _TASK_BYTES_EVEN else at_once
    return int(max(1, min(many, size // _TASK_BYTES_MIN), -(-size // _TASK_BYTES_MAX)))
