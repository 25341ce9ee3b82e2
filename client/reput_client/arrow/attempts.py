"""Repeating what brokers refuse for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple, ParamSpec, TypeVar

from reput_client.transport.backoff import Backoff
from reput_protocol.errors import ReputError

P = ParamSpec("P")
T = TypeVar("T")

_PAUSE_FIRST_S: Final = 0.01
_PAUSE_MAX_S: Final = 1.0


class Attempts(NamedTuple):
    """How requests are repeated: for `for_s` seconds, and then `retries` times.

    A request that waits takes all of that time itself; a broker that is starting, or a group without a master, refuses
    at once.
    """

    retries: int = 3
    interval_s: float = 0.01
    for_s: float = 0.0

    def __call__(self, ask: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call `ask`, again while its error is retryable.

        Raises:
            ReputError: of the last attempt.
        """
        pause_s = max(self.interval_s, _PAUSE_FIRST_S)
        pauses = Backoff(pause_s, max(pause_s, _PAUSE_MAX_S))
        until, retries = time.monotonic() + self.for_s, self.retries
        while True:
            try:
                return ask(*arguments, **named)
            except ReputError as error:
                if not error.retryable:
                    raise
                if time.monotonic() >= until:
                    if not retries:
                        raise
                    retries -= 1
            time.sleep(pauses.next_delay_s())
