"""The background of a client that must act while its application is busy: heartbeats, rebalancing, commits.

It is one task, or one thread in the synchronous API. It does each chore when it is due and reads the connections in
between (see `pump.py`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from reput_client.errors import ClientClosed
from reput_client.transport.runtime import Event
from reput_client.transport.session import Session
from reput_protocol.wire.channel import Waiter

log = logging.getLogger("reput_client")


class Chore(Protocol):
    """Recurring work."""

    def next_due(self) -> float:
        """Return when it is due next, on the runtime's clock; `math.inf` for never."""

    async def do(self) -> None:
        """Do it. Expected failures are handled here; an exception ends the background."""


class Background:
    """Does chores one after the other until it is stopped.

    Attributes:
        failure: the exception that ended it, or None.
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
        """Start, unless it is running."""
        self._session.runtime.end_dead()
        if self._ended is None:
            self._stopping = False
            self.failure = None
            self._ended = self._session.runtime.event()
            self._session.runtime.spawn(self._run)

    def wake(self) -> None:
        """Check again whether a chore is due."""
        self._session.pump.wake(self._waiter)

    async def stop(self, timeout_s: float) -> None:
        """Start no further chore; return when the current one is done, or after `timeout_s`."""
        self._stopping = True
        self.wake()
        if self._ended is not None:
            await self._ended.wait(timeout_s)

    def forget(self) -> None:
        """In a forked child, where the task or thread does not exist: count as not started."""
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
