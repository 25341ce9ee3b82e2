"""Which half messages are decided, and how.

For every offset of the half queue from some point on one byte says how it stands; one that is open is 0, so that the
next open one is found as fast as memory is read. Before `position` nothing is open: what was, is decided or has been
copied to the end of the queue. `position` is what is saved as the progress of the group CID_RMQ_SYS_TRANS.

A transaction is known by the offset of its first half message. Requests may name any copy of it: a producer that has
taken its time answers for the first copy, one that was asked for the latest. Whichever comes first decides, and only
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from reput_broker.transactions.half_messages import HalfMessage

_REMEMBERED: Final = 65_536
"""So many offsets before `position` are remembered, for producers that repeat what they said."""


class HalfState(IntEnum):
    """How one half message stands."""

    OPEN = 0
    COMMITTED = 1
    ROLLED_BACK = 2
    DISCARDED = 3
    """Asked about too often, or too old: it was put aside."""
    DONE = 4
    """Decided in an earlier run; how is not known any more."""
    COPIED = 5
    """A later copy has taken its place."""


class HalfCopy(NamedTuple):
    """The copy of a half message that counts."""

    queue_offset: int
    physical_offset: int


class Transaction(Protocol):
    """What a transaction is known by."""

    @property
    def first_offset(self) -> int:
        """The first copy's place in the half queue."""

    @property
    def topic(self) -> str:
        """Where the message goes."""


class TransactionTable:
    """The half messages of one store. One owner.

    Args:
        position: no half message before this offset of the half queue is open.
        on_closed: called with the offset of each copy that is open no more, to be written down.
    """

    def __init__(self, position: int, on_closed: Callable[[int], None]) -> None:
        self.position = position
        self.on_closed = on_closed
        self.open_by_topic: Counter[str] = Counter()
        """How many are open, by the topic that they are for."""
        self._base = position
        self._states = bytearray()
        self._latest: dict[int, HalfCopy] = {}

    # Reading

    def open_copy(self, half: HalfMessage) -> HalfCopy | None:
        """Return the copy that counts of the transaction that `half` is a copy of; None if it is not open."""
        latest = self._latest.get(half.first_offset)
        if latest is not None:
            return latest
        if half.queue_offset == half.first_offset and self.state(half.queue_offset) is HalfState.OPEN:
            return HalfCopy(half.queue_offset, half.record.physical_offset)
        return None

    def outcome(self, half: HalfMessage) -> HalfState:
        """Return how the transaction that `half` is a copy of was decided, as far as that is still known."""
        state = self.state(half.first_offset)
        return HalfState.DONE if state is HalfState.COPIED else state

    def state(self, queue_offset: int) -> HalfState:
        """Return how the half message at an offset stands."""
        index = queue_offset - self._base
        if index < 0:
            return HalfState.DONE
        if index >= len(self._states):
            return HalfState.OPEN
        return HalfState(self._states[index])

    def next_open(self, queue_offset: int) -> int:
        """Return the first offset from this one on whose half message is open, or has not been written yet."""
        index = self._states.find(0, max(0, queue_offset - self._base))
        if index < 0:
            return max(queue_offset, self._base + len(self._states))
        return self._base + index

    # Changing

    def opened(self, topic: str) -> None:
        """Count a new half message for a topic."""
        self.open_by_topic[topic] += 1

    def decided(self, transaction: Transaction, copy: HalfCopy, state: HalfState) -> None:
        """Note what has become of an open transaction; `copy` is the one that counted."""
        self._latest.pop(transaction.first_offset, None)
        self.close(copy.queue_offset, state)
        self.mark(transaction.first_offset, state)
        self._count_closed(transaction.topic)

    def copied(self, half: HalfMessage, copy: HalfCopy) -> None:
        """Note that another copy takes the place of this one, which counted until now."""
        self.close(half.queue_offset, HalfState.COPIED)
        self.keep_latest(half.first_offset, copy)

    def close(self, queue_offset: int, state: HalfState) -> None:
        """Note that one half message is open no more, and have that written down."""
        self.mark(queue_offset, state)
        self.on_closed(queue_offset)

    def keep_latest(self, first_offset: int, copy: HalfCopy) -> None:
        """Note which copy counts of a transaction of which there are several."""
        self._latest[first_offset] = copy
        self.mark(first_offset, HalfState.COPIED)

    def mark(self, queue_offset: int, state: HalfState) -> None:
        """Note how one half message stands. What lies so far back that it is forgotten stays so."""
        index = queue_offset - self._base
        if index < 0:
            return
        missing = index + 1 - len(self._states)
        if missing > 0:
            self._states += bytes(missing)
        self._states[index] = state

    def advance(self, position: int) -> None:
        """Note that nothing before `position` is open any more, and forget what nobody will ask for."""
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
