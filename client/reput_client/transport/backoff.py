"""How long to wait before the next attempt to connect."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Delays that double from `first_s` to `max_s`, each cut by up to `jitter` of itself at random.

    The jitter keeps many clients of one restarted broker from coming back at the same instant.
    """

    def __init__(
        self,
        first_s: float = 0.05,
        max_s: float = 2.0,
        *,
        jitter: float = 0.5,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._jitter = jitter
        self._uniform = uniform
        self._failures = 0

    def next_delay_s(self) -> float:
        """Count one more failure and return the seconds to wait because of it."""
        # The exponent is bounded: a broker that is down for days must not overflow a float.
        whole = min(self._max_s, self._first_s * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return whole * (1.0 - self._jitter * self._uniform())

    def reset(self) -> None:
        """Start over: an attempt succeeded."""
        self._failures = 0
