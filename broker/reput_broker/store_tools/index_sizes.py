"""How many slots and entries the index files of a directory have: they do not say it themselves."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from reput_broker.store.index.file import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, index_file_size
from reput_broker.store_tools.index_raw import INDEX_BYTES_MIN, ROCKETMQ_SLOTS, RawIndex, common_slots
from reput_broker.store_tools.layout import StoreLayout

ROCKETMQ_ENTRIES = 20_000_000


class IndexSizes(NamedTuple):
    """What a file is divided into."""

    slots: int
    entries: int
    """The entry that is never used included."""


def index_sizes(layout: StoreLayout) -> IndexSizes | None:
    """Return what the caller's geometry says, and where it says nothing, what fits the files; None if nothing does."""
    slots, entries = layout.geometry.index_slots, layout.geometry.index_entries
    if slots and entries:
        return IndexSizes(slots, entries)
    sizes = Counter(path.stat().st_size for path in layout.index_files())
    size = max(sizes, key=lambda size: sizes[size], default=0)
    if size < INDEX_BYTES_MIN:
        return None
    if not slots:
        slots = (
            (size - HEADER_BYTES - ENTRY_BYTES * entries) // SLOT_BYTES if entries else _guess(layout, size)
        )
    entries = entries or (size - HEADER_BYTES - SLOT_BYTES * slots) // ENTRY_BYTES
    fits = slots > 0 and entries > 1 and index_file_size(slots, entries) == size
    return IndexSizes(slots, entries) if fits else None


def _guess(layout: StoreLayout, size: int) -> int:
    if size == index_file_size(ROCKETMQ_SLOTS, ROCKETMQ_ENTRIES):
        return ROCKETMQ_SLOTS
    files = [RawIndex(path) for path in layout.index_files() if path.stat().st_size == size]
    try:
        return common_slots(files)
    finally:
        for raw in files:
            raw.close()
