"""One queue of a member: what was pulled, delivered and handled, and whether the member still has it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from operator import length_hint
from time import monotonic
from typing import Final, Generic, TypeAlias, TypeVar

from reput_client.consume.pull import MessageSelector
from reput_client.received import ReceivedMessage
from reput_client.transport.address import Address
from reput_client.transport.connection import BrokerConnection
from reput_protocol.commands.topic import MASTER_ID
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call

M = TypeVar("M")

_NONE: Final[Iterator[ReceivedMessage]] = iter(())


class QueueProgress(Generic[M]):
    """Which messages of one queue were delivered and handled.

    Invariant: `position` never exceeds the offset of a delivered, unhandled message, so a commit of `position` loses
    nothing, in whatever order handlers finish.

    While an application iterates over the queue, what it has taken and handled is not noted one by one: `sync` does
    that, first in all methods here except `move_on`, which it uses.

    Attributes:
        iteration: the iteration over this queue, or None.
    """

    __slots__ = ("_delivered_to", "_in_flight", "iteration")

    def __init__(self, start: int) -> None:
        self._delivered_to = start
        self._in_flight: dict[int, M] = {}  # in order of delivery, except messages put back
        self.iteration: Iteration | None = None

    def sync(self) -> None:
        """Note what an iterating application has taken and handled."""
        if self.iteration is not None:
            self.iteration.update_progress()

    @property
    def position(self) -> int:
        """The offset of the first unhandled message, which may be committed."""
        self.sync()
        return next(iter(self._in_flight), self._delivered_to)

    @property
    def delivered_to(self) -> int:
        """The offset after the last delivered message."""
        self.sync()
        return self._delivered_to

    @property
    def in_flight(self) -> int:
        """How many messages are delivered and not handled."""
        self.sync()
        return len(self._in_flight)

    @property
    def unhandled(self) -> Collection[M]:
        """The delivered and unhandled messages, by offset."""
        self.sync()
        return self._in_flight.values()

    def delivered(self, queue_offset: int, message: M) -> None:
        """Note the delivery of a message."""
        if self.iteration is not None:  # `sync` inlined: for every message
            self.iteration.update_progress()
        self._in_flight[queue_offset] = message
        self._delivered_to = queue_offset + 1

    def move_on(self, last_offset: int, last: M, queue_offset: int, message: M) -> None:
        """Note that everything up to `last` and before `message` is handled, and `message` is delivered."""
        if self._in_flight.get(last_offset) is last:
            del self._in_flight[last_offset]
        self._in_flight[queue_offset] = message
        self._delivered_to = queue_offset + 1

    def advance(self, next_offset: int) -> None:
        """Note that everything below `next_offset` was delivered, filtered out, or does not exist."""
        self.sync()
        self._delivered_to = max(self._delivered_to, next_offset)

    def holds(self, queue_offset: int, message: M) -> bool:
        """Whether `message` is delivered and not handled."""
        self.sync()
        return self._in_flight.get(queue_offset) is message

    def handled(self, queue_offset: int, message: M) -> bool:
        """Note that a message is handled; False if it is not in flight."""
        if self.iteration is not None:  # `sync` inlined: for every message
            self.iteration.update_progress()
        if self._in_flight.get(queue_offset) is not message:
            return False
        del self._in_flight[queue_offset]
        return True

    def handled_before(self, offset: int) -> None:
        """Note that all delivered messages below `offset` are handled."""
        self.sync()
        self._in_flight = {at: message for at, message in self._in_flight.items() if at >= offset}

    def put_back(self, queue_offset: int) -> None:
        """Count the last delivered message, the only one in flight, as not delivered."""
        self.sync()
        self._in_flight.clear()
        self._delivered_to = queue_offset

    def truncate(self, offset: int) -> None:
        """Forget everything from `offset` on."""
        self.sync()
        self._in_flight = {at: message for at, message in self._in_flight.items() if at < offset}
        self._delivered_to = offset

    def restart(self, offset: int) -> None:
        """Continue at `offset`, in either direction, with nothing in flight."""
        self.sync()
        self._in_flight.clear()
        self._delivered_to = offset


class AssignedQueue:
    """The state of one queue (RocketMQ: ProcessQueue).

    Attributes:
        started_at: the offset of the first message that this member has read.
        next_offset: where the next pull starts.
        committed: the committed offset as far as known, or None; `committed_at`: the address that said so.
        reads_from: the id of the broker's member that the master suggests for pulls; 0 is the master.
        from_slave: whether the last pull went to a slave.
        confirmed: whether the queue is this member's on the present connection to its broker. If not, another member
            may have it, so nothing is pulled or delivered.
        leaving_until: set once the queue is given up: when to stop waiting for messages in flight; in order `math.inf`.
        announced: `on_assigned` has been called with it; before, nothing is pulled.
        paused: the application wants no messages of it now, so nothing is pulled or delivered.
        rewound: the broker or the application sent us back, perhaps below the committed offset, so the next commit may
            lower it.
        locked_until: until when the lock is reliable, in order; otherwise `math.inf`.
        suspended_until: when an orderly queue with a failed message continues.
        undelivered_bytes: the size of the pulls with undelivered messages.
        held_back: there was no room for another pull; handling a message may make some.
        failures: how often each message in flight failed, by offset.
        deciding: offsets of messages that have failed, while `on_failure` decides.
        refusal: why the broker refuses pulls, as it was logged; None if it does not.
    """

    def __init__(
        self,
        queue: MessageQueue,
        wanted: MessageSelector,
        start: int,
        committed: int | None,
        *,
        locked_until: float = math.inf,
        is_retry: bool = False,
    ) -> None:
        self.queue = queue
        self.wanted = wanted
        self.is_retry = is_retry
        self.started_at = start
        self.next_offset = start
        self.progress: QueueProgress[ReceivedMessage] = QueueProgress(start)
        self.committed = committed
        self.committed_at: Address | None = None
        self.reads_from = MASTER_ID
        self.from_slave = False
        self.refusal: str | None = None
        self.confirmed = True
        self.leaving_until: float | None = None
        self.announced = True
        self.paused = False
        self.rewound = False
        self.locked_until = locked_until
        self.suspended_until = -math.inf
        self.connection: BrokerConnection | None = None
        self.call: Call | None = None
        self.call_deadline = math.inf
        self.pause_until = -math.inf
        self.waiting_results = 0
        self._undelivered = 0
        self.undelivered_bytes = 0
        self.held_back = False
        self.failures: dict[int, int] = {}
        self.deciding: set[int] = set()

    @property
    def undelivered(self) -> int:
        """How many messages were pulled and not delivered."""
        self.progress.sync()
        return self._undelivered

    @undelivered.setter
    def undelivered(self, count: int) -> None:
        self._undelivered = count

    @property
    def uncommitted(self) -> bool:
        """Whether there is progress to commit, or a commit to lower."""
        return self.rewound or self.progress.position != self.committed

    @property
    def is_active(self) -> bool:
        """Whether its messages may be pulled and delivered now: it is confirmed to be ours, and not being given up."""
        return self.confirmed and self.leaving_until is None

    @property
    def span(self) -> int:
        """Offsets between what is handled and what was pulled."""
        return self.next_offset - self.progress.position

    def held_bytes(self) -> int:
        """Return the size of undelivered pulls and messages in flight."""
        return self.undelivered_bytes + sum(message.record_bytes for message in self.progress.unhandled)

    def handled(self, message: ReceivedMessage) -> None:
        """Note that a message is handled."""
        queue_offset = message.queue_offset
        if self.progress.handled(queue_offset, message) and self.failures:
            self.failures.pop(queue_offset, None)

    def handled_before(self, offset: int) -> None:
        """Note that all delivered messages below `offset` are handled."""
        self.progress.handled_before(offset)
        self.failures = {at: attempts for at, attempts in self.failures.items() if at >= offset}

    def reset_to(self, offset: int) -> None:
        """Forget progress and failures from `offset` on, after the queue was set to it."""
        self.progress.truncate(offset)
        self.failures = {at: attempts for at, attempts in self.failures.items() if at < offset}

    def restart(self, offset: int, committed: int | None) -> None:
        """Continue at `offset` with nothing known, since another member may have had the queue."""
        self.next_offset = offset
        self.progress.restart(offset)
        self.committed = committed
        self.rewound = False
        self.failures.clear()


Taken: TypeAlias = tuple[AssignedQueue, ReceivedMessage]


class Iteration:
    """Messages of one queue that an application gets one after the other; reused for the next run.

    A message is handled when the next is requested. Only the current one is noted for each; the queue's progress is
    behind until it asks (`QueueProgress.sync`). Taking several messages at a time and redelivery work without this.

    Attributes:
        message: the current message, or None.
        messages: those that follow; a caller that takes one from here stores it in `message` at once.
        until: when to poll before taking the next one, by `time.monotonic`.
    """

    __slots__ = ("_assigned", "_left", "_noted", "message", "messages", "until")

    def __init__(self) -> None:
        self.message: ReceivedMessage | None = None
        self.messages = _NONE
        self.until = float("-inf")
        self._assigned: AssignedQueue | None = None
        self._noted: ReceivedMessage | None = None  # the current message by the progress
        self._left = 0

    def begin(self, taken: Taken, messages: Iterator[ReceivedMessage] = _NONE) -> None:
        """Start with a taken message and the `messages` that follow it in its queue."""
        self.drop_rest()
        self._assigned, self.message = taken
        self._noted = self.message
        self.messages = messages
        self._left = length_hint(messages)
        if self._left:
            self._assigned.progress.iteration = self

    def next_now(self) -> ReceivedMessage | None:
        """Make the next message the current one and return it; None if there is none here, or a poll is due.

        Callers that do this for every message inline it.
        """
        if monotonic() < self.until:
            message = next(self.messages, None)
            if message is not None:
                self.message = message
                return message
        return None

    def update_progress(self) -> None:
        """Note in the progress of the queue that the messages before the current one are handled."""
        noted, message, assigned = self._noted, self.message, self._assigned
        if message is noted or message is None or noted is None or assigned is None:
            return
        self._noted = message
        left = length_hint(self.messages)
        assigned.undelivered -= self._left - left
        self._left = left
        assigned.progress.move_on(noted.queue_offset, noted, message.queue_offset, message)

    def drop_rest(self) -> None:
        """Drop the messages after the current one."""
        if self._assigned is not None and self._assigned.progress.iteration is self:
            self.update_progress()
            self._assigned.progress.iteration = None
        self.messages = _NONE
        self.until = float("-inf")

    def finish(self) -> Taken | None:
        """End the iteration and return its current message."""
        self.drop_rest()
        assigned, message = self._assigned, self.message
        self._assigned = self.message = self._noted = None
        return None if assigned is None or message is None else (assigned, message)

    def is_of(self, assigned: AssignedQueue) -> bool:
        """Whether the iteration is over this queue."""
        return self._assigned is assigned
