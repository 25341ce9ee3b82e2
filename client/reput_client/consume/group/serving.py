"""Which of the pulled messages a member delivers next.

Ordinary members deliver messages of several queues to handlers that may finish in any order. Orderly ones deliver one
message of each queue at a time, under its lock; a failed message suspends its queue (RocketMQ:
ConsumeMessageOrderlyService, SUSPEND_CURRENT_QUEUE_A_MOMENT). Messages of the group's retry topic show their original
topic (`RETRY_TOPIC`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count, islice
from time import monotonic
from typing import Final, Protocol

from typing_extensions import override

from reput_client.consume.group.assigned_queue import AssignedQueue, Iteration, Taken
from reput_client.consume.pull import PullResult
from reput_client.errors import DamagedMessage
from reput_client.received import DamagedRecord, PulledRecords, ReceivedMessage
from reput_protocol.properties import RETRY_TOPIC
from reput_protocol.record.message import MessageQueue

_LOOK_AGAIN_S: Final = 0.1
"""When to retry a redelivery whose queue is paused, or not confirmed to be ours."""
POLL_INTERVAL_S: Final = 0.002
"""How long messages are delivered without polling."""
_AT_ONCE: Final = 256
"""How many message objects are created at once, before delivery."""


class RetriedMessage(ReceivedMessage):
    """A message of a retry topic. `topic` is its original topic, `queue` where it was pulled from."""

    __slots__ = ("_topic",)

    def __init__(self, records: PulledRecords, at: int) -> None:
        """See `ReceivedMessage`. Raises `DamagedMessage` if it is damaged."""
        super().__init__(records, at)
        self._topic = self.get_property(RETRY_TOPIC) or records.topic

    @classmethod
    def of(cls, pulled: ReceivedMessage) -> ReceivedMessage:
        """Return the message as applications see it; unchanged if it is damaged or has no original topic."""
        if isinstance(pulled, DamagedRecord):
            return pulled
        try:
            is_retried = bool(pulled.get_property(RETRY_TOPIC))
        except DamagedMessage:
            return pulled
        return pulled._with_class(cls) if is_retried else pulled  # noqa: SLF001

    @property
    def topic(self) -> str:
        """Its original topic."""
        return self._topic

    @property
    def queue(self) -> MessageQueue:
        """The retry topic's queue that it was pulled from."""
        return MessageQueue(self._records.topic, self.broker_name, self.queue_id)


def made_ahead(assigned: AssignedQueue, messages: Iterator[ReceivedMessage]) -> Iterator[ReceivedMessage]:
    """Return an iterator over the next messages of a pull, created ahead and as applications see them."""
    some = list(islice(messages, _AT_ONCE))
    return iter([RetriedMessage.of(message) for message in some] if assigned.is_retry else some)


class Serving(Protocol):
    """Keeps the results of pulls and determines the next message.

    Attributes:
        in_order: whether a queue has at most one message in flight.
        iteration: the application's; every other use of this ends it.
    """

    in_order: bool
    iteration: Iteration

    def add(self, assigned: AssignedQueue, result: PullResult) -> None:
        """Add the result of a pull."""

    def take(self) -> Taken | None:
        """Return the next message that may be delivered now, or None."""

    def begin_iteration(self, taken: Taken) -> None:
        """Start an iteration with `taken`."""

    def again(self, taken: Taken, at: float) -> None:
        """Redeliver a message in flight, not before `at`."""

    def will_come(self, message: ReceivedMessage) -> bool:
        """Whether a delivered message awaits redelivery here."""

    def forget(self, assigned: AssignedQueue) -> None:
        """Drop a queue's undelivered messages. Its progress stays, and so do redeliveries if the queue stays."""

    def next_wake(self) -> float:
        """Return when `take` may have a message even if nothing arrives or is handled."""


class FairServing(Serving):
    """Serves pulls one by one, in the order of their arrival.

    Each queue has at most one waiting result, so a busy queue does not delay the others.
    """

    in_order = False

    def __init__(self, now: Callable[[], float]) -> None:
        self.iteration = Iteration()
        self._now = now
        self._results: deque[tuple[AssignedQueue, PullResult]] = deque()
        self._current: tuple[AssignedQueue, PullResult] | None = None
        self._unmade: Iterator[ReceivedMessage] = iter(())
        self._made: Iterator[ReceivedMessage] = iter(())
        self._later: list[tuple[float, int, Taken]] = []
        self._numbers = count()

    @override
    def add(self, assigned: AssignedQueue, result: PullResult) -> None:
        assigned.waiting_results += 1
        self._results.append((assigned, result))

    @override
    def take(self) -> Taken | None:
        self.iteration.drop_rest()
        if self._later:
            taken = self._take_returned()
            if taken is not None:
                return taken
        while True:
            current = self._current
            if current is not None:
                assigned = current[0]
                message = next(self._made, None)
                if message is None:
                    self._made = made_ahead(assigned, self._unmade)
                    message = next(self._made, None)
                if message is not None:
                    assigned.undelivered -= 1
                    assigned.progress.delivered(message.queue_offset, message)
                    return assigned, message
                self._finish(current)
            if not self._results:
                return None
            self._current = assigned, result = self._results.popleft()
            assigned.waiting_results -= 1
            self._unmade = iter(result.messages)

    @override
    def begin_iteration(self, taken: Taken) -> None:
        current = self._current
        if current is None or current[0] is not taken[0] or taken[0].failures:
            self.iteration.begin(taken)  # a redelivery, or failures must be counted
        else:
            self.iteration.begin(taken, self._made)
            self.iteration.until = monotonic() + POLL_INTERVAL_S

    def _finish(self, current: tuple[AssignedQueue, PullResult]) -> None:
        assigned, result = current
        self._current = None
        assigned.progress.advance(result.next_begin_offset)
        assigned.undelivered_bytes -= result.messages.record_bytes

    def _take_returned(self) -> Taken | None:
        now = self._now()
        while self._later and self._later[0][0] <= now:
            taken = heappop(self._later)[2]
            assigned, message = taken
            if not assigned.progress.holds(message.queue_offset, message):
                continue
            if assigned.is_active and not assigned.paused:
                return taken
            if assigned.leaving_until is None:
                self.again(taken, now + _LOOK_AGAIN_S)
        return None

    @override
    def again(self, taken: Taken, at: float) -> None:
        """Deliver it again; others of its queue are delivered meanwhile; nothing from this one on is committed."""
        heappush(self._later, (at, next(self._numbers), taken))

    @override
    def will_come(self, message: ReceivedMessage) -> bool:
        return any(entry[2][1] is message for entry in self._later)

    @override
    def forget(self, assigned: AssignedQueue) -> None:
        if self.iteration.is_of(assigned):
            self.iteration.drop_rest()
        self._results = deque(entry for entry in self._results if entry[0] is not assigned)
        if self._current is not None and self._current[0] is assigned:
            self._current = None
            self._made = self._unmade = iter(())
        assigned.waiting_results = assigned.undelivered = assigned.undelivered_bytes = 0

    @override
    def next_wake(self) -> float:
        return self._later[0][0] if self._later else float("inf")


class _Line:
    """The pulled messages of one queue, in order."""

    __slots__ = ("assigned", "first", "made", "result", "unmade", "waiting")

    def __init__(self, assigned: AssignedQueue) -> None:
        self.assigned = assigned
        self.first: ReceivedMessage | None = None  # delivered before `made`
        self.made: Iterator[ReceivedMessage] = iter(())
        self.unmade: Iterator[ReceivedMessage] = iter(())
        self.result: PullResult | None = None
        self.waiting: deque[PullResult] = deque()

    def next_message(self) -> ReceivedMessage | None:
        assigned = self.assigned
        while True:
            if self.first is not None:
                message, self.first = self.first, None
                assigned.undelivered -= 1
                return message
            made = next(self.made, None)
            if made is None:
                self.made = made_ahead(assigned, self.unmade)
                made = next(self.made, None)
            if made is not None:
                assigned.undelivered -= 1
                return made
            if self.result is not None:
                assigned.progress.advance(self.result.next_begin_offset)
                assigned.undelivered_bytes -= self.result.messages.record_bytes
                self.result = None
            if not self.waiting:
                return None
            self.result = self.waiting.popleft()
            assigned.waiting_results -= 1
            self.unmade = iter(self.result.messages)


class OrderedServing(Serving):
    """Serves one queue after the other, each only while it has no message in flight."""

    in_order = True

    def __init__(self, now: Callable[[], float]) -> None:
        self.iteration = Iteration()
        self._now = now
        self._lines: dict[AssignedQueue, _Line] = {}
        self._turns: deque[_Line] = deque()

    @override
    def add(self, assigned: AssignedQueue, result: PullResult) -> None:
        assigned.waiting_results += 1
        self._line(assigned).waiting.append(result)

    def _line(self, assigned: AssignedQueue) -> _Line:
        line = self._lines.get(assigned)
        if line is None:
            line = self._lines[assigned] = _Line(assigned)
            self._turns.append(line)
        return line

    @override
    def take(self) -> Taken | None:
        self.iteration.drop_rest()
        now = self._now()
        for _ in range(len(self._turns)):
            line = self._turns[0]
            assigned = line.assigned
            if (
                assigned.paused
                or assigned.progress.in_flight
                or not assigned.suspended_until <= now < assigned.locked_until
            ):
                self._turns.rotate(-1)
                continue
            message = line.next_message()
            if message is None:
                self._turns.popleft()
                del self._lines[assigned]
                continue
            self._turns.rotate(-1)
            assigned.progress.delivered(message.queue_offset, message)
            return assigned, message
        return None

    @override
    def begin_iteration(self, taken: Taken) -> None:
        """Start an iteration, which ends before the queue's lock does."""
        assigned = taken[0]
        line = self._lines.get(assigned)
        if line is None or assigned.failures:
            self.iteration.begin(taken)
        else:
            self.iteration.begin(taken, line.made)
            self.iteration.until = monotonic() + min(POLL_INTERVAL_S, assigned.locked_until - self._now())

    @override
    def again(self, taken: Taken, at: float) -> None:
        """Deliver it again; the queue waits until then."""
        assigned, message = taken
        assigned.progress.put_back(message.queue_offset)
        assigned.suspended_until = at
        assigned.undelivered += 1
        self._line(assigned).first = message

    @override
    def will_come(self, message: ReceivedMessage) -> bool:
        return any(line.first is message for line in self._lines.values())

    @override
    def forget(self, assigned: AssignedQueue) -> None:
        if self.iteration.is_of(assigned):
            self.iteration.drop_rest()
        line = self._lines.pop(assigned, None)
        if line is not None:
            self._turns.remove(line)
        assigned.waiting_results = assigned.undelivered = assigned.undelivered_bytes = 0

    @override
    def next_wake(self) -> float:
        now = self._now()
        times = (line.assigned.suspended_until for line in self._turns)
        return min((at for at in times if at > now), default=float("inf"))
