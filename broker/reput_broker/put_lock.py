"""The one lock that every append to the log holds.

One trio task runs at a time, so what the lock guards against is an append that has to wait for a new log file: the puts
behind it must neither overtake it nor append meanwhile. One lock stands for both of RocketMQ's (the spin lock and the
reentrant one): see docs/decisions/0001-one-put-lock.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class PutLock:
    """Mutual exclusion of appends, first come, first served.

    An append that waits for nothing takes it with `acquire_nowait` and `release` around the append, which costs a
    tenth of a microsecond; that matters at a hundred thousand puts a second, and is why this is not a `trio.Lock`.
    """

    __slots__ = ("_waiting", "is_held")

    def __init__(self) -> None:
        self.is_held = False
        """Whether an append is under way; outside of one that waits, nobody ever sees it set."""
        self._waiting = trio.lowlevel.ParkingLot()

    def acquire_nowait(self) -> None:
        """Take the lock. Only for whoever has just seen that it is not held."""
        assert not self.is_held
        self.is_held = True

    def release(self) -> None:
        """Give the lock back, or on to the task that has waited longest."""
        if self._waiting:
            self._waiting.unpark()  # it stays held: the woken task owns it now
        else:
            self.is_held = False

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Wait for the lock and hold it. A cancelled wait leaves it as it was."""
        if self.is_held:
            await self._waiting.park()
        else:
            self.is_held = True
        try:
            yield
        finally:
            self.release()
