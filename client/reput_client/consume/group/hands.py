"""What the handlers of `run` have in their hands, for whoever looks for handlers that hang."""

from __future__ import annotations

from reput_client.consume.group.turn import Turn
from reput_client.received import ReceivedMessage


class Hands:
    """One hand for each handler that may run at a time; none while `run` does not.

    With one hand it holds the message of the consumer's turn, so that nothing has to be noted here.

    Attributes:
        slots: with several hands, what each of them holds. Whoever handles messages writes its own.
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
