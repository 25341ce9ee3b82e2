"""One queue of a member: what it pulls, holds and has handled, and whether the queue is still the member's."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Generic, Protocol, TypeAlias, TypeVar

from reput_client.consume.pull import Wanted
from reput_client.received import ReceivedMessage
from reput_client.transport.connection import Connection
from reput_client.transport.core import Call
from reput_protocol.record.message import MessageQueue

M = TypeVar("M")


class Unfinished(Protocol):
    """An object that hands messages out and notes it down only when it is asked."""

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
        """Continue from `offset`, forwards or backwards; what is in flight no longer counts."""
        if self.turn is not None:
            self.turn.tell()
        self._in_flight.clear()
        self._handed_to = offset


class AssignedQueue:
    """The state of one queue.

    Attributes:
        next_offset: where the next pull starts.
        committed: the offset that the group is known to have committed, or None.
        confirmed: whether the queue is known to be ours since the connection to its broker was made. While it is not,
            another member may have it: nothing of it is pulled or handed out.
        leaving_until: set once the queue is given up: when what is in flight of it has had time enough. In order that
            is `math.inf`, and the queue goes when nothing is in flight.
        rewound: the broker sent us back, behind what is committed perhaps, so that the next commit may lower it.
        locked_until: until when a queue that is consumed in order may be; for others, for ever.
        suspended_until: when an orderly queue continues whose message could not be handled.
        unserved_bytes: the size of the pulls that messages to be handed out are in.
        held_back: there was no room for another pull; handling a message makes some.
        failures: how often a message in flight could not be handled, by offset.
    """

    def __init__(
        self,
        queue: MessageQueue,
        wanted: Wanted,
        start: int,
        committed: int | None,
        *,
        locked_until: float = math.inf,
        is_retry: bool = False,
    ) -> None:
        self.queue = queue
        self.wanted = wanted
        self.is_retry = is_retry
        self.next_offset = start
        self.progress: QueueProgress[ReceivedMessage] = QueueProgress(start)
        self.committed = committed
        self.confirmed = True
        self.leaving_until: float | None = None
        self.rewound = False
        self.locked_until = locked_until
        self.suspended_until = -math.inf
        self.connection: Connection | None = None
        self.call: Call | None = None
        self.call_deadline = math.inf
        self.pause_until = -math.inf
        self.waiting_results = 0
        self._unserved = 0
        self.unserved_bytes = 0
        self.held_back = False
        self.failures: dict[int, int] = {}

    @property
    def unserved(self) -> int:
        """How many messages were pulled and not handed out."""
        if self.progress.turn is not None:
            self.progress.turn.tell()
        return self._unserved

    @unserved.setter
    def unserved(self, count: int) -> None:
        self._unserved = count

    @property
    def uncommitted(self) -> bool:
        """Whether there is progress that no commit has told yet, or one may have been told that was taken back."""
        return self.rewound or self.progress.position != self.committed

    @property
    def is_served(self) -> bool:
        """Whether messages of it may be pulled and handed out."""
        return self.confirmed and self.leaving_until is None

    @property
    def span(self) -> int:
        """How many offsets lie between what is handled and what was pulled."""
        return self.next_offset - self.progress.position

    def held_bytes(self) -> int:
        """Return the size of what is held: pulls with messages to hand out, and messages in flight."""
        return self.unserved_bytes + sum(message.record_bytes for message in self.progress.in_hand)

    def handled(self, message: ReceivedMessage) -> None:
        """The application is done with `message`."""
        queue_offset = message.queue_offset
        if self.progress.handled(queue_offset, message) and self.failures:
            self.failures.pop(queue_offset, None)

    def cut(self, offset: int) -> None:
        """The queue was set to `offset`: what is in flight from there on counts no more, nor how often it failed."""
        self.progress.cut(offset)
        self.failures = {at: attempts for at, attempts in self.failures.items() if at < offset}

    def go_on_at(self, offset: int, committed: int | None) -> None:
        """Another has had the queue meanwhile: forget what we knew of it."""
        self.next_offset = offset
        self.progress.restart(offset)
        self.committed = committed
        self.rewound = False
        self.failures.clear()


Taken: TypeAlias = tuple[AssignedQueue, ReceivedMessage]
