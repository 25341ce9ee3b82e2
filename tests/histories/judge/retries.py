"""What was given back comes again once, not before its time, so often as it should, and then it is a dead letter.

Each message that a member has given back and the broker has taken is stored for a later try, or as a dead letter, once.
A request whose answer did not come, or came late after a failure, may have been carried out twice. A message that is
given back again, since it came twice, is not stored once more while its copy still waits, or if it is a dead letter.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from histories import terms
from histories.judge.facts import Facts, GivenBack
from histories.judge.violation import Violation
from reput_protocol.delay_levels import DELAY_LEVELS_MS

_FIRST_LEVEL: Final = 3
_EARLY_S: Final = 0.01
"""Between the clock of the broker and that of the history."""
Try = tuple[str, str, int]
"""Group, message, and which try comes next."""


def judge(facts: Facts) -> Iterator[Violation]:
    """Compare what was given back with what came of it."""
    backs: dict[Try, list[GivenBack]] = defaultdict(list)
    for back in facts.backs:
        backs[back.group, back.uid, back.attempt + 1].append(back)
    yield from _exact(facts, backs)
    yield from _schedule(facts, backs)
    yield from _dead_letters(facts)


def _exact(facts: Facts, backs: dict[Try, list[GivenBack]]) -> Iterator[Violation]:
    stored: Counter[Try] = Counter()
    for group in terms.GROUPS:
        for entry in facts.copies_to_retry(group) + facts.dead_letters(group):
            stored[group, entry.uid, entry.attempt] += 1
    for key in {*stored, *backs}:
        group, uid, attempt = key
        least = _least(facts, key, backs[key])
        most = sum(_most(facts, back) for back in backs[key])
        if stored[key] < least:
            yield Violation(
                "retry dropped", f"{uid}, given back in {group} {least} times, came back {stored[key]} times"
            )
        elif stored[key] > most:
            is_dead = any(entry.uid == uid for entry in facts.dead_letters(group))
            rule = "dead letter twice" if is_dead and attempt > terms.ATTEMPTS_MAX else "retry twice"
            yield Violation(
                rule, f"{uid}, given back in {group} {most} times, try {attempt} is there {stored[key]} times"
            )


def _least(facts: Facts, key: Try, backs: list[GivenBack]) -> int:
    """How often a message must have been stored: each time that no copy of a time before can have been there still."""
    group, uid, _ = key
    is_dead = any(entry.uid == uid for entry in facts.dead_letters(group))
    came = [
        delivery.begun
        for delivery in facts.deliveries
        if (delivery.group, delivery.uid, delivery.attempt) == key
    ]
    taken: list[float] = []
    for back in sorted((back for back in backs if back.done is not None), key=lambda back: back.asked):
        if not taken or (not is_dead and any(taken[-1] < begun < back.asked for begun in came)):
            taken.append(back.asked)
    return len(taken)


def _most(facts: Facts, back: GivenBack) -> int:
    """How often a message may have been stored by one giving back: asked, sent to the retry topic instead."""
    until = min(back.until, facts.lives[back.who].until)
    if back.done is not None and not facts.disturbed(back.who, back.asked, until):
        return 1
    return 3


def _schedule(facts: Facts, backs: dict[Try, list[GivenBack]]) -> Iterator[Violation]:
    for delivery in facts.deliveries:
        if not delivery.attempt:
            continue
        given_back = backs[delivery.group, delivery.uid, delivery.attempt]
        earliest = min((back.asked + _delay_s(back) for back in given_back), default=math.inf)
        if delivery.begun < earliest - _EARLY_S:
            when = "was never given back" if not given_back else f"was due at {earliest:.3f}"
            yield Violation("retry early", f"{delivery}, try {delivery.attempt}, {when}")


def _delay_s(back: GivenBack) -> float:
    level = back.level or _FIRST_LEVEL + back.attempt
    return DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1] / 1000 if level > 0 else 0.0


def _dead_letters(facts: Facts) -> Iterator[Violation]:
    tries: dict[tuple[str, str], set[int]] = defaultdict(set)
    for delivery in facts.deliveries:
        tries[delivery.group, delivery.uid].add(delivery.attempt)
    for group in terms.GROUPS:
        for entry in facts.dead_letters(group):
            if entry.kind != terms.POISON or group == terms.BYSTANDER:
                yield Violation(
                    "dead letter", f"{entry.uid} ({entry.kind}) is one of {group}, and should not be"
                )
            wanted = set(range(terms.ATTEMPTS_MAX + 1)) if group == terms.SHARED else {0}
            if tries[group, entry.uid] != wanted or entry.attempt != max(wanted) + 1:
                yield Violation(
                    "attempts",
                    f"{entry.uid} is a dead letter of {group} after tries {sorted(tries[group, entry.uid])}, counted "
                    f"as {entry.attempt}",
                )
