"""Locks of queues consumed in order (docs/groups.md): only the holder of a queue's lock may consume it.

A member renews its locks (41) every 20 s, also while it gives up a queue with a message in flight. It stops consuming
when a lock was not confirmed for 30 s; the broker revokes it after a minute (RocketMQ: RebalanceImpl.lockAll,
ProcessQueue.isLockExpired).
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from typing_extensions import override

from reput_client.consume.group.assigned_queue import AssignedQueue
from reput_client.transport.background import Chore
from reput_client.transport.session import Session
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import LockBatchBody, LockBatchResult
from reput_protocol.errors import ReputError
from reput_protocol.record.message import MessageQueue

RENEW_INTERVAL_S: Final = 20.0
TRUSTED_S: Final = 30.0
_RETRY_S: Final = 1.0

log = logging.getLogger("reput_client")


@dataclass(slots=True)
class LockAnswers:
    """The result of asking for locks.

    Attributes:
        until: the locked queues, each with the time until which that is reliable.
        unanswered: queues whose broker did not answer.
    """

    until: dict[MessageQueue, float] = field(default_factory=dict)
    unanswered: set[MessageQueue] = field(default_factory=set)


class QueueLocks(Chore):
    """Obtains, renews and frees locks; a background chore of orderly members."""

    def __init__(
        self,
        session: Session,
        group: str,
        client_id: Callable[[], str],
        queues: Callable[[], Collection[AssignedQueue]],
        on_lost: Callable[[AssignedQueue], None],
        on_renewed: Callable[[], None],
    ) -> None:
        """Renew the locks of `queues`: the member's, and those it is giving up.

        `on_lost` is called with a queue whose lock is not confirmed, `on_renewed` when one is reliable again.
        """
        self._session = session
        self._group = group
        self._client_id = client_id
        self._queues = queues
        self._on_lost = on_lost
        self._on_renewed = on_renewed
        self._due_at = math.inf

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
        ours = [queue for queue in self._queues() if queue.is_active or queue.leaving_until is not None]
        if not ours:
            return
        answers = await self.lock(assigned.queue for assigned in ours)
        for assigned in ours:
            until = answers.until.get(assigned.queue)
            if assigned.queue in answers.unanswered:
                self._due_at = self._session.runtime.now() + _RETRY_S
            elif until is not None:
                had_expired = assigned.locked_until <= self._session.runtime.now()
                assigned.locked_until = until
                if had_expired:
                    self._on_renewed()
            elif assigned in self._queues():
                log.warning("group %s: the lock of %s is another member's", self._group, assigned.queue)
                self._on_lost(assigned)

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
        return LockBatchBody(self._client_id(), self._group, queues).to_json()


def _by_broker(queues: Iterable[MessageQueue]) -> Collection[list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        found[queue.broker_name].append(queue)
    return found.values()
