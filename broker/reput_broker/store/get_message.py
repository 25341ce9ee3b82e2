"""Which entries of a queue one get takes (RocketMQ: DefaultMessageStore.getMessage, isTheBatchFull).

The rules look at the entries one after the other and stop at the first that does not fit any more. Both forms below
apply the same rules in the same order: a plain loop for a few entries, array code for many. Nothing is read but the
queue's entries; the records themselves are fetched later, as extents. Only a filter over properties looks into records
(filtered_get.py), by the plain loop.

An entry that holds an address in the place of its tags code is one whose extended entry could not be read: it matches
every filter, since whoever gets the message compares the tag itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reput_broker.store.consume_queue_ext_unit import MAX_ADDRESS, is_address
from reput_broker.store.consume_queue_unit import PRE_BLANK_SIZE, Units
from reput_broker.store.results import Extent, TransferLimits
from reput_protocol.filters import TagFilter

ARRAY_THRESHOLD = 96
"""Entries from which array code wins over the loop."""

GET_BYTES_MIN = 100
GET_BYTES_MAX = 134_217_728


class LogWindow(NamedTuple):
    """The part of the log that can be read, and where "recently written" begins in it."""

    min_offset: int
    max_offset: int
    memory_from: int
    """Records from here on count as being in memory: within 40 % of the machine's memory of the log's end."""
    file_size: int
    """Bytes of every file of the log. No record spans files, and neither do records that follow each other."""


class Selection(NamedTuple):
    """What a scan of queue entries took."""

    scanned: int
    """Entries that are done with, counted from the first; the next get begins after them."""
    taken: int
    size: int
    extents: tuple[Extent, ...]
    missing: int
    """Entries whose records are not in the log: any more, or because the entries are damaged (`first_damaged`)."""


def clamp_bytes(max_bytes: int) -> int:
    """The byte limit that a get may ask for, brought into RocketMQ's bounds."""
    return min(max(max_bytes, GET_BYTES_MIN), GET_BYTES_MAX)


def select_few(
    units: Iterable[tuple[int, int, int]],
    window: LogWindow,
    max_messages: int,
    max_bytes: int,
    tag_filter: TagFilter | None,
    limits: TransferLimits,
    accepts: Callable[[Extent], bool] | None = None,
) -> Selection:
    """Apply the rules entry by entry: each of `units` is (physical offset, size, tags code).

    `accepts` looks at the record of an entry that the tag filter lets through and that is in the log.
    """
    log_start, log_end, memory_from, _ = window
    matches = None if tag_filter is None or tag_filter.matches_all else tag_filter.matches_code
    memory_bytes = min(max_bytes, limits.memory_bytes)
    memory_messages = min(max_messages, limits.memory_messages)
    disk_bytes = min(max_bytes, limits.disk_bytes)
    disk_messages = min(max_messages, limits.disk_messages)
    extents: list[Extent] = []
    count = total = scanned = missing = 0
    start = end = -1
    for physical_offset, size, tags_code in units:
        if count:
            in_memory = physical_offset >= memory_from
            if (
                total + size > (memory_bytes if in_memory else disk_bytes)
                or count >= (memory_messages if in_memory else disk_messages)
                or total >= max_bytes
            ):
                break
        scanned += 1
        if matches is not None and not matches(tags_code) and not is_address(tags_code):
            continue
        if physical_offset < log_start or physical_offset + size > log_end or size <= 0:
            missing += 1
            continue
        if accepts is not None and not accepts(Extent(physical_offset, size)):
            continue
        count += 1
        total += size
        if physical_offset == end:
            end += size
            continue
        if end >= 0:
            extents.append(Extent(start, end - start))
        start = physical_offset
        end = physical_offset + size
    if end >= 0:
        extents.append(Extent(start, end - start))
    return Selection(scanned, count, total, tuple(extents), missing)


def select_many(
    units: NDArray[np.void],
    window: LogWindow,
    max_messages: int,
    max_bytes: int,
    tag_filter: TagFilter | None,
    limits: TransferLimits,
) -> Selection:
    """Apply the same rules to an array of entries with a handful of array operations."""
    offsets = units["physical_offset"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    present = (offsets >= window.min_offset) & (offsets + sizes <= window.max_offset) & (sizes > 0)
    if tag_filter is None or tag_filter.matches_all:
        matched = np.ones(len(units), dtype=np.bool_)
    else:
        codes = units["tags_code"].astype(np.int64)
        matched = tag_filter.mask(codes) | (codes <= MAX_ADDRESS)
    taken = matched & present

    # What had been collected when the scan came to each entry.
    taken_counts = taken.astype(np.int64)
    count_before = np.cumsum(taken_counts) - taken_counts
    taken_sizes = np.where(taken, sizes, 0)
    bytes_before = np.cumsum(taken_sizes) - taken_sizes

    in_memory = offsets >= window.memory_from
    bytes_limit = np.where(in_memory, min(max_bytes, limits.memory_bytes), min(max_bytes, limits.disk_bytes))
    count_limit = np.where(
        in_memory, min(max_messages, limits.memory_messages), min(max_messages, limits.disk_messages)
    )
    full = (count_before > 0) & (
        (bytes_before + sizes > bytes_limit) | (count_before >= count_limit) | (bytes_before >= max_bytes)
    )
    scanned = int(full.argmax()) if full.any() else len(units)

    chosen = np.flatnonzero(taken[:scanned])
    missing = int(np.count_nonzero(matched[:scanned] & ~present[:scanned]))
    if not len(chosen):
        return Selection(scanned, 0, 0, (), missing)
    starts = offsets[chosen]
    ends = starts + sizes[chosen]
    breaks = np.flatnonzero(starts[1:] != ends[:-1])
    extent_starts = starts[np.concatenate(([0], breaks + 1))].tolist()
    extent_ends = ends[np.concatenate((breaks, [len(chosen) - 1]))].tolist()
    extents = tuple(Extent(start, end - start) for start, end in zip(extent_starts, extent_ends, strict=True))
    return Selection(scanned, len(chosen), int(taken_sizes[:scanned].sum()), extents, missing)


def spans_files(extents: Sequence[Extent], window: LogWindow) -> bool:
    """Whether any of the extents leaves the file that it begins in, as no sound one does."""
    file_size = window.file_size
    return any(start % file_size + size > file_size for start, size in extents)


def first_damaged(units: Units, window: LogWindow) -> int | None:
    """Return the index of the first entry that points to where no record can be or could have been."""
    offsets = units["physical_offset"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    beyond = (offsets + sizes > window.max_offset) | (offsets % window.file_size + sizes > window.file_size)
    never = (offsets < 0) | (sizes <= 0) | (beyond & (sizes != PRE_BLANK_SIZE))
    return int(never.argmax()) if never.any() else None
