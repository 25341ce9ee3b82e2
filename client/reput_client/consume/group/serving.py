"""Handing out what was pulled, to handlers that may finish in any order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count, islice
from time import monotonic
from typing import Final, Protocol

from reput_client.consume.group.assigned import AssignedQueue, Taken
from reput_client.consume.group.retry_topic import RetriedMessage
from reput_client.consume.group.turn import Turn
from reput_client.consume.pull_result import PullResult
from reput_client.received import ReceivedMessage

_LOOK_AGAIN_S: Final = 0.1
"""How soon a message to come again is looked at again while its queue is not known to be ours."""
TURN_S: Final = 0.002
"""How long messages are handed out without a look at anything else; a turn's message in hand may take any time."""
_AT_ONCE: Final = 256
"""How many messages are made at once, ahead of being handed out."""


def made_ahead(assigned: AssignedQueue, messages: Iterator[ReceivedMessage]) -> Iterator[ReceivedMessage]:
    """Return an iterator over the next messages of a pull, made already and as the application sees them."""
    some = list(islice(messages, _AT_ONCE))
    return iter([RetriedMessage.of(message) for message in some] if assigned.is_retry else some)


class Serving(Protocol):
    """Keeps what pulls have brought and says what comes next.

    Attributes:
        turn: the turn of an iterating application; it ends with whatever else is asked of this.
    """

    turn: Turn

    def add(self, assigned: AssignedQueue, result: PullResult) -> None:
        """A pull has brought messages."""

    def take(self) -> Taken | None:
        """Return the next message that may be handed out now, or None."""

    def begin_turn(self, taken: Taken) -> None:
        """The message just taken is handled when the next is asked for, and so are those that follow it."""

    def again(self, taken: Taken, at: float) -> None:
        """The message in the application's hands comes once more, not before `at`."""

    def will_come(self, message: ReceivedMessage) -> bool:
        """Whether a message that was handed out waits here to come again."""

    def forget(self, assigned: AssignedQueue) -> None:
        """Drop what is not handed out of a queue. Its progress stays, and what is to come again, if the queue does."""

    def next_wake(self) -> float:
        """Return when `take` may have something although nothing arrives and nothing is handled."""


class FairServing:
    """Serves pulls whole, in the order in which they arrived.

    With one result waiting for each queue at most, a busy queue cannot push ahead of the others.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.turn = Turn()
        self._now = now
        self._results: deque[tuple[AssignedQueue, PullResult]] = deque()
        self._serving: tuple[AssignedQueue, PullResult] | None = None
        self._unmade: Iterator[ReceivedMessage] = iter(())
        self._made: Iterator[ReceivedMessage] = iter(())
        self._later: list[tuple[float, int, Taken]] = []
        self._numbers = count()

    def add(self, assigned: AssignedQueue, result: PullResult) -> None:
        """See `Serving`."""
        assigned.waiting_results += 1
        self._results.append((assigned, result))

    def take(self) -> Taken | None:
        """See `Serving`."""
        self.turn.rest()
        if self._later:
            taken = self._take_returned()
            if taken is not None:
                return taken
        while True:
            serving = self._serving
            if serving is not None:
                assigned = serving[0]
                message = next(self._made, None)
                if message is None:
                    self._made = made_ahead(assigned, self._unmade)
                    message = next(self._made, None)
                if message is not None:
                    assigned.unserved -= 1
                    assigned.progress.hand_out(message.queue_offset, message)
                    return assigned, message
                self._finish(serving)
            if not self._results:
                return None
            self._serving = assigned, result = self._results.popleft()
            assigned.waiting_results -= 1
            self._unmade = iter(result.messages)

    def begin_turn(self, taken: Taken) -> None:
        """See `Serving`."""
        serving = self._serving
        if serving is None or serving[0] is not taken[0] or taken[0].failures:
            self.turn.begin(taken)  # it came once more, or failures are to be counted
        else:
            self.turn.begin(taken, self._made)
            self.turn.until = monotonic() + TURN_S

    def _finish(self, serving: tuple[AssignedQueue, PullResult]) -> None:
        assigned, result = serving
        self._serving = None
        assigned.progress.advance(result.next_begin_offset)
        assigned.unserved_bytes -= result.messages.record_bytes

    def _take_returned(self) -> Taken | None:
        now = self._now()
        while self._later and self._later[0][0] <= now:
            taken = heappop(self._later)[2]
            assigned, message = taken
            if assigned.is_served and assigned.progress.holds(message.queue_offset, message):
                return taken
            if not assigned.confirmed and assigned.leaving_until is None:
                self.again(taken, now + _LOOK_AGAIN_S)
        return None

    def again(self, taken: Taken, at: float) -> None:
        """See `Serving`. Others of its queue go on meanwhile; nothing from it on is committed."""
        heappush(self._later, (at, next(self._numbers), taken))

    def will_come(self, message: ReceivedMessage) -> bool:
        """See `Serving`."""
        return any(entry[2][1] is message for entry in self._later)

    def forget(self, assigned: AssignedQueue) -> None:
        """See `Serving`."""
        if self.turn.is_of(assigned):
            self.turn.rest()
        self._results = deque(entry for entry in self._results if entry[0] is not assigned)
        if self._serving is not None and self._serving[0] is assigned:
            self._serving = None
            self._made = self._unmade = iter(())
        assigned.waiting_results = assigned.unserved = assigned.unserved_bytes = 0

    def next_wake(self) -> float:
        """See `Serving`."""
        return self._later[0][0] if self._later else float("inf")
