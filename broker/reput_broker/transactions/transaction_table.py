"""The states of half messages.

One byte for each offset of the half queue, from some offset on; open is 0, so the next open one is found with a byte
search. No half message before `position`, the saved progress of the group CID_RMQ_SYS_TRANS, is open.

A transaction is identified by the offset of its first half message. Requests may name any copy: a slow producer answers
for the first one, a checked producer for the latest. The first decision counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from reput_broker.transactions.half_messages import HalfMessage

_REMEMBERED: Final = 65_536
"""Offsets before `position` that are remembered, for producers that repeat a decision."""


class HalfState(IntEnum):
    """The state of one half message."""

    OPEN = 0
    COMMITTED = 1
    ROLLED_BACK = 2
    DISCARDED = 3
    """Checked too often or too old."""
    DONE = 4
    """Decided in an earlier run; the outcome is unknown."""
    COPIED = 5
    """Replaced by a later copy."""


class HalfCopy(NamedTuple):
    """The current copy of a half message."""

    queue_offset: int
    physical_offset: int


class Transaction(Protocol):
    """What identifies a transaction."""

    @property
    def first_offset(self) -> int:
        """The first copy's offset in the half queue."""

    @property
    def topic(self) -> str:
        """The destination."""


class TransactionTable:
    """The half messages of one store. One owner.

    Args:
        position: no half message before this offset of the half queue is open.
        on_closed: called with the offset of each copy that is no longer open, to be written.
    """

    def __init__(self, position: int, on_closed: Callable[[int], None]) -> None:
        self.position = position
        self.on_closed = on_closed
        self.open_by_topic: Counter[str] = Counter()
        """Number of open transactions by destination."""
        self._base = position
        self._states = bytearray()
        self._latest: dict[int, HalfCopy] = {}

    # Reading

    def open_copy(self, half: HalfMessage) -> HalfCopy | None:
        """Return the current copy of the transaction that `half` belongs to; None if it is not open."""
        latest = self._latest.get(half.first_offset)
        if latest is not None:
            return latest
        if half.queue_offset == half.first_offset and self.state(half.queue_offset) is HalfState.OPEN:
            return HalfCopy(half.queue_offset, half.record.physical_offset)
        return None

    def outcome(self, half: HalfMessage) -> HalfState:
        """Return how the transaction that `half` belongs to was decided, as far as that is known."""
        state = self.state(half.first_offset)
        return HalfState.DONE if state is HalfState.COPIED else state

    def state(self, queue_offset: int) -> HalfState:
        """Return the state of the half message at an offset."""
        index = queue_offset - self._base
        if index < 0:
            return HalfState.DONE
        if index >= len(self._states):
            return HalfState.OPEN
        return HalfState(self._states[index])

    def next_open(self, queue_offset: int) -> int:
        """Return the first offset from this one on that is open or beyond the known ones."""
        index = self._states.find(0, max(0, queue_offset - self._base))
        if index < 0:
            return max(queue_offset, self._base + len(self._states))
        return self._base + index

    # Changing

    def opened(self, topic: str) -> None:
        """Count a new half message for a topic."""
        self.open_by_topic[topic] += 1

    def decided(self, transaction: Transaction, copy: HalfCopy, state: HalfState) -> None:
        """Record the outcome of an open transaction; `copy` is its current copy."""
        self._latest.pop(transaction.first_offset, None)
        self.close(copy.queue_offset, state)
        self.mark(transaction.first_offset, state)
        self._count_closed(transaction.topic)

    def copied(self, half: HalfMessage, copy: HalfCopy) -> None:
        """Record that a new copy replaces the current one."""
        self.close(half.queue_offset, HalfState.COPIED)
        self.keep_latest(half.first_offset, copy)

    def close(self, queue_offset: int, state: HalfState) -> None:
        """Record that one half message is no longer open, and have that written."""
        self.mark(queue_offset, state)
        self.on_closed(queue_offset)

    def keep_latest(self, first_offset: int, copy: HalfCopy) -> None:
        """Record the current copy of a transaction that has several."""
        self._latest[first_offset] = copy
        self.mark(first_offset, HalfState.COPIED)

    def mark(self, queue_offset: int, state: HalfState) -> None:
        """Set the state of one half message; offsets too far back are ignored."""
        index = queue_offset - self._base
        if index < 0:
            return
        missing = index + 1 - len(self._states)
        if missing > 0:
            self._states += bytes(missing)
        self._states[index] = state

    def advance(self, position: int) -> None:
        """Record that nothing before `position` is open, and forget older states."""
        assert position >= self.position
        self.position = position
        forgotten = position - _REMEMBERED - self._base
        if forgotten > 0:
            del self._states[:forgotten]
            self._base += forgotten

    def _count_closed(self, topic: str) -> None:
        self.open_by_topic[topic] -= 1
        if self.open_by_topic[topic] <= 0:
            del self.open_by_topic[topic]
