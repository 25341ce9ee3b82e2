"""The delay before the next attempt to connect."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Delays that double from `first_s` to `max_s`, each reduced at random by up to the fraction `jitter`.

    The jitter spreads the reconnects of many clients after a broker restart.
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
        """Count a failure; return the seconds before the next attempt."""
        # Bounded, so that a broker that is down for days does not overflow a float.
        whole = min(self._max_s, self._first_s * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return whole * (1.0 - self._jitter * self._uniform())

    def reset(self) -> None:
        """Start over after a successful attempt."""
        self._failures = 0
