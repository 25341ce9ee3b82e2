"""How much of a batch is appended at a time: little while others put, more once nobody does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from reput_broker.store.stats import StoreStats

SHARED_BYTES: Final = 64 * 1024
"""A piece beside others' puts: half a millisecond, of which no producer notices much."""
ALONE_BYTES: Final = 256 * 1024
"""A piece while nobody else puts: who comes then waits for one such piece at most."""
SHARED_SYNC_BYTES: Final = 1 << 20
ALONE_SYNC_BYTES: Final = 4 << 20
ALONE_AFTER_S: Final = 0.25


class Pace:
    """Watches what others put while a batch is published.

    Args:
        stats: count all puts.
        clock_s: seconds that only go forward.
        most: bytes that a piece may have at most, whatever others do.
        quiet_s: for how long nobody has put, as far as is known.
    """

    def __init__(
        self, stats: StoreStats, clock_s: Callable[[], float], most: int, quiet_s: float = 0.0
    ) -> None:
        self._stats = stats
        self._clock_s = clock_s
        self._most = most
        self._puts = stats.put_blocks
        self._others_at = clock_s() - max(0.0, quiet_s)

    @property
    def is_alone(self) -> bool:
        """Whether nobody else has put for a while."""
        return self._clock_s() - self._others_at > ALONE_AFTER_S

    @property
    def piece_bytes(self) -> int:
        """How large the next piece may be."""
        return min(ALONE_BYTES if self.is_alone else SHARED_BYTES, self._most)

    @property
    def sync_bytes(self) -> int:
        """How much is appended before a sync is asked for."""
        return ALONE_SYNC_BYTES if self.is_alone else SHARED_SYNC_BYTES

    def others_put(self, own: int) -> bool:
        """Whether others have put since this was asked last, besides `own` puts of the batch itself."""
        puts, self._puts = self._puts + own, self._stats.put_blocks
        if self._puts <= puts:
            return False
        self._others_at = self._clock_s()
        return True
