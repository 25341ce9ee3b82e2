"""How far a queue has been handled: the offset that may be committed. Pure."""

from __future__ import annotations


class QueueProgress:
    """What was handed out of one queue and what has been handled.

    Invariant: `position` never exceeds the offset of a message that was handed out and not yet handled. So a
    commit of `position` can lose nothing, in whatever order handlers finish.
    """

    __slots__ = ("_handed_to", "_in_flight")

    def __init__(self, start: int) -> None:
        self._handed_to = start
        self._in_flight: dict[int, None] = {}  # in the order of handing out, so the lowest comes first

    @property
    def position(self) -> int:
        """The offset of the first message that is not handled; what a commit may say."""
        return next(iter(self._in_flight), self._handed_to)

    @property
    def in_flight(self) -> int:
        """How many messages are handed out and not handled."""
        return len(self._in_flight)

    def hand_out(self, queue_offset: int) -> None:
        """The message at `queue_offset` goes to the application."""
        self._in_flight[queue_offset] = None
        self._handed_to = queue_offset + 1

    def advance(self, next_offset: int) -> None:
        """Everything below `next_offset` was handed out or was not for us (the filter, a gap)."""
        self._handed_to = max(self._handed_to, next_offset)

    def handled(self, queue_offset: int) -> None:
        """The application is done with a message."""
        self._in_flight.pop(queue_offset, None)

    def restart(self, offset: int) -> None:
        """Go on from `offset`, forwards or backwards; what is in flight no longer counts."""
        self._in_flight.clear()
        self._handed_to = offset
