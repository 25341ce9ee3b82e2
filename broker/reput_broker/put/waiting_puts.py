"""Puts that wait until the log has got as far as their end: on the disk, or in the page cache."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from reput_broker.observe.counters import Histogram
from reput_broker.put.pending_puts import PendingPut, flush_clients


class _Waiter(NamedTuple):
    end_offset: int
    deadline: float
    put: PendingPut


class WaitingPuts:
    """The puts that wait for one position of the log, in the order of the log.

    Args:
        seconds: where it is counted how long each took from its arrival to its answer.
    """

    def __init__(self, seconds: Histogram) -> None:
        self._seconds = seconds
        self._waiters: deque[_Waiter] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def add(self, end_offset: int, put: PendingPut, timeout_s: float = 0.0) -> None:
        """Let a put wait until the position is at `end_offset`; it is late `timeout_s` after its arrival."""
        self._waiters.append(_Waiter(end_offset, put.received_at + timeout_s, put))

    def release(self, position: int) -> int:
        """Acknowledge every put that ends at or before the position; return how many messages they stored."""
        waiters = self._waiters
        if not waiters or waiters[0].end_offset > position:
            return 0
        released: list[PendingPut] = []
        messages = 0
        now = time.monotonic()
        while waiters and waiters[0].end_offset <= position:
            put = waiters.popleft().put
            put.acknowledge()
            released.append(put)
            messages += put.messages
            self._seconds.observe(now - put.received_at, put.requests)
        flush_clients(released)
        return messages

    def admit_late(self, committed: int, reason: str) -> None:
        """Tell those whose time is up that they are stored but the level is not reached.

        Only those that end at or before `committed`: what is in the broker's own memory and nowhere else is not stored
        for sure, and its client is left to wait.
        """
        now = time.monotonic()
        late: list[PendingPut] = []
        while self._waiters and self._waiters[0].deadline <= now and self._waiters[0].end_offset <= committed:
            late.append(self._waiters.popleft().put)
        _admit(late, reason)

    def fail(self, committed: int, reason: str) -> None:
        """Tell all who wait that the level will not be reached: stored, or beyond `committed` not even that."""
        waiters, self._waiters = self._waiters, deque()
        _admit([waiter.put for waiter in waiters if waiter.end_offset <= committed], reason)
        lost = [waiter.put for waiter in waiters if waiter.end_offset > committed]
        for put in lost:
            put.refuse(reason)
        flush_clients(lost)


def _admit(puts: list[PendingPut], reason: str) -> None:
    for put in puts:
        put.admit(reason)
    flush_clients(puts)
