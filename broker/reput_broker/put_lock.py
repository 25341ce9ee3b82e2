"""The one lock that every append to the log holds.

One trio task runs at a time, so an append that does not wait needs no lock at all; it matters when an append has to
wait for a new log file: the puts behind it must neither overtake it nor append meanwhile. One lock stands for both of
RocketMQ's (the spin lock and the reentrant one): see docs/decisions/0001-one-put-lock.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio


class PutLock:
    """Mutual exclusion of appends, first come, first served."""

    def __init__(self) -> None:
        self._lock = trio.Lock()

    @property
    def is_held(self) -> bool:
        """Whether an append is waiting for a file now: others take the slow way and queue up."""
        return self._lock.locked()

    @contextmanager
    def held_without_waiting(self) -> Iterator[None]:
        """Hold the lock for an append that does not wait. Raises trio.WouldBlock if it is held."""
        self._lock.acquire_nowait()
        try:
            yield
        finally:
            self._lock.release()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Wait for the lock and hold it."""
        async with self._lock:
            yield
