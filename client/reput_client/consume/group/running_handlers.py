"""The handlers of `run` of a group member, and which messages they have."""

from __future__ import annotations

from reput_client.consume.group.assigned_queue import Iteration
from reput_client.received import ReceivedMessage


class RunningHandlers:
    """How many handlers may run at a time (0 without `run`), and the message of each.

    A single handler has the iteration's current message, so nothing is noted here.

    Attributes:
        slots: with several handlers, the message of each; the code that runs a handler updates its slot.
    """

    def __init__(self, iteration: Iteration) -> None:
        self._iteration = iteration
        self.count = 0
        self.slots: list[ReceivedMessage | None] = []

    def begin(self, count: int) -> None:
        """Note the start of `run` with `count` handlers."""
        self.count = count
        self.slots = [None] * (count if count > 1 else 0)

    def end(self) -> None:
        """Note the end of `run`."""
        self.begin(0)

    @property
    def is_single(self) -> bool:
        """Whether there is one handler, which has the iteration's current message."""
        return self.count == 1

    def held(self) -> list[ReceivedMessage]:
        """Return the messages that handlers have."""
        slots = [self._iteration.message] if self.is_single else self.slots
        return [message for message in slots if message is not None]
