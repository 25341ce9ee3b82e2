"""A set of log offsets that is filled once: 8 bytes each, where a set of Python's takes some 70."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from itertools import groupby


class OffsetSet:
    """Offsets to be looked up."""

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        self._offsets = array("q")
        self.fill(array("q", offsets))

    def fill(self, offsets: array[int]) -> None:
        """Hold these instead, in whatever order and however often they come."""
        self._offsets = array("q", (offset for offset, _ in groupby(sorted(offsets))))

    def clear(self) -> None:
        """Hold none."""
        self._offsets = array("q")

    def __contains__(self, offset: int) -> bool:
        offsets = self._offsets
        if not offsets:
            return False
        index = bisect_left(offsets, offset)
        return index < len(offsets) and offsets[index] == offset

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def ascending(self) -> array[int]:
        """All of them, in order."""
        return self._offsets
