"""The pulls of a member: a long poll for each queue, within the limits of flow control.

(RocketMQ: pullThresholdForQueue, pullThresholdSizeForQueue, consumeConcurrentlyMaxSpan.)
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from typing_extensions import override

from reput_client.consume.group.assigned_queue import AssignedQueue
from reput_client.consume.group.options import ConsumerOptions, Room
from reput_client.consume.group.serving import Serving
from reput_client.consume.pull import PULL_GRACE_S, PullResult, PullStatus, pull_ext, pull_result
from reput_client.errors import BrokerNotFound, ClientClosed, ConnectFailed
from reput_client.received import Deliverer
from reput_client.transport.address import Address
from reput_client.transport.channel import RequestTemplate
from reput_client.transport.connection import BrokerConnection
from reput_client.transport.session import Session
from reput_protocol.codes import RequestCode
from reput_protocol.commands.topic import MASTER_ID
from reput_protocol.errors import BrokerError, NotMaster, TopicNotFound
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.channel import Call, Waiter

_POLL_S: Final = 15.0
_PAUSE_AFTER_REFUSAL_S: Final = 1.0
_PAUSE_AFTER_CONNECT_FAILED_S: Final = 0.1
log = logging.getLogger("reput_client")


class Fetcher:
    """Pulls from several queues concurrently.

    A queue has either one pull in progress or one result waiting to be served. The cost of a message does not depend on
    the number of other queues that wait with a pull.

    Attributes:
        queues: the member's queues.
        waiter: notified when a pull is answered, or when serving may have a message for another reason.
    """

    def __init__(
        self,
        session: Session,
        options: ConsumerOptions[Any],
        serving: Serving,
        source: Callable[[str], Address | None],
        deliverer: Deliverer,
    ) -> None:
        """`source` returns where the queues of a broker may be pulled from now; `deliverer` is of the messages."""
        self._session = session
        self._options = options
        self._serving = serving
        self._limits = options.limits
        self._source = source
        self._deliverer = deliverer
        self.queues: dict[MessageQueue, AssignedQueue] = {}
        self.waiter = Waiter()
        self._idle: dict[AssignedQueue, None] = {}  # without a pull in progress; includes some given-up queues
        self._answered: deque[tuple[AssignedQueue, Call]] = deque()
        self._earliest_deadline = math.inf  # of the pulls in progress, or earlier

    def add(self, assigned: AssignedQueue) -> None:
        """Start to pull from a queue."""
        self.queues[assigned.queue] = assigned
        self._idle[assigned] = None
        self.wake()

    def wake(self) -> None:
        """Wake the caller that waits for messages."""
        self._session.pump.wake(self.waiter)

    def halt(self, assigned: AssignedQueue) -> None:
        """Drop what was pulled of a queue and not delivered; later pulls start there again."""
        self._abandon(assigned)
        self._serving.forget(assigned)
        assigned.next_offset = assigned.progress.delivered_to

    def reset_to(self, assigned: AssignedQueue, offset: int) -> None:
        """Continue at an offset that was set for the group; messages in flight beyond it are forgotten.

        A commit in progress may have raised the offset again, so the next commit may lower it.
        """
        self.halt(assigned)
        assigned.rewound = offset < assigned.progress.position
        assigned.reset_to(offset)
        assigned.next_offset = assigned.committed = offset

    def seek(self, assigned: AssignedQueue, offset: int) -> None:
        """Continue at an offset that the application chose, which is committed next; otherwise like `reset_to`."""
        committed = assigned.committed
        self.reset_to(assigned, offset)
        # A commit or a pull in progress may store a higher offset than the one known here.
        assigned.rewound, assigned.committed = True, committed
        self.wake()

    def pause(self, assigned: AssignedQueue) -> None:
        """Pull and deliver nothing of a queue until `resume`; messages in flight stay."""
        assigned.paused = True
        self.halt(assigned)

    def resume(self, assigned: AssignedQueue) -> None:
        """Pull and deliver again."""
        assigned.paused = False
        self.wake()

    def rewind(self) -> None:
        """Redeliver what was delivered and not handled."""
        for assigned in self.queues.values():
            if assigned.progress.in_flight:
                self.rewind_queue(assigned)

    def rewind_queue(self, assigned: AssignedQueue) -> None:
        """Redeliver one queue's messages in flight, by pulling them again."""
        assigned.progress.restart(assigned.progress.position)
        self.halt(assigned)
        self.wake()

    # -- pulls -------------------------------------------------------------------------------------------------

    async def pull_more(self, deadline: float) -> None:
        """Start a pull for every queue that may have one. Waits only to connect, at most until `deadline`.

        An unreachable broker is tried again later; see `next_wake`.
        """
        used: set[BrokerConnection] = set()
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
            and assigned.is_active
            and assigned.announced
            and not assigned.paused
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
            connection = await self._open(assigned, deadline)
        except (ConnectFailed, BrokerNotFound) as error:
            log.warning("consumer of %s: %s", queue.topic, error)
            for other in self.queues.values():
                # All queues of this broker wait for the same connection.
                if other.queue.broker_name == queue.broker_name:
                    other.pause_until = session.runtime.now() + _PAUSE_AFTER_CONNECT_FAILED_S
            return
        if self.queues.get(queue) is not assigned or not self._wants_pull(assigned):
            return  # moved, or no longer confirmed, meanwhile
        position = assigned.progress.position
        assigned.from_slave = connection.address != session.brokers.masters.get(queue.broker_name)
        commits = (
            self._options.offset_store is None
            and not assigned.from_slave
            and not assigned.rewound
            and position != assigned.committed
        )
        ext = pull_ext(
            self._options.group,
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
        assigned.call = arrival.call = connection.start_template(
            RequestTemplate(RequestCode.PULL_MESSAGE, ext), arrival
        )
        assigned.call_deadline = session.runtime.now() + _POLL_S + PULL_GRACE_S
        self._earliest_deadline = min(self._earliest_deadline, assigned.call_deadline)
        self._idle.pop(assigned, None)

    async def _open(self, assigned: AssignedQueue, deadline: float) -> BrokerConnection:
        """Return a connection to the slave that the master suggests, or else to the queue's source."""
        session, name = self._session, assigned.queue.broker_name
        source = self._source(name)
        if source is None:
            raise BrokerNotFound(name, assigned.queue.topic)
        suggested = session.brokers.address(name, assigned.reads_from)
        if assigned.reads_from != MASTER_ID and suggested is not None and not self._serving.in_order:
            try:
                return await session.try_to_open(suggested, deadline, name)
            except ConnectFailed as error:
                log.info("consumer of %s: back to the master: %s", assigned.queue.topic, error)
        assigned.reads_from = MASTER_ID
        connection = await session.open(source, deadline)
        if not connection.is_of(name):
            raise BrokerNotFound(name, assigned.queue.topic)
        return connection

    def _room(self, assigned: AssignedQueue) -> Room | None:
        return self._limits.room(
            max(1, len(self.queues)),
            assigned.undelivered + assigned.progress.in_flight,
            assigned.held_bytes(),
            0 if self._serving.in_order else assigned.span,
        )

    def collect(self) -> bool:
        """Process the answered pulls; True if there are new messages. Raises like `Consumer.receive`."""
        self.waiter.ready = False
        brought = False
        while self._answered:
            assigned, call = self._answered.popleft()
            if assigned.call is call:  # otherwise it was abandoned
                assigned.call = None
                self._idle[assigned] = None
                brought |= self._take_answer(assigned, call)
        if self._session.runtime.now() >= self._earliest_deadline:
            self._ask_again()
        return brought

    def answered(self, assigned: AssignedQueue, call: Call) -> None:
        """Queue an answered pull for `collect`."""
        self._answered.append((assigned, call))
        self.waiter.notify()

    def _ask_again(self) -> None:
        now = self._session.runtime.now()
        earliest = math.inf
        for assigned in self.queues.values():
            if assigned.call is None:
                continue
            if now >= assigned.call_deadline:
                log.warning("consumer of %s: no response to a pull, pulling again", assigned.queue.topic)
                if assigned.connection is not None:
                    assigned.connection.doubt(now - PULL_GRACE_S)
                self._abandon(assigned)
            else:
                earliest = min(earliest, assigned.call_deadline)
        self._earliest_deadline = earliest

    def _take_answer(self, assigned: AssignedQueue, call: Call) -> bool:
        queue = assigned.queue
        if call.error is not None:
            assigned.reads_from = MASTER_ID
            if not isinstance(call.error, ClientClosed):
                log.warning("consumer of %s/%d: %s", queue.topic, queue.queue_id, call.error)
            return False
        try:
            result = pull_result(queue, assigned.next_offset, call, assigned.wanted)
        except BrokerError as error:
            if not (error.retryable or assigned.is_retry or isinstance(error, TopicNotFound)):
                raise  # whether a topic is gone is found out by its route
            if assigned.refusal != str(error):
                assigned.refusal = str(error)
                log.warning("consumer of %s/%d: %s", queue.topic, queue.queue_id, error)
            self._leave_slave(assigned)
            if isinstance(error, NotMaster | TopicNotFound):
                self._session.master_is_stale(queue.broker_name)
            return False
        assigned.refusal = None
        if assigned.from_slave and (
            result.status is PullStatus.OFFSET_ILLEGAL or result.next_begin_offset < assigned.next_offset
        ):
            self._leave_slave(assigned)  # it does not have these messages yet
            return False
        assigned.reads_from = result.suggested_broker_id
        if result.status is PullStatus.OFFSET_ILLEGAL:
            self._moved(assigned, result)
            return False
        assigned.next_offset = result.next_begin_offset
        if len(result.messages):
            result.messages._delivered_by(self._deliverer, self._options.deserializer)  # noqa: SLF001
            assigned.undelivered += len(result.messages)
            assigned.undelivered_bytes += result.messages.record_bytes
            self._serving.add(assigned, result)
            return True
        if not assigned.undelivered and not assigned.waiting_results:
            assigned.progress.advance(result.next_begin_offset)
        return False

    def _leave_slave(self, assigned: AssignedQueue) -> None:
        """After a refusal: pull from the master, at once if a slave has refused and the master is there."""
        suggested = assigned.reads_from != MASTER_ID
        assigned.reads_from = MASTER_ID
        if not suggested:
            assigned.pause_until = self._session.runtime.now() + _PAUSE_AFTER_REFUSAL_S

    def _moved(self, assigned: AssignedQueue, result: PullResult) -> None:
        """Continue where the broker says: the group's offset was set, or nothing is at the pulled offset."""
        offset, asked = result.next_begin_offset, assigned.next_offset
        if result.min_offset <= asked <= result.max_offset:
            log.info("queue %s was set to offset %d", assigned.queue, offset)
            self.reset_to(assigned, offset)
            return
        log.warning(
            "consumer of %s/%d: offset %d is outside [%d, %d), continuing at %d",
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
            # There is nothing at the higher offset, so the next commit may lower it.
            assigned.rewound |= offset < assigned.progress.position
            self._serving.forget(assigned)
            assigned.reset_to(offset)
        assigned.next_offset = offset
        if not assigned.undelivered and not assigned.waiting_results:
            assigned.progress.advance(offset)

    def next_wake(self) -> float:
        """Return when `collect` or `pull_more` has work even without an answer."""
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
        """In a forked child: drop all queues; the parent gets the answers."""
        self.queues.clear()
        self._idle.clear()
        self._answered.clear()
        self._earliest_deadline = math.inf


class _Arrival(Waiter):
    """Reports the end of a pull to the fetcher."""

    __slots__ = ("_assigned", "_fetcher", "call")

    def __init__(self, fetcher: Fetcher, assigned: AssignedQueue) -> None:
        super().__init__()
        self._fetcher = fetcher
        self._assigned = assigned
        self.call: Call | None = None

    @override
    def notify(self) -> None:
        super().notify()
        if self.call is not None:
            self._fetcher.answered(self._assigned, self.call)
