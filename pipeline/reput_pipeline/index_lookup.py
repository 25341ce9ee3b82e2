"""Places of messages with a key, from the index files of a directory.

The index knows hashes only, so what it names is looked at again. What it does not cover is named, too: nobody may take
an incomplete index for a complete one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from reput_broker.tools.index_raw import RawIndex, common_slots
from reput_pipeline.offline_store import OfflineStore
from reput_protocol.hashing import index_hash


class FoundPlaces(NamedTuple):
    """Where messages with a key may lie."""

    places: list[int]
    """Log offsets, ascending."""
    indexed_end: int
    """From this log offset on the index knows nothing."""


def find_places(store: OfflineStore, topics: Iterable[str], keys: Iterable[str]) -> FoundPlaces | None:
    """Look keys up; None where the index cannot be trusted to be complete, and the log has to be read.

    That is so without an index, after a broker that did not stop in order or still runs, or if the index begins behind
    the log. The value of the column `keys` may be several keys with spaces between them; one of them finds the message.
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
        places: set[int] = set()
        for file in files:
            file.set_slots(slots)
            places.update(_places_in(file, hashes))
        end = max(file.header.end_physical_offset for file in files)
        # Of the last record perhaps not every key is there.
        return FoundPlaces(sorted(place for place in places if store.log.min_offset <= place < end), end)
    except (OSError, ValueError):
        return None  # an index that cannot be read costs time, not messages
    finally:
        for file in files:
            file.close()


def _places_in(file: RawIndex, hashes: set[int]) -> list[int]:
    """Follow the chains of some hashes in one file; chains lead from newer to older entries."""
    places: list[int] = []
    for key_hash in sorted(hashes):
        number = file.head(key_hash % file.slot_count)
        while 0 < number < file.used:
            entry = file.entries(number, number + 1)[0]
            if entry.hash == key_hash:
                places.append(entry.physical_offset)
            if entry.previous >= number:
                raise ValueError(
                    f"{file.path}: entry {number} leads to entry {entry.previous}, which is no older one"
                )
            number = entry.previous
    return places


def _first_record(store: OfflineStore) -> int:
    """Log offset of the first message of any queue."""
    bounds = store.bounds(store.queue_keys())
    return min(
        (store.physical_offset(queue, low)[0] for queue, (low, high) in bounds.items() if low < high),
        default=0,
    )
