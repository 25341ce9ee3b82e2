"""Which parts of a directory's log a reading covers, and whether to read it sequentially.

For most messages the log is read sequentially; for few queues or tags the queues' units, which hold the tag hashes, are
followed. Both yield the same messages. In a bucket the log is always read sequentially: following units would request
parts of it once for each queue, and a request takes longer than reading the bytes between two records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from reput_client.arrow.directory import StoreDirectory
from reput_client.arrow.queues import QueueKey, QueueRange

_SEGMENT_SHARE: Final = 0.5
"""Wanted share of the messages in a part of the log from which it is read sequentially."""


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


def located(store: StoreDirectory, part: QueueRange) -> WantedRange:
    """Return a range that is not empty, with its place in the log."""
    log_start, _ = store.physical_offset(part.queue, part.start)
    _, log_end = store.physical_offset(part.queue, part.end - 1)
    return WantedRange(*part, log_start, log_end)


def is_sequential(store: StoreDirectory, wanted: Sequence[WantedRange], *, all_tags: bool) -> bool:
    """Tell whether the wanted ranges are read sequentially, in the order of the log."""
    if not wanted or store.layout is None:
        return bool(wanted)
    return all_tags and share_of(store, wanted) >= _SEGMENT_SHARE


def share_of(store: StoreDirectory, wanted: Sequence[WantedRange]) -> float:
    """Return the share of the wanted messages among those in their part of the log; at most 1, estimated.

    It is 1 in a bucket, where it would take requests for all queues.
    """
    if store.layout is None:
        return 1.0
    low = min(part.log_start for part in wanted)
    high = max(part.log_end for part in wanted)
    count = sum(part.end - part.start for part in wanted)
    return count / max(count, _messages_between(store, low, high))


def _messages_between(store: StoreDirectory, low: int, high: int) -> int:
    """Estimate the number of messages in a part of the log; all if it is most of the log."""
    keys = store.queue_keys()
    total = sum(high - low for low, high in store.bounds(keys).values())
    files = store.log.files
    log_bytes = max(1, max(high, _last_end(store)) - files[0].start) if files else 1
    return int(total * min(1.0, (high - low) / log_bytes))


def _last_end(store: StoreDirectory) -> int:
    """Return the end of the last message of any queue in the log."""
    bounds = store.bounds(store.queue_keys())
    return max(
        (store.physical_offset(queue, high - 1)[1] for queue, (low, high) in bounds.items() if low < high),
        default=0,
    )


def log_files(store: StoreDirectory, wanted: Sequence[WantedRange]) -> list[Stretch]:
    """Return the parts of the log files that contain the wanted ranges."""
    low = min(part.log_start for part in wanted)
    high = max(part.log_end for part in wanted)
    return [
        Stretch(max(low, file.start), min(high, file.end))
        for file in store.log.files
        if file.start < high and file.end > low
    ]


def divided(store: StoreDirectory, wanted: Sequence[WantedRange], parts: int) -> list[list[Stretch]]:
    """Divide the log's bytes into tasks; files are split at known starts of records."""
    stretches = log_files(store, wanted)
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


def _record_from(store: StoreDirectory, wanted: Sequence[WantedRange], offset: int) -> int:
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
