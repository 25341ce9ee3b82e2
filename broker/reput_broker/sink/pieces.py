"""A staged block is appended in pieces: as many records as go to the log together, and no fewer than one."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from reput_protocol.kernel import record_starts


class Piece(NamedTuple):
    """Records that are put together."""

    data: memoryview
    messages: int
    """How many records these are."""


class Pieces:
    """What is left of a block, from which pieces are taken one by one.

    Args:
        block: whole records back to back.
        skipped: how many of them are left out.
    """

    def __init__(self, block: bytearray | memoryview, skipped: int = 0) -> None:
        self._block = memoryview(block)
        self._starts = record_starts(block, 0, len(block))
        self._first = skipped

    def take(self, most: int) -> Piece | None:
        """Return the next records, of at most `most` bytes or one alone; None if none is left."""
        starts, first, size = self._starts, self._first, len(self._block)
        if first >= len(starts):
            return None
        start = starts[first]
        if size - start <= most:
            stop, end = len(starts), size
        else:
            stop = max(first + 1, bisect_right(starts, start + most) - 1)
            end = starts[stop] if stop < len(starts) else size
        self._first = stop
        return Piece(self._block[start:end], stop - first)
