"""How far a queue has been handled: the offset that may be committed. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, Protocol, TypeVar

M = TypeVar("M")


class Unfinished(Protocol):
    """Somebody who hands messages out and notes it down only when he is asked."""

    def tell(self) -> None:
        """Note down what has happened, with `move_on`."""


class QueueProgress(Generic[M]):
    """What was handed out of one queue and what has been handled.

    Invariant: `position` never exceeds the offset of a message that was handed out and not yet handled. So a
    commit of `position` can lose nothing, in whatever order handlers finish.

    Attributes:
        turn: who has to be asked before anything here is looked at or changed, or None.
    """

    __slots__ = ("_handed_to", "_in_flight", "turn")

    def __init__(self, start: int) -> None:
        self._handed_to = start
        self._in_flight: dict[int, M] = {}  # in the order of handing out, but for what was put back
        self.turn: Unfinished | None = None

    @property
    def position(self) -> int:
        """The offset of the first message that is not handled; what a commit may say."""
        if self.turn is not None:
            self.turn.tell()
        return next(iter(self._in_flight), self._handed_to)

    @property
    def handed_to(self) -> int:
        """The offset from which on nothing was handed out."""
        if self.turn is not None:
            self.turn.tell()
        return self._handed_to

    @property
    def in_flight(self) -> int:
        """How many messages are handed out and not handled."""
        if self.turn is not None:
            self.turn.tell()
        return len(self._in_flight)

    @property
    def in_hand(self) -> Collection[M]:
        """The messages that are handed out and not handled, the first of the queue first."""
        if self.turn is not None:
            self.turn.tell()
        return self._in_flight.values()

    def hand_out(self, queue_offset: int, message: M) -> None:
        """The message at `queue_offset` goes to the application."""
        if self.turn is not None:
            self.turn.tell()
        self._in_flight[queue_offset] = message
        self._handed_to = queue_offset + 1

    def move_on(self, last_offset: int, last: M, queue_offset: int, message: M) -> None:
        """All up to `last` and all between it and `message` is handled, and `message` is handed out."""
        if self._in_flight.get(last_offset) is last:
            del self._in_flight[last_offset]
        self._in_flight[queue_offset] = message
        self._handed_to = queue_offset + 1

    def advance(self, next_offset: int) -> None:
        """Everything below `next_offset` was handed out or was not for us (the filter, a gap)."""
        if self.turn is not None:
            self.turn.tell()
        self._handed_to = max(self._handed_to, next_offset)

    def holds(self, queue_offset: int, message: M) -> bool:
        """Whether `message` is handed out and not handled."""
        if self.turn is not None:
            self.turn.tell()
        return self._in_flight.get(queue_offset) is message

    def handled(self, queue_offset: int, message: M) -> bool:
        """The application is done with a message; False if it is not this one that is in its hands."""
        if self.turn is not None:
            self.turn.tell()
        if self._in_flight.get(queue_offset) is not message:
            return False
        del self._in_flight[queue_offset]
        return True

    def put_back(self, queue_offset: int) -> None:
        """The message handed out last, the only one in the application's hands, counts as not handed out."""
        if self.turn is not None:
            self.turn.tell()
        self._in_flight.clear()
        self._handed_to = queue_offset

    def cut(self, offset: int) -> None:
        """What was at `offset` and beyond counts no more, handed out or not."""
        if self.turn is not None:
            self.turn.tell()
        self._in_flight = {at: message for at, message in self._in_flight.items() if at < offset}
        self._handed_to = offset

    def restart(self, offset: int) -> None:
        """Go on from `offset`, forwards or backwards; what is in flight no longer counts."""
        if self.turn is not None:
            self.turn.tell()
        self._in_flight.clear()
        self._handed_to = offset
