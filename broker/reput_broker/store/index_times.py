"""What the times in an index file are worth: which records they rule out, and which they cannot.

An entry holds whole seconds since the file's first time, no less than 0 and no more than fit into 31 bits; the header
holds the first and the last store time. Where the broker's clock was set back, neither says how early the earliest
record is, nor how late the latest, and an entry of 0 seconds may be of any earlier time. RocketMQ takes them at their
word and then misses what is there. Here a time leaves something out only where it is certain; whoever asks compares the
record's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

SECONDS_MAX: Final = 0x7FFF_FFFF
_EARLIEST: Final = -(1 << 63)
_LATEST: Final = (1 << 63) - 1


class IndexTimes:
    """The store times of one file's entries, as far as they are known.

    One thread notes what is inserted; everything else is safe from any thread.

    Args:
        loaded: how many entries the file held when it was opened, the unused one included; 1 for a new file.
    """

    def __init__(self, loaded: int) -> None:
        self._loaded = loaded
        self._earliest_ms = _LATEST if loaded <= 1 else _EARLIEST
        self._latest_ms = _EARLIEST if loaded <= 1 else _LATEST
        self._inserted_in_order = True
        self._loaded_in_order: bool | None = True if loaded <= 2 else None

    def note(self, earliest_ms: int, latest_ms: int, *, in_order: bool) -> None:
        """Note the store times of entries that are inserted, and whether they follow the times before them."""
        self._earliest_ms = min(self._earliest_ms, earliest_ms)
        self._latest_ms = max(self._latest_ms, latest_ms)
        self._inserted_in_order &= in_order

    def may_hold(self, begin_ms: int, end_ms: int) -> bool:
        """Whether a record stored in `[begin_ms, end_ms]` can be in the file."""
        return begin_ms <= self._latest_ms and self._earliest_ms <= end_ms

    def are_in_order(self, seconds_ascend: Callable[[int, int], bool]) -> bool:
        """Whether no entry is of an earlier time than one before it.

        `seconds_ascend` says that of the seconds in a range of entries; asked once, of those of a file that was loaded.
        """
        if not self._inserted_in_order:
            return False
        if self._loaded_in_order is None:
            # The first entry's seconds count from the file before; that it is the earliest the header says.
            self._loaded_in_order = seconds_ascend(2, self._loaded)
        return self._loaded_in_order


def time_bounds(number: int, seconds: int, began_ms: int) -> tuple[int, int]:
    """The earliest and the latest store time that an entry can be of.

    Args:
        number: of the entry; the first one's time is the file's.
        seconds: what it says.
        began_ms: the first time in the file's header, 0 if it is not known.
    """
    if began_ms <= 0:
        return _EARLIEST, _LATEST
    if number == 1:
        return began_ms, began_ms
    stored_ms = began_ms + 1000 * seconds
    return (
        stored_ms if seconds > 0 else _EARLIEST,
        stored_ms + 999 if seconds < SECONDS_MAX else _LATEST,
    )
