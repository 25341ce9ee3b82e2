"""Keys that have been dispatched and wait for their place in an index file, until there are enough of them.

Nothing is at stake: what no full index file holds is indexed again after a crash anyway.
"""

from __future__ import annotations

from array import array
from typing import Final

from reput_broker.store.dispatch import DispatchBatch

KEY_FIELDS: Final = 3
"""Numbers a key: its index hash, physical offset and store time."""
KEYS_AT_ONCE: Final = 1024
"""So many keys are worth inserting."""


class KeyBacklog:
    """The keys of the records before the log offset `end_offset` that are not in a file yet."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.keys: array[int] = array("q")
        """`KEY_FIELDS` numbers a key, in the order in which they are to be inserted."""

    @property
    def is_due(self) -> bool:
        """Whether there are enough keys to insert them."""
        return len(self.keys) >= KEY_FIELDS * KEYS_AT_ONCE

    def start_at(self, offset: int) -> None:
        """Forget everything; the keys of records from a log offset on are wanted."""
        self.end_offset = offset
        self.keys = array("q")

    def add(self, batch: DispatchBatch) -> None:
        """Take the keys of the batch that were not taken before."""
        if batch.end_offset <= self.end_offset:
            return
        keys = batch.rows.keys()
        if batch.start_offset < self.end_offset:
            wanted = sum(offset < self.end_offset for offset in keys[1::KEY_FIELDS])
            del keys[: KEY_FIELDS * wanted]
        self.keys += keys
        self.end_offset = batch.end_offset

    def drop(self, count: int) -> None:
        """Forget the first `count` keys: they have been inserted."""
        del self.keys[: KEY_FIELDS * count]
