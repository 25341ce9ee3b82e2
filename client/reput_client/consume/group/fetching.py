"""The pulls of a member: one long poll for each of its queues, all at the same time, as far as flow control
allows.

(RocketMQ: pullThresholdForQueue, pullThresholdSizeForQueue, consumeConcurrentlyMaxSpan.)
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from reput_client.consume.group.assigned import AssignedQueue
from reput_client.consume.group.serving import Serving
from reput_client.consume.pull import (
    PULL_BYTES_MAX,
    PULL_GRACE_S,
    PULL_MESSAGES_MAX,
    PullResult,
    PullStatus,
    pull_ext,
    pull_result,
)
from reput_client.errors import BrokerNotFound, ClientClosed, ConnectFailed
from reput_client.transport.connection import Connection
from reput_client.transport.core import Call, Waiter
from reput_client.transport.session import Session
from reput_protocol.codes import RequestCode
from reput_protocol.errors import BrokerError
from reput_protocol.record.message import MessageQueue

_LEAST_PART: Final = 4
"""What part of a queue's messages must be handled before more is pulled."""


class Room(NamedTuple):
    """How much the next pull of a queue may bring."""

    messages: int
    size_b: int


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Bounds on what is pulled and not yet handled.

    Attributes:
        prefetch_messages, prefetch_bytes: over all queues; each queue's pull brings at most its share.
        queue_messages_max, queue_bytes_max: of one queue. Bytes count whole pulls: one message keeps its pull alive.
        queue_span_max: from the first offset that is not handled to the last that was pulled. One handler that hangs
            would otherwise hold the commit back without end, and what must come again after a crash would grow.
    """

    prefetch_messages: int = 2048
    prefetch_bytes: int = 16 * 1024 * 1024
    queue_messages_max: int = 1000
    queue_bytes_max: int = 100 * 1024 * 1024
    queue_span_max: int = 2000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be 1 or more, not {value}")

    def room(
        self,
        queues: int,
        messages: int,
        size_b: int,
        span: int,
        *,
        pull_messages: int,
        pull_bytes: tuple[int, int],
    ) -> Room | None:
        """Return what may be pulled of a queue that holds so much, one of `queues`; None: nothing for now.

        `pull_messages` and `pull_bytes` bound any pull; below the lower of the two sizes none is worth its while, nor
        is one for a few messages while there are others to be handled first.
        """
        if span >= self.queue_span_max or size_b >= self.queue_bytes_max:
            return None
        share = max(1, min(pull_messages, self.prefetch_messages // queues))
        share_b = self.prefetch_bytes // queues
        room = self.queue_messages_max - messages
        if room < min(share, max(1, self.queue_messages_max // _LEAST_PART)):
            return None
        return Room(
            min(share, room),
            max(pull_bytes[0], min(pull_bytes[1], share_b, self.queue_bytes_max - size_b)),
        )


_POLL_S: Final = 15.0
_PAUSE_AFTER_REFUSAL_S: Final = 1.0
_PAUSE_AFTER_CONNECT_FAILED_S: Final = 0.1
_PULL_BYTES_MIN: Final = 64 * 1024

log = logging.getLogger("reput_client")


class Fetcher:
    """Pulls from several queues at a time.

    Bounds: a queue has either one pull in progress or one result waiting to be served; see `FlowLimits` for the rest.

    What is done for one message costs the same with a thousand other queues, which wait with a pull each.

    Attributes:
        queues: what is ours, by queue.
        waiter: notified when a pull is answered, or `take` of the serving may have something new for another reason.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        serving: Serving,
        limits: FlowLimits,
        *,
        in_order: bool,
        commit_with_pulls: bool,
    ) -> None:
        self._session = session
        self._group = group
        self._serving = serving
        self._limits = limits
        self._in_order = in_order
        self._commit_with_pulls = commit_with_pulls
        self.queues: dict[MessageQueue, AssignedQueue] = {}
        self.waiter = Waiter()
        self._idle: dict[AssignedQueue, None] = {}  # no pull is in progress; also some that have left
        self._answered: deque[tuple[AssignedQueue, Call]] = deque()
        self._earliest_deadline = math.inf  # of the pulls in progress, or earlier

    def add(self, assigned: AssignedQueue) -> None:
        """Pull from one more queue."""
        self.queues[assigned.queue] = assigned
        self._idle[assigned] = None
        self.wake()

    def wake(self) -> None:
        """Wake the caller that waits for messages."""
        self._session.pump.wake(self.waiter)

    def halt(self, assigned: AssignedQueue) -> None:
        """Drop what was pulled of a queue and not handed out; it is pulled again from there, if it is at all."""
        self._abandon(assigned)
        self._serving.forget(assigned)
        assigned.next_offset = assigned.progress.handed_to

    def go_on_at(self, assigned: AssignedQueue, offset: int) -> None:
        """The group's offset of a queue was set: what is beyond it in flight counts no more.

        A commit that was on its way meanwhile may have raised the offset again, so that the next may lower it.
        """
        self.halt(assigned)
        assigned.rewound = offset < assigned.progress.position
        assigned.cut(offset)
        assigned.next_offset = assigned.committed = offset

    def rewind(self) -> None:
        """Hand out again what was handed out and not handled."""
        for assigned in self.queues.values():
            if assigned.progress.in_flight:
                self.rewind_queue(assigned)

    def rewind_queue(self, assigned: AssignedQueue) -> None:
        """Hand out again what is in flight of one queue, by pulling it again."""
        assigned.progress.restart(assigned.progress.position)
        self.halt(assigned)
        self.wake()

    # -- pulls -------------------------------------------------------------------------------------------------

    async def pull_more(self, deadline: float) -> None:
        """Start a pull for every queue that may have one. Waits only to connect, and not beyond `deadline`.

        A broker that cannot be reached is tried again later; `next_wake` says when.
        """
        used: set[Connection] = set()
        for assigned in list(self._idle):
            if self.queues.get(assigned.queue) is not assigned:
                self._idle.pop(assigned, None)
            elif self._wants_pull(assigned) and assigned.pause_until <= self._session.runtime.now():
                await self._start(assigned, deadline)
                if assigned.connection is not None:
                    used.add(assigned.connection)
        for connection in used:
            connection.flush_now()

    def _wants_pull(self, assigned: AssignedQueue) -> bool:
        return (
            assigned.call is None
            and not assigned.waiting_results
            and assigned.is_served
            and not (assigned.held_back and self._room(assigned) is None)
        )

    async def _start(self, assigned: AssignedQueue, deadline: float) -> None:
        session = self._session
        deadline = min(session.deadline(None), deadline)
        queue = assigned.queue
        room = self._room(assigned)
        assigned.held_back = room is None
        if room is None:
            return
        try:
            connection = await session.open_for(queue, deadline)
        except (ConnectFailed, BrokerNotFound) as error:
            log.warning("consumer of %s: %s", queue.topic, error)
            for other in self.queues.values():
                # All of this broker's queues wait for the same connection; only the first need try.
                if other.queue.broker_name == queue.broker_name:
                    other.pause_until = session.runtime.now() + _PAUSE_AFTER_CONNECT_FAILED_S
            return
        if self.queues.get(queue) is not assigned or not self._wants_pull(assigned):
            return  # another's by now, or no longer known to be ours, while we waited for the connection
        position = assigned.progress.position
        commits = self._commit_with_pulls and not assigned.rewound and position != assigned.committed
        ext = pull_ext(
            self._group,
            queue.topic,
            queue.queue_id,
            assigned.next_offset,
            assigned.wanted,
            max_messages=room.messages,
            max_bytes=room.size_b,
            wait_s=_POLL_S,
            commit_offset=position if commits else None,
        )
        assigned.connection = connection
        arrival = _Arrival(self, assigned)
        assigned.call = arrival.call = connection.start(RequestCode.PULL_MESSAGE, ext, arrival)
        assigned.call_deadline = session.runtime.now() + _POLL_S + PULL_GRACE_S
        self._earliest_deadline = min(self._earliest_deadline, assigned.call_deadline)
        self._idle.pop(assigned, None)

    def _room(self, assigned: AssignedQueue) -> Room | None:
        return self._limits.room(
            max(1, len(self.queues)),
            assigned.unserved + assigned.progress.in_flight,
            assigned.held_bytes(),
            0 if self._in_order else assigned.span,
            pull_messages=PULL_MESSAGES_MAX,
            pull_bytes=(_PULL_BYTES_MIN, PULL_BYTES_MAX),
        )

    def collect(self) -> bool:
        """Take the answers that have come; True if they have brought messages.

        Raises:
            BrokerError: a refusal that waiting does not cure.
            RecordMalformed: what a broker sent is no records.
        """
        self.waiter.ready = False
        brought = False
        while self._answered:
            assigned, call = self._answered.popleft()
            if assigned.call is call:  # else it was abandoned
                assigned.call = None
                self._idle[assigned] = None
                brought |= self._take_answer(assigned, call)
        if self._session.runtime.now() >= self._earliest_deadline:
            self._ask_again()
        return brought

    def answered(self, assigned: AssignedQueue, call: Call) -> None:
        """The pull of a queue is over; `collect` takes its answer."""
        self._answered.append((assigned, call))
        self.waiter.notify()

    def _ask_again(self) -> None:
        """Give up pulls that have got no answer in time."""
        now = self._session.runtime.now()
        earliest = math.inf
        for assigned in self.queues.values():
            if assigned.call is None:
                continue
            if now >= assigned.call_deadline:
                log.warning("consumer of %s: no answer to a pull, asking again", assigned.queue.topic)
                if assigned.connection is not None:
                    assigned.connection.doubt(now - PULL_GRACE_S)
                self._abandon(assigned)
            else:
                earliest = min(earliest, assigned.call_deadline)
        self._earliest_deadline = earliest

    def _take_answer(self, assigned: AssignedQueue, call: Call) -> bool:
        queue = assigned.queue
        if call.error is not None:
            if not isinstance(call.error, ClientClosed):
                log.warning("consumer of %s/%d: %s", queue.topic, queue.queue_id, call.error)
            return False
        try:
            result = pull_result(queue, assigned.next_offset, call, assigned.wanted)
        except BrokerError as error:
            if not error.retryable and not assigned.is_retry:
                raise
            log.warning("consumer of %s/%d: %s", queue.topic, queue.queue_id, error)
            assigned.pause_until = self._session.runtime.now() + _PAUSE_AFTER_REFUSAL_S
            return False
        if result.status is PullStatus.OFFSET_ILLEGAL:
            self._moved(assigned, result)
            return False
        assigned.next_offset = result.next_begin_offset
        if len(result.messages):
            assigned.unserved += len(result.messages)
            assigned.unserved_bytes += result.messages.record_bytes
            self._serving.add(assigned, result)
            return True
        if not assigned.unserved and not assigned.waiting_results:
            assigned.progress.advance(result.next_begin_offset)
        return False

    def _moved(self, assigned: AssignedQueue, result: PullResult) -> None:
        """The broker wants us elsewhere: an administrator has set the group's offset, or nothing is where we pull."""
        offset, asked = result.next_begin_offset, assigned.next_offset
        if result.min_offset <= asked <= result.max_offset:
            log.info("queue %s was set to offset %d", assigned.queue, offset)
            self.go_on_at(assigned, offset)
            return
        log.warning(
            "consumer of %s/%d: offset %d is outside [%d, %d), going on at %d",
            assigned.queue.topic,
            assigned.queue.queue_id,
            asked,
            result.min_offset,
            result.max_offset,
            offset,
        )
        if offset == asked:
            assigned.pause_until = self._session.runtime.now() + _PAUSE_AFTER_REFUSAL_S
        elif offset < asked:
            # The broker itself says that nothing is there, so the next commit may lower the offset.
            assigned.rewound |= offset < assigned.progress.position
            self._serving.forget(assigned)
            assigned.cut(offset)
        assigned.next_offset = offset
        if not assigned.unserved and not assigned.waiting_results:
            assigned.progress.advance(offset)

    def next_wake(self) -> float:
        """Return when `collect` or `pull_more` will have something to do although no answer has come."""
        now = self._session.runtime.now()
        wake = self._earliest_deadline
        for assigned in self._idle:
            if self._wants_pull(assigned):
                wake = min(wake, max(now, assigned.pause_until))
        return wake

    def _abandon(self, assigned: AssignedQueue) -> None:
        call, assigned.call = assigned.call, None
        if call is not None and assigned.connection is not None:
            assigned.connection.abandon(call)
            self._idle[assigned] = None

    def forget(self) -> None:
        """In a forked child: nothing is ours, and what was asked for comes to the parent."""
        self.queues.clear()
        self._idle.clear()
        self._answered.clear()
        self._earliest_deadline = math.inf


class _Arrival(Waiter):
    """Notes the end of a pull."""

    __slots__ = ("_assigned", "_fetcher", "call")

    def __init__(self, fetcher: Fetcher, assigned: AssignedQueue) -> None:
        super().__init__()
        self._fetcher = fetcher
        self._assigned = assigned
        self.call: Call | None = None

    def notify(self) -> None:
        """The answer is here, or the connection is gone."""
        super().notify()
        if self.call is not None:
            self._fetcher.answered(self._assigned, self.call)
