"""What a member hands out next, of the messages that were pulled.

Ordinary members hand out messages of several queues, to handlers that may finish in any order. Orderly ones
hand out one message of each queue at a time, the next one when that is handled, and only while the queue's
lock is confirmed (see `queue_locks.py`). A message that could not be handled suspends its queue there and
comes again before all others of it (RocketMQ: ConsumeMessageOrderlyService, SUSPEND_CURRENT_QUEUE_A_MOMENT).

What a member could not handle is stored again in the topic `%RETRY%group`, with its own topic in the property
`RETRY_TOPIC`. Every member consumes that topic as well; a message of it shows the topic that it was sent to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count, islice
from time import monotonic
from typing import Final, Protocol

from reput_client.consume.group.assigned import AssignedQueue, Taken
from reput_client.consume.group.turn import Turn
from reput_client.consume.pull import PullResult
from reput_client.errors import DamagedMessage
from reput_client.received import DamagedRecord, PulledRecords, ReceivedMessage
from reput_protocol.record.message import MessageQueue

RETRY_TOPIC_PROPERTY: Final = "RETRY_TOPIC"


class RetriedMessage(ReceivedMessage):
    """A message out of a retry topic. `topic` is where it was sent, `queue` where it came from now."""

    __slots__ = ("_topic",)

    def __init__(self, records: PulledRecords, at: int) -> None:
        """See `ReceivedMessage`; a damaged one is refused."""
        super().__init__(records, at)
        self._topic = self.get_property(RETRY_TOPIC_PROPERTY) or records.topic

    @classmethod
    def of(cls, pulled: ReceivedMessage) -> ReceivedMessage:
        """Return the message as the application sees it; one that is damaged or names no topic as it is."""
        if isinstance(pulled, DamagedRecord):
            return pulled
        try:
            is_retried = bool(pulled.get_property(RETRY_TOPIC_PROPERTY))
        except DamagedMessage:
            return pulled
        return pulled.with_class(cls) if is_retried else pulled

    @property
    def topic(self) -> str:
        """The topic that it was sent to."""
        return self._topic

    @property
    def queue(self) -> MessageQueue:
        """The queue of the retry topic that it was pulled from."""
        return MessageQueue(self._records.topic, self.broker_name, self.queue_id)


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
        """See `Serving`. Others of its queue are handed out meanwhile; nothing from it on is committed."""
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


class _Line:
    """What is here of one queue, in its order."""

    __slots__ = ("assigned", "first", "made", "result", "unmade", "waiting")

    def __init__(self, assigned: AssignedQueue) -> None:
        self.assigned = assigned
        self.first: ReceivedMessage | None = None  # comes before `made`
        self.made: Iterator[ReceivedMessage] = iter(())
        self.unmade: Iterator[ReceivedMessage] = iter(())
        self.result: PullResult | None = None
        self.waiting: deque[PullResult] = deque()

    def next_message(self) -> ReceivedMessage | None:
        assigned = self.assigned
        while True:
            if self.first is not None:
                message, self.first = self.first, None
                assigned.unserved -= 1
                return message
            made = next(self.made, None)
            if made is None:
                self.made = made_ahead(assigned, self.unmade)
                made = next(self.made, None)
            if made is not None:
                assigned.unserved -= 1
                return made
            if self.result is not None:
                assigned.progress.advance(self.result.next_begin_offset)
                assigned.unserved_bytes -= self.result.messages.record_bytes
                self.result = None
            if not self.waiting:
                return None
            self.result = self.waiting.popleft()
            assigned.waiting_results -= 1
            self.unmade = iter(self.result.messages)


class OrderedServing:
    """Serves the queues one after the other, each only while nothing of it is in flight."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.turn = Turn()
        self._now = now
        self._lines: dict[AssignedQueue, _Line] = {}
        self._turns: deque[_Line] = deque()

    def add(self, assigned: AssignedQueue, result: PullResult) -> None:
        """See `Serving`."""
        assigned.waiting_results += 1
        self._line(assigned).waiting.append(result)

    def _line(self, assigned: AssignedQueue) -> _Line:
        line = self._lines.get(assigned)
        if line is None:
            line = self._lines[assigned] = _Line(assigned)
            self._turns.append(line)
        return line

    def take(self) -> Taken | None:
        """See `Serving`."""
        self.turn.rest()
        now = self._now()
        for _ in range(len(self._turns)):
            line = self._turns[0]
            assigned = line.assigned
            if assigned.progress.in_flight or not assigned.suspended_until <= now < assigned.locked_until:
                self._turns.rotate(-1)
                continue
            message = line.next_message()
            if message is None:
                self._turns.popleft()
                del self._lines[assigned]
                continue
            self._turns.rotate(-1)
            assigned.progress.hand_out(message.queue_offset, message)
            return assigned, message
        return None

    def begin_turn(self, taken: Taken) -> None:
        """See `Serving`. It ends before the queue's lock does."""
        assigned = taken[0]
        line = self._lines.get(assigned)
        if line is None or assigned.failures:
            self.turn.begin(taken)
        else:
            self.turn.begin(taken, line.made)
            self.turn.until = monotonic() + min(TURN_S, assigned.locked_until - self._now())

    def again(self, taken: Taken, at: float) -> None:
        """See `Serving`. The queue stands still until then."""
        assigned, message = taken
        assigned.progress.put_back(message.queue_offset)
        assigned.suspended_until = at
        assigned.unserved += 1
        self._line(assigned).first = message

    def will_come(self, message: ReceivedMessage) -> bool:
        """See `Serving`."""
        return any(line.first is message for line in self._lines.values())

    def forget(self, assigned: AssignedQueue) -> None:
        """See `Serving`."""
        if self.turn.is_of(assigned):
            self.turn.rest()
        line = self._lines.pop(assigned, None)
        if line is not None:
            self._turns.remove(line)
        assigned.waiting_results = assigned.unserved = assigned.unserved_bytes = 0

    def next_wake(self) -> float:
        """See `Serving`."""
        now = self._now()
        times = (line.assigned.suspended_until for line in self._turns)
        return min((at for at in times if at > now), default=float("inf"))
