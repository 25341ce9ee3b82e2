"""Other groups notice nothing: one with a single undisturbed member gets everything promptly and once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from histories import terms
from histories.judge.facts import Delivery, Facts
from histories.judge.violation import Violation

PROMPT_S: Final = 4.0
BACK_S: Final = 5.0
"""How long a broker that is down, or a process that stood still, has its effects."""


def judge(facts: Facts) -> Iterator[Violation]:
    """Look at the bystander."""
    first: dict[str, Delivery] = {}
    for delivery in facts.deliveries:
        if delivery.group == terms.BYSTANDER:
            before = first.setdefault(delivery.uid, delivery)
            if before is not delivery and not facts.disturbed(delivery.who, before.begun - BACK_S, delivery.begun):
                yield Violation("bystander", f"{before} came again at {delivery.begun:.3f}")
    for put in facts.puts.values():
        if put.topic == terms.DEALS or put.acked_at is None or put.uid not in first:
            continue  # when a transaction ends is the broker's to ask; what is missing, `losses.py` finds
        delivery = first[put.uid]
        due = max(put.acked_at, put.at + put.delay_s)
        if delivery.begun > due + PROMPT_S and not facts.disturbed(delivery.who, due - BACK_S, delivery.begun):
            yield Violation("late", f"{delivery}: {delivery.begun - due:.3f} s after it was there")
    for entry in facts.copies_to_retry(terms.BYSTANDER) + facts.dead_letters(terms.BYSTANDER):
        yield Violation("bystander", f"{entry} has come back to a group that handles everything")
