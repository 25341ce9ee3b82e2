"""Judges of histories: one file per rule, all pure. `judge` asks them all."""

from __future__ import annotations

from collections.abc import Sequence

from histories.history import Event
from histories.judge import (
    bystanders,
    commits,
    delays,
    duplicates,
    locks,
    losses,
    order,
    owners,
    replication,
    retries,
    stored,
    stranding,
)
from histories.judge.facts import Facts
from histories.judge.violation import Violation

RULES = (
    losses.judge,
    stored.judge,
    commits.judge,
    duplicates.judge,
    owners.judge,
    order.judge,
    locks.judge,
    retries.judge,
    delays.judge,
    bystanders.judge,
    replication.judge,
    stranding.judge,
)


def judge(events: Sequence[Event]) -> tuple[Facts, list[Violation]]:
    """Return what a history says, and what is wrong with it."""
    facts = Facts.of(events)
    return facts, [violation for rule in RULES for violation in rule(facts)]
