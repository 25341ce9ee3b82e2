"""Which brokers a producer leaves out for a while (RocketMQ: MQFaultStrategy, LatencyFaultToleranceImpl).

Only sends whose queue the producer chooses leave brokers out, and only while another broker is left.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final

_LATENCIES_S: Final = (0.05, 0.1, 0.55, 1.8, 3.0, 5.0, 15.0)
_LEFT_OUT_S: Final = (0.0, 0.0, 0.0, 2.0, 5.0, 6.0, 10.0, 30.0)
"""How long a broker is left out by the latency of an answer: RocketMQ's table."""
_AWAY_FIRST_S: Final = 0.5
_AWAY_MAX_S: Final = 10.0
_PROBE_S: Final = 1.0


class FaultIsolation:
    """The brokers that do not answer, or answer slowly, by name.

    A broker that did not take a message is left out for half a second, each time in a row for twice as long, up to 10
    s. After that one send tries it, and the others leave it out for another second.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._tried: set[str] = set()
        """Brokers that one send tries at the moment."""

    def failed(self, broker_name: str) -> None:
        """Note that a broker could not be reached, or does not take messages now."""
        now = self._now()
        if broker_name not in self._tried and now < self._until.get(broker_name, now):
            return  # this message was sent before an earlier one failed
        self._tried.discard(broker_name)
        failures = self._failures.get(broker_name, 0)
        self._failures[broker_name] = failures + 1
        self._until[broker_name] = now + min(_AWAY_MAX_S, _AWAY_FIRST_S * 2.0 ** min(failures, 10))

    def answered(self, broker_name: str, latency_s: float = 0.0) -> None:
        """Note that a broker has stored a message, `latency_s` after it was sent."""
        left_out_s = _LEFT_OUT_S[bisect_right(_LATENCIES_S, latency_s)]
        if left_out_s:
            self._until[broker_name] = self._now() + left_out_s
        elif self._until:
            self._until.pop(broker_name, None)
            self._failures.pop(broker_name, None)
            self._tried.discard(broker_name)

    def is_left_out(self, broker_name: str) -> bool:
        """Whether to send elsewhere."""
        return bool(self._until) and self._now() < self._until.get(broker_name, 0.0)

    def chosen(self, broker_name: str) -> None:
        """Note that a message goes to a broker. If it was left out, that tries it, and others wait for the outcome."""
        if broker_name in self._until:
            self._until[broker_name] = self._now() + _PROBE_S
            self._tried.add(broker_name)
