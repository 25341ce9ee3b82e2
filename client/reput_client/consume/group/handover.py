"""Moving queues between members; docs/client.md says what may be redelivered.

A member that gives up a queue stops delivering, waits briefly for messages in flight, and commits; later progress is
ignored. One that takes a queue from a living member waits longer than that, then asks for the committed offset. In
order, the lock is kept until the message in flight is done, and the next member asks for it repeatedly.

A queue whose broker was unreachable may have been another member's meanwhile. If the committed offset is beyond our
position, or was lowered, consumption continues there.

In order (docs/groups.md) only the holder of a queue's lock may consume it. A member renews its locks (41) every 20 s,
also while it gives up a queue with a message in flight. It stops consuming when a lock was not confirmed for 30 s; the
broker revokes it after a minute (RocketMQ: RebalanceImpl.lockAll, ProcessQueue.isLockExpired).
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Final

from typing_extensions import override

from reput_client.consume.group.assigned_queue import AssignedQueue
from reput_client.consume.group.commits import Commits
from reput_client.consume.group.fetcher import Fetcher
from reput_client.consume.group.membership import Membership
from reput_client.consume.group.options import ConsumerOptions
from reput_client.consume.group.rebalance import RETURN_S, Assignment
from reput_client.consume.group.subscriptions import StartingPoints
from reput_client.consume.offsets import OffsetRequests
from reput_client.transport.address import Address
from reput_client.transport.background import Chore
from reput_client.transport.session import Session
from reput_protocol.codes import MessageModel, RequestCode
from reput_protocol.commands.group import LockBatchBody, LockBatchResult
from reput_protocol.errors import ReputError
from reput_protocol.record.message import MessageQueue

TAKE_AFTER_S: Final = 0.3
"""How long a living member has to give up a queue: notification within 0.1 s, `LEAVE_AFTER_S`, and its commit."""
LEAVE_AFTER_S: Final = 0.1
_WHEN_ASSIGNED: Final = math.inf
_LOCK_AGAIN_S: Final = 0.1
_RETRY_S: Final = 0.5

log = logging.getLogger("reput_client")


class Handover(Chore):
    """Makes the member's queues follow its assignment; a background chore.

    Attributes:
        leaving: queues being given up that have messages in flight.
        starting: where to begin in queues without an offset.
        locks: those of an orderly member.
    """

    def __init__(
        self, session: Session, options: ConsumerOptions, fetcher: Fetcher, membership: Membership, commits: Commits
    ) -> None:
        self._session = session
        self._fetcher = fetcher
        self._membership = membership
        self._options = options
        self._commits = commits
        retry = options.subscriptions.retry
        self.starting = StartingPoints(OffsetRequests(session), options.start, retry)
        in_order = options.orderly and options.model is MessageModel.CLUSTERING
        self.locks = QueueLocks(session, options.group, fetcher, membership, self) if in_order else None
        self.leaving: dict[MessageQueue, AssignedQueue] = {}
        self._taking: dict[MessageQueue, float] = {}  # queues to take, and when to try

    @property
    def queues(self) -> list[AssignedQueue]:
        """The member's queues, and those that it is giving up."""
        return [*self._fetcher.queues.values(), *self.leaving.values()]

    # -- assignment ------------------------------------------------------------------------------------------------

    def follow(self, assignment: Assignment) -> None:
        """Start to take and give up queues as assigned."""
        now = self._session.runtime.now()
        unknown = assignment.unknown
        for queue, assigned in list(self._fetcher.queues.items()):
            if queue not in assignment.queues and queue.topic not in unknown:
                self._begin_leaving(assigned)
        for queue in list(self._taking):
            if queue not in assignment.queues and queue.topic not in unknown:
                del self._taking[queue]
        for queue in assignment.queues:
            due = now
            if queue in self._fetcher.queues:
                if self._taking.get(queue) != _WHEN_ASSIGNED:
                    continue
            elif queue in self._taking:
                continue
            elif queue in self.leaving and self._orderly:
                self._stay(self.leaving.pop(queue))
                continue
            elif assignment.others_may_return:
                due = now + RETURN_S
            if queue in assignment.from_living and not self._orderly:
                due = max(due, now + TAKE_AFTER_S)
            self._taking[queue] = due

    def _begin_leaving(self, assigned: AssignedQueue) -> None:
        del self._fetcher.queues[assigned.queue]
        self._fetcher.halt(assigned)
        grace_s = math.inf if self._orderly else LEAVE_AFTER_S
        assigned.leaving_until = self._session.runtime.now() + grace_s
        self.leaving[assigned.queue] = assigned
        log.info("queue %s is given up", assigned.queue)

    def _stay(self, assigned: AssignedQueue) -> None:
        """Keep a queue that waits for its message in flight; its lock may still be ours."""
        assigned.leaving_until = None
        self._fetcher.add(assigned)
        self.doubt_queue(assigned)

    def lock_lost(self, assigned: AssignedQueue) -> None:
        """React to the broker having given the lock of a queue to another member."""
        if assigned.leaving_until is None:
            self.doubt_queue(assigned)
        else:
            assigned.leaving_until = self._session.runtime.now()  # nothing to wait for any more

    def doubt(self, broker_name: str) -> None:
        """Doubt a broker's queues after its connection ended: others may have them until we join again."""
        for assigned in self._fetcher.queues.values():
            if assigned.queue.broker_name == broker_name:
                self.doubt_queue(assigned)
                self._taking[assigned.queue] = _WHEN_ASSIGNED

    def doubt_queue(self, assigned: AssignedQueue) -> None:
        """Deliver nothing more of a queue until it is confirmed to be ours."""
        assigned.confirmed = False
        self._fetcher.halt(assigned)
        self._taking[assigned.queue] = self._session.runtime.now()

    # -- taking and leaving ----------------------------------------------------------------------------------------

    @override
    def next_due(self) -> float:
        now = self._session.runtime.now()
        due = min(self._taking.values(), default=math.inf)
        for assigned in self.leaving.values():
            assert assigned.leaving_until is not None, "it is leaving"
            due = min(due, assigned.leaving_until if assigned.progress.in_flight else now)
        return due

    @override
    async def do(self) -> None:
        await self._leave_due()
        await self._take_due()

    def rewind(self) -> None:
        """Leave the messages in flight of given-up queues to the next owner."""
        for assigned in self.leaving.values():
            assigned.progress.restart(assigned.progress.position)

    async def _leave_due(self) -> None:
        now = self._session.runtime.now()
        ready = [
            assigned
            for assigned in self.leaving.values()
            if not assigned.progress.in_flight or (assigned.leaving_until or 0.0) <= now
        ]
        if not ready:
            return
        await self.revoked(ready)
        for assigned in ready:
            # From here on messages in flight belong to the next owner.
            del self.leaving[assigned.queue]
        await self.let_go(ready)

    async def revoked(self, queues: Iterable[AssignedQueue]) -> None:
        """Call the application's `on_revoked`; messages in flight may still be handled in it."""
        await self._notify(self._options.on_revoked, queues)

    async def _notify(
        self, callback: Callable[[list[MessageQueue]], object] | None, queues: Iterable[AssignedQueue]
    ) -> None:
        names = sorted(assigned.queue for assigned in queues)
        if callback is None or not names:
            return
        results: list[object] = []
        try:
            await self._session.runtime.outside(lambda: results.append(callback(names)))
            if isawaitable(results[0]):
                await results[0]
        except Exception:
            log.exception("group %s: %r raised", self._options.group, callback)

    async def let_go(
        self, queues: Iterable[AssignedQueue], timeout_s: float | None = None, *, locked: Collection[AssignedQueue] = ()
    ) -> None:
        """Commit queues for the last time and free their locks, except those in `locked`."""
        queues = list(queues)
        await self._commits.commit_quietly(queues, timeout_s)
        free = [assigned.queue for assigned in queues if assigned not in locked]
        if self.locks is not None and free:
            await self.locks.unlock(free, timeout_s)

    async def _take_due(self) -> None:
        now = self._session.runtime.now()
        due = sorted(queue for queue, at in self._taking.items() if at <= now)
        # A queue being given up can be taken again only afterwards.
        blocked = [queue for queue in due if queue in self.leaving]
        due = [queue for queue in due if queue not in self.leaving and self._is_member(queue)]
        for queue in blocked:
            self._taking[queue] = now + _LOCK_AGAIN_S
        locked = await self._lock(due)
        for queue in due:
            if queue not in self._taking:
                continue
            if queue not in locked:
                self._taking[queue] = self._session.runtime.now() + _LOCK_AGAIN_S
                continue
            try:
                await self._take(queue, locked[queue])
            except (ReputError, OSError) as error:
                log.warning("queue %s is not taken yet: %s", queue, error)
                self._taking[queue] = self._session.runtime.now() + _RETRY_S
        new = [assigned for assigned in self._fetcher.queues.values() if not assigned.announced]
        if new:
            await self._notify(self._options.on_assigned, new)
            for assigned in new:
                assigned.announced = True
            self._fetcher.wake()

    def _is_member(self, queue: MessageQueue) -> bool:
        """Whether the queue's broker knows this member; if not, a heartbeat is in progress."""
        if self._membership.source(queue.broker_name) is not None:
            return True
        self._taking[queue] = self._session.runtime.now() + _LOCK_AGAIN_S
        return False

    async def _lock(self, queues: list[MessageQueue]) -> dict[MessageQueue, float]:
        """Return the queues that may be taken, each with the time until which its lock is reliable."""
        if self.locks is None or not queues:
            return dict.fromkeys(queues, math.inf)
        return (await self.locks.lock(queues)).until

    async def _take(self, queue: MessageQueue, locked_until: float) -> None:
        membership, assigned = self._membership, self._fetcher.queues.get(queue)
        address = membership.connected_address(queue.broker_name)
        at_master = membership.at_master(queue.broker_name)
        if assigned is not None and not at_master:
            # A slave may not have our last commits.
            committed, start = assigned.committed, assigned.progress.position
        else:
            slave = None if at_master else membership.source(queue.broker_name)
            committed = await self._commits.offsets.read(queue, slave)
            start = committed if committed is not None else await self.starting.first(queue)
        if self._taking.pop(queue, None) is None:
            if self.locks is not None:
                await self.locks.unlock([queue])  # not assigned any more
            return
        assigned = self._fetcher.queues.get(queue)
        if assigned is None:
            topic = queue.topic
            assigned = AssignedQueue(
                queue,
                self._options.subscriptions.wanted_of(topic),
                start,
                committed,
                locked_until=locked_until,
                is_retry=topic == self._options.subscriptions.retry,
            )
            assigned.committed_at = address
            assigned.announced = self._options.on_assigned is None
            log.info("queue %s is taken, from offset %d", queue, start)
            self._fetcher.add(assigned)
        else:
            self._confirm(assigned, committed, start, address)
            assigned.locked_until = locked_until
            self._fetcher.wake()
        if committed is None:
            # The starting point must be stored even if this member ends before its first commit.
            self._commits.soon()

    def _confirm(self, assigned: AssignedQueue, committed: int | None, start: int, address: Address | None) -> None:
        """Note that the queue is ours; continue at `start` if its offset has changed.

        A new master may not have our last commits: a lower offset at another `address` was not set by an administrator.
        After a seek back that is not committed yet, a higher offset is our own. If the queue began without an offset,
        since a slave knew none, a lower one is the group's.
        """
        known, position = assigned.committed, assigned.progress.position
        moved_on = committed is not None and committed > position and not assigned.rewound
        reset = known is not None and (committed is None or committed < known) and address == assigned.committed_at
        began_late = (
            known is None and committed is not None and committed < assigned.started_at and not assigned.rewound
        )
        assigned.committed_at = address
        if committed != known:
            assigned.committed = committed
        if moved_on or reset or began_late:
            log.info("queue %s continues at %d, not at %d", assigned.queue, start, position)
            self._fetcher.halt(assigned)
            assigned.restart(start, committed)
        assigned.confirmed = True

    @property
    def _orderly(self) -> bool:
        return self.locks is not None

    @property
    def settled(self) -> bool:
        """Whether all assigned queues are taken."""
        return not self._taking

    def forget(self) -> None:
        """In a forked child: drop all queues."""
        self.leaving.clear()
        self._taking.clear()


RENEW_INTERVAL_S: Final = 20.0
TRUSTED_S: Final = 30.0
_RENEW_AGAIN_S: Final = 1.0


@dataclass(slots=True)
class LockAnswers:
    """The result of asking for locks.

    Attributes:
        until: the locked queues, each with the time until which that is reliable.
        unanswered: queues whose broker did not answer.
    """

    until: dict[MessageQueue, float] = field(default_factory=dict)
    unanswered: set[MessageQueue] = field(default_factory=set)


@dataclass(eq=False, repr=False)
class QueueLocks(Chore):
    """Obtains, renews and frees locks; a background chore of orderly members."""

    _session: Session
    _group: str
    _fetcher: Fetcher
    _membership: Membership
    _handover: Handover
    _due_at: float = field(default=math.inf, init=False)

    def begin(self) -> None:
        """Start to renew locks."""
        self._due_at = self._session.runtime.now() + RENEW_INTERVAL_S

    @override
    def next_due(self) -> float:
        return self._due_at

    @override
    async def do(self) -> None:
        """Renew all locks; those of a silent broker are tried again next time."""
        self.begin()
        ours = [queue for queue in self._handover.queues if queue.is_active or queue.leaving_until is not None]
        if not ours:
            return
        answers = await self.lock(assigned.queue for assigned in ours)
        for assigned in ours:
            until = answers.until.get(assigned.queue)
            if assigned.queue in answers.unanswered:
                self._due_at = self._session.runtime.now() + _RENEW_AGAIN_S
            elif until is not None:
                had_expired = assigned.locked_until <= self._session.runtime.now()
                assigned.locked_until = until
                if had_expired:
                    self._fetcher.wake()
            elif assigned in self._handover.queues:
                log.warning("group %s: the lock of %s is another member's", self._group, assigned.queue)
                self._handover.lock_lost(assigned)

    async def lock(self, queues: Iterable[MessageQueue]) -> LockAnswers:
        """Ask for the locks of `queues`, one broker after the other; each silent one costs its timeout."""
        answers = LockAnswers()
        for wanted in _by_broker(queues):
            asked_at = self._session.runtime.now()
            try:
                call = await self._session.ask_ok(
                    RequestCode.LOCK_BATCH_MQ,
                    {},
                    what=f"locks of {self._group}",
                    queue=wanted[0],
                    body=self._body(wanted),
                )
                locked = LockBatchResult.from_json(call.body).locked
            except ReputError as error:
                log.warning("group %s: queues not locked, trying again: %s", self._group, error)
                answers.unanswered.update(wanted)
                continue
            for queue in locked:
                answers.until[queue] = asked_at + TRUSTED_S
        return answers

    async def unlock(self, queues: Iterable[MessageQueue], timeout_s: float | None = None) -> None:
        """Free the locks of `queues`. Failures are only logged: locks expire."""
        for wanted in _by_broker(queues):
            try:
                await self._session.ask_ok(
                    RequestCode.UNLOCK_BATCH_MQ,
                    {},
                    what=f"unlocking queues of {self._group}",
                    queue=wanted[0],
                    body=self._body(wanted),
                    deadline=self._session.deadline(timeout_s),
                )
            except ReputError as error:
                log.warning("group %s: locks not freed, they expire in a minute: %s", self._group, error)

    def _body(self, queues: list[MessageQueue]) -> bytes:
        return LockBatchBody(self._membership.client_id, self._group, queues).to_json()


def _by_broker(queues: Iterable[MessageQueue]) -> Collection[list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        found[queue.broker_name].append(queue)
    return found.values()
