"""Trying the judges with planted bugs: a short history made for each."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from histories.churn import Plan
from histories.planted import BUGS
from histories.recording import Outcome, record

_HISTORIES_MAX: Final = 3
_DURATION_S: Final = 10.0
_SETTLE_S: Final = {True: 25.0, False: 12.0}
"""How long to wait for pending messages: long enough where a loss has to be found."""


class Tried(NamedTuple):
    """What came of trying a bug: the last history of so many, and whether a rule that should has noticed it."""

    outcome: Outcome
    histories: int
    caught: bool


def try_bug(name: str, seed: int, keep: Path | None = None) -> Tried:
    """Record short histories with a bug in them, made for it, until it is noticed; at most three."""
    bug = BUGS[name]
    plan = Plan(_DURATION_S, weights=bug.weights, first=bug.first, pause_s=(0.3, 1.5))
    settle_s = _SETTLE_S["lost" in bug.rules]
    for number in range(1, _HISTORIES_MAX + 1):
        outcome = record(plan, seed + number - 1, settle_s=settle_s, bug=name, kinds=bug.kinds, keep=keep)
        caught = any(violation.rule in bug.rules for violation in outcome.violations)
        if caught:
            break
    return Tried(outcome, number, caught)
