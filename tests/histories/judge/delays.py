"""A delayed message is never early, neither in the broker's log nor at a consumer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from histories import terms
from histories.judge.facts import Facts
from histories.judge.violation import Violation

_EARLY_S: Final = 0.01
"""Between the clock of the broker and that of the history."""


def judge(facts: Facts) -> Iterator[Violation]:
    """Compare when messages were put and when they came. Whether they came twice, `stored.py` looks."""
    for entry in facts.stored:
        put = facts.puts.get(entry.uid)
        if put is not None and put.delay_s and entry.queue[0] == terms.LATER:
            early_ms = put.wall_ms + 1000 * put.delay_s - entry.stored_ms
            if early_ms > 1000 * _EARLY_S:
                yield Violation("delayed early", f"{entry.uid} was stored {early_ms:.0f} ms before its time")
    for delivery in facts.deliveries:
        put = facts.puts.get(delivery.uid)
        if put is not None and put.delay_s and delivery.begun < put.at + put.delay_s - _EARLY_S:
            yield Violation("delayed early", f"{delivery}: {put.at + put.delay_s - delivery.begun:.3f} s early")
