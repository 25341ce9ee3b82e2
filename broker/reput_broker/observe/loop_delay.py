"""How late the event loop is: the first thing to look at when everything is slow at once."""

from __future__ import annotations

import trio

from reput_broker.observe.counters import Histogram

_INTERVAL_S = 0.25
"""Four wake-ups a second cost a thousandth of a core and still see every stall that lasts."""


async def measure_loop_delay(histogram: Histogram, interval_s: float = _INTERVAL_S) -> None:
    """Count how late a periodic task woke, until cancelled."""
    while True:
        due = trio.current_time() + interval_s
        await trio.sleep_until(due)
        histogram.observe(max(0.0, trio.current_time() - due))
