"""The fence: nothing is accepted or acknowledged after the master's lease.

The lease is valid until the time when its last extension was *sent*, plus its length, minus a margin. The engine starts
counting later, so a member that takes over does so after this time. The clock counts time in which the machine was
suspended and never jumps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import Final

import trio

from reput_protocol.errors import ReputError

_LOOK_S: Final = 0.05
_LOOK_AT_CHANGES_S: Final = 0.005


def boot_time() -> float:
    """Return the seconds since the machine was started, suspended or not."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Fenced(ReputError):
    """The fence is closed: nothing was stored or changed.

    Attributes:
        reason: why.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Fence:
    """Decides whether a master may accept and acknowledge messages and changes, as long as its mastership lasts.

    Every acknowledgement asks, because a process that was stopped for longer than the lease continues in the middle of
    anything: a timer would be late.

    Args:
        clock: seconds of a clock that never jumps.
        valid_until: in seconds of the clock; without an election there is no end.
    """

    def __init__(self, clock: Callable[[], float] = boot_time, valid_until: float = inf) -> None:
        self.who_may_lead: Callable[[], Mapping[str, str]] = dict
        """Returns what a refusal says of the brokers of which one may be the master."""
        self._clock = clock
        self._valid_until = valid_until
        self._closed: str | None = None
        self._ended: str | None = None
        self._changes = 0

    @property
    def left_s(self) -> float:
        """The seconds until the fence; negative after it."""
        return self._valid_until - self._clock()

    def extend(self, valid_until: float) -> None:
        """Acknowledge until `valid_until`, unless the mastership has ended."""
        self._valid_until = max(self._valid_until, valid_until)

    def close(self, reason: str) -> None:
        """Accept nothing more, such as during a hand-over. What was accepted before is still acknowledged."""
        self._closed = reason

    def reopen(self) -> None:
        """Accept messages and changes again."""
        self._closed = None

    def end(self, reason: str) -> None:
        """Neither accept nor acknowledge from now on: the mastership has ended."""
        self._ended = self._ended or reason

    async def opened(self) -> None:
        """Wait until messages can be accepted; for ever once the mastership has ended."""
        while self.refusal() is not None:  # noqa: ASYNC110 - once in a hand-over
            await trio.sleep(_LOOK_S)

    async def closed(self) -> None:
        """Wait until no message can be accepted."""
        while self.refusal() is None:  # noqa: ASYNC110 - once, when a broker stops
            await trio.sleep(_LOOK_S)

    def refusal(self) -> str | None:
        """Return why nothing can be accepted now, or None."""
        return self.expiry() or self._closed

    def check(self) -> None:
        """Raise Fenced if nothing can be accepted now."""
        reason = self.refusal()
        if reason is not None:
            raise Fenced(reason)

    def expiry(self) -> str | None:
        """Return why nothing can be acknowledged any more, or None."""
        if self._ended is None and self._valid_until != inf and self._clock() >= self._valid_until:
            self._ended = "the lease on being master has ended, and another broker may be the master now"
        return self._ended

    @contextmanager
    def change(self) -> Iterator[None]:
        """Count a change of a table as under way within the context."""
        self._changes += 1
        try:
            yield
        finally:
            self._changes -= 1

    async def settled(self) -> None:
        """Wait until no change is under way."""
        while self._changes:  # noqa: ASYNC110 - once in a hand-over
            await trio.sleep(_LOOK_AT_CHANGES_S)
