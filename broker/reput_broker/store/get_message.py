"""Which entries of a queue one get takes (RocketMQ: DefaultMessageStore.getMessage, isTheBatchFull).

The rules look at the entries one after the other and stop at the first that does not fit any more. Nothing is read but
the queue's entries; the records themselves are fetched later, as extents. Only a filter over properties looks into
records (filtered_get.py).

An entry that holds an address in the place of its tags code is one whose extended entry could not be read: it matches
every filter, since whoever gets the message compares the tag itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from reput_broker.store.results import Extent, TransferLimits
from reput_protocol.filters import TagFilter
from reput_protocol.kernel import select_units

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
    """Entries whose records are not in the log: any more, or because the entries are damaged (`damaged_unit`)."""


def clamp_bytes(max_bytes: int) -> int:
    """The byte limit that a get may ask for, brought into RocketMQ's bounds."""
    return min(max(max_bytes, GET_BYTES_MIN), GET_BYTES_MAX)


def select(
    units: bytes,
    window: LogWindow,
    max_messages: int,
    max_bytes: int,
    tag_filter: TagFilter | None,
    limits: TransferLimits,
    accepts: Callable[[int, int], bool | None] | None = None,
) -> Selection:
    """Apply the rules to units.

    `accepts` looks at the record, told its place and size, of an entry that the tag filter lets through and that is in
    the log; with None it ends the scan there.
    """
    scanned, taken, size, extents, missing = select_units(
        units,
        window.min_offset,
        window.max_offset,
        window.memory_from,
        max_bytes,
        min(max_messages, limits.memory_messages),
        min(max_bytes, limits.memory_bytes),
        min(max_messages, limits.disk_messages),
        min(max_bytes, limits.disk_bytes),
        None if tag_filter is None or tag_filter.matches_all else _sorted_codes(tag_filter.codes),
        accepts,
    )
    return Selection(scanned, taken, size, tuple(map(Extent._make, extents)), missing)


@lru_cache(maxsize=1024)
def _sorted_codes(codes: frozenset[int]) -> array[int]:
    return array("q", sorted(codes))


def spans_files(extents: Sequence[Extent], window: LogWindow) -> bool:
    """Whether any of the extents leaves the file that it begins in, as no sound one does."""
    file_size = window.file_size
    return any(start % file_size + size > file_size for start, size in extents)
