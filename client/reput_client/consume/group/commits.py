"""Committing: telling the offset store how far the queues of a member are handled."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

from reput_client.consume.group.assigned import AssignedQueue
from reput_client.consume.group.fetching import Fetcher
from reput_client.consume.group.kept_offsets import KeptOffsets
from reput_client.transport.runtime import Event
from reput_client.transport.session import Session
from reput_protocol.errors import BrokerError, ReputError

log = logging.getLogger("reput_client")


class Commits:
    """Commits what is handled, every `interval_s` and when it is asked to; a chore of the background.

    With an interval of 0 the caller commits each time that it asks for a message.
    """

    def __init__(self, session: Session, fetcher: Fetcher, kept: KeptOffsets, interval_s: float) -> None:
        self._session = session
        self._fetcher = fetcher
        self._kept = kept
        self._interval_s = interval_s
        self._turn: Event | None = None
        self._due_at = math.inf

    def begin(self) -> None:
        """From now on commits fall due."""
        self._due_at = self._session.runtime.now() + self._interval_s if self._interval_s else math.inf

    def soon(self) -> None:
        """There is something that should not wait for its turn: where the group begins in a queue."""
        self._due_at = self._session.runtime.now()

    def next_due(self) -> float:
        """See `Chore`."""
        return self._due_at

    async def do(self) -> None:
        """See `Chore`."""
        self.begin()
        # Without a connection it would only hold up what comes after it.
        if self._session.connected:
            await self.commit_quietly(self._fetcher.queues.values())

    @property
    def each_time(self) -> bool:
        """Whether to commit whenever a message is asked for."""
        return not self._interval_s

    def dirty(self) -> bool:
        """Whether there is progress that no commit has told."""
        return any(assigned.confirmed and assigned.uncommitted for assigned in self._fetcher.queues.values())

    async def commit(self, queues: Iterable[AssignedQueue], timeout_s: float | None = None) -> None:
        """Commit the progress of `queues`, one caller at a time; each may take `timeout_s`.

        What fails holds up no queue of another broker.

        Raises:
            ReputError, OSError: the store could not take all of it; that progress is kept and committed later.
        """
        while self._turn is not None:
            await self._turn.wait(math.inf)
        self._turn = turn = self._session.runtime.event()
        failure: ReputError | OSError | None = None
        silent: set[str] = set()
        try:
            for assigned in list(queues):
                # What is not known to be ours was perhaps taken further, or back, by somebody else.
                if not assigned.confirmed or not assigned.uncommitted:
                    continue
                if assigned.queue.broker_name in silent:
                    continue
                try:
                    await self._commit_one(assigned, timeout_s)
                except (ReputError, OSError) as error:
                    failure = failure or error
                    if not isinstance(error, BrokerError):
                        silent.add(assigned.queue.broker_name)
        finally:
            self._turn = None
            turn.set()
        if failure is not None:
            raise failure

    async def _commit_one(self, assigned: AssignedQueue, timeout_s: float | None) -> None:
        position = assigned.progress.position
        rewound, assigned.rewound = assigned.rewound, False
        try:
            await self._kept.write(assigned.queue, position, increase_only=not rewound, timeout_s=timeout_s)
        except BaseException:
            assigned.rewound |= rewound
            raise
        assigned.committed = position

    async def commit_quietly(self, queues: Iterable[AssignedQueue], timeout_s: float | None = None) -> None:
        """As `commit`, but a failure is only logged."""
        try:
            await self.commit(queues, timeout_s)
        except (ReputError, OSError) as error:
            log.warning("offsets not committed, trying again later: %s", error)

    def forget(self) -> None:
        """In a forked child: whoever was committing is in the parent."""
        self._turn = None
        self._due_at = math.inf
