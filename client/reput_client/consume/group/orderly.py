"""Handing out in order: of each queue one message at a time, the next one when that is handled.

A queue is served only while its lock is confirmed (see `queue_locks.py`). A message that could not be handled suspends
its queue and comes again before all others of it (RocketMQ: ConsumeMessageOrderlyService,
SUSPEND_CURRENT_QUEUE_A_MOMENT).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic

from reput_client.consume.group.assigned import AssignedQueue, Taken
from reput_client.consume.group.serving import TURN_S, made_ahead
from reput_client.consume.group.turn import Turn
from reput_client.consume.pull_result import PullResult
from reput_client.received import ReceivedMessage


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
    """Serves the queues in turn, each only while nothing of it is in flight."""

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
