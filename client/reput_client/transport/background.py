"""The background of a client that must act while its application is busy: heartbeats, rebalancing, commits.

It is one task, or one thread in the blocking API, that does chores when they are due and meanwhile attends to the
connections (see `pump.py`). Clients that only answer their callers have none.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from reput_client.errors import ClientClosed
from reput_client.transport.core import Waiter
from reput_client.transport.runtime import Event
from reput_client.transport.session import Session

log = logging.getLogger("reput_client")


class Chore(Protocol):
    """Something that has to be done now and then."""

    def next_due(self) -> float:
        """Return when it has to be done, on the runtime's clock; `math.inf` when there is nothing to do."""

    async def do(self) -> None:
        """Do it. What may go wrong in daily life it deals with itself; what it raises ends the background."""


class Background:
    """Does chores one after the other until it is stopped.

    Attributes:
        failure: what ended it although it was not stopped, or None.
    """

    def __init__(self, session: Session, chores: Sequence[Chore], on_failure: Callable[[], None]) -> None:
        self._session = session
        self._on_failure = on_failure
        self._chores = chores
        self._waiter = Waiter()
        self._stopping = False
        self._ended: Event | None = None
        self.failure: Exception | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._ended is not None

    def start(self) -> None:
        """Begin; nothing happens if it runs already."""
        self._session.runtime.end_dead()
        if self._ended is None:
            self._stopping = False
            self.failure = None
            self._ended = self._session.runtime.event()
            self._session.runtime.spawn(self._run)

    def wake(self) -> None:
        """Look again whether a chore is due."""
        self._session.pump.wake(self._waiter)

    async def stop(self, timeout_s: float) -> None:
        """Begin no chore any more; return when the one under way is done, or after `timeout_s`."""
        self._stopping = True
        self.wake()
        if self._ended is not None:
            await self._ended.wait(timeout_s)

    def forget(self) -> None:
        """In a forked child: there is none."""
        self._ended = None
        self._waiter = Waiter()

    async def _run(self) -> None:
        ended = self._ended
        assert ended is not None, "it was started"
        try:
            while not self._stopping:
                await self._once()
        except ClientClosed:
            pass
        except Exception as error:
            if not self._session.closed:
                log.exception("the client's background has ended")
                self.failure = error
                self._on_failure()
        finally:
            self._ended = None
            ended.set()

    async def _once(self) -> None:
        session = self._session
        self._waiter.ready = False
        for chore in self._chores:
            if chore.next_due() <= session.runtime.now() and not self._stopping:
                await chore.do()
        due = min((chore.next_due() for chore in self._chores), default=math.inf)
        if not self._stopping and due > session.runtime.now():
            await session.pump.attend(self._waiter, due)
