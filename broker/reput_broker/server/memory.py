"""How much is held for connections, all together, and who waits while it is too much."""

from __future__ import annotations

from collections.abc import Callable

import trio

from reput_broker.counters import Counters


class BufferedBytes:
    """The bytes that all connections keep the broker holding: read and not handled, answered and not taken.

    `limit` is read anew each time, since it may change while the broker runs.
    """

    def __init__(self, counters: Counters, limit: Callable[[], int]) -> None:
        self._buffered = counters.buffered_bytes
        self._limit = limit
        self._waiting = trio.lowlevel.ParkingLot()

    @property
    def total(self) -> int:
        """Bytes held now."""
        return self._buffered["read"] + self._buffered["write"]

    @property
    def is_over(self) -> bool:
        """Whether more is held than may be: nobody reads on until it is less."""
        total = self.total
        return total > 0 and total > self._limit()

    def change(self, kind: str, difference: int) -> None:
        """Note that more (or less) is held; those who wait go on once it is little enough."""
        self._buffered[kind] += difference
        if difference < 0 and self._waiting and not self.is_over:
            self._waiting.unpark_all()

    async def wait(self) -> None:
        """Wait until little enough is held.

        At most a second at a time: a reader in the middle of a frame is part of what is held, so if everybody
        waited for everybody, nobody would go on.
        """
        with trio.move_on_after(1.0):
            while self.is_over:
                await self._waiting.park()
