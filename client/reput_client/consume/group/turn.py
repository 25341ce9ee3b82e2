"""The messages that an application or its handlers hold at this moment.

A turn: messages of one queue that an iterating application gets one after the other. Each is handled when the
next is asked for, so all that has to be noted for one is that the application holds it. What that means for
the progress of its queue is computed when it is needed. Everything else (several messages at a time, messages
that come again) goes without a turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint
from typing import TYPE_CHECKING, Final

from reput_client.received import ReceivedMessage

if TYPE_CHECKING:
    from reput_client.consume.group.assigned import AssignedQueue, Taken

_NONE: Final[Iterator[ReceivedMessage]] = iter(())


class Turn:
    """The turn of one consumer, which begins again and again.

    Attributes:
        message: the one in the application's hands, or None.
        messages: those that follow it; who takes one from here puts it into `message` at once.
        until: when to look round before the next one is taken, by `time.monotonic`.
    """

    __slots__ = ("_assigned", "_left", "_told", "message", "messages", "until")

    def __init__(self) -> None:
        self.message: ReceivedMessage | None = None
        self.messages = _NONE
        self.until = float("-inf")
        self._assigned: AssignedQueue | None = None
        self._told: ReceivedMessage | None = None  # the message in hand as the progress knows it
        self._left = 0

    def begin(self, taken: Taken, messages: Iterator[ReceivedMessage] = _NONE) -> None:
        """A message was taken, and `messages` of its queue follow it. The one before is not held any more."""
        self.rest()
        self._assigned, self.message = taken
        self._told = self.message
        self.messages = messages
        self._left = length_hint(messages)
        if self._left:
            self._assigned.progress.turn = self

    def tell(self) -> None:
        """Make the progress of the queue what it should be."""
        told, message, assigned = self._told, self.message, self._assigned
        if message is told or message is None or told is None or assigned is None:
            return
        self._told = message
        left = length_hint(self.messages)
        assigned.unserved -= self._left - left
        self._left = left
        assigned.progress.move_on(told.queue_offset, told, message.queue_offset, message)

    def rest(self) -> None:
        """Nothing follows in this turn. The message in hand stays there."""
        if self._assigned is not None and self._assigned.progress.turn is self:
            self.tell()
            self._assigned.progress.turn = None
        self.messages = _NONE
        self.until = float("-inf")

    def finish(self) -> Taken | None:
        """End the turn and return what was in hand: it is the caller's now."""
        self.rest()
        assigned, message = self._assigned, self.message
        self._assigned = self.message = self._told = None
        return None if assigned is None or message is None else (assigned, message)

    def is_of(self, assigned: AssignedQueue) -> bool:
        """Whether it is the queue's turn."""
        return self._assigned is assigned


class Hands:
    """One hand for each handler that may run at a time; none while `run` does not.

    With one hand it holds the message of the consumer's turn, so that nothing has to be noted here.

    Attributes:
        slots: with several hands, what each of them holds. The code that runs a handler writes its own slot.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.count = 0
        self.slots: list[ReceivedMessage | None] = []

    def begin(self, count: int) -> None:
        """`run` begins, with so many handlers at a time."""
        self.count = count
        self.slots = [None] * (count if count > 1 else 0)

    def end(self) -> None:
        """`run` has ended."""
        self.begin(0)

    @property
    def in_turn(self) -> bool:
        """Whether the message of the turn is a handler's, and not an iterating application's."""
        return self.count == 1

    def held(self) -> list[ReceivedMessage]:
        """Return the messages that handlers have."""
        slots = [self._turn.message] if self.in_turn else self.slots
        return [message for message in slots if message is not None]
