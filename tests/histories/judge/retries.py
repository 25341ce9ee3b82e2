"""A message given back is redelivered once, not early, as often as configured, and then a dead letter.

Each message that a member has given back and the broker has taken is stored for a later try, or as a dead letter, once.
A request whose answer did not come, or came late after a failure, may have been carried out twice. A record that is
given back again, since it came twice, is not stored once more while its copy still waits or is a dead letter, and is
once the copy's time has come. Copies of a message in different places are different records.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from histories import terms
from histories.judge.facts import Facts, GivenBack, QueueKey
from histories.judge.violation import Violation
from reput_protocol.record.delays import DELAY_LEVELS_MS

_FIRST_LEVEL: Final = 3
_EARLY_S: Final = 0.01
"""Between the clock of the broker and that of the history."""
_CLOCKS_S: Final = 0.05
"""Around the moment at which a copy's time comes."""
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
        is_dead = any((entry.uid, entry.attempt) == (uid, attempt) for entry in facts.dead_letters(group))
        by_record: dict[tuple[QueueKey, int], list[GivenBack]] = defaultdict(list)
        for back in sorted(backs[key], key=lambda back: back.asked):
            by_record[back.queue, back.offset].append(back)
        least = sum(_least(given_back, is_dead=is_dead) for given_back in by_record.values())
        most = sum(_most(facts, given_back, is_dead=is_dead) for given_back in by_record.values())
        if stored[key] < least:
            yield Violation(
                "retry dropped", f"{uid}, given back in {group} {least} times, came back {stored[key]} times"
            )
        elif stored[key] > most:
            yield Violation(
                "dead letter twice" if is_dead else "retry twice",
                f"{uid}, given back in {group} {most} times, try {attempt} is there {stored[key]} times",
            )


def _least(backs: list[GivenBack], *, is_dead: bool) -> int:
    """How often a record must have been stored: each time that no copy of a time before can have waited still."""
    waits_s = math.inf if is_dead else max(map(_delay_s, backs)) + _CLOCKS_S
    count, waits_until = 0, -math.inf
    for back in backs:
        if back.done is not None and back.asked > waits_until:
            count += 1
            waits_until = back.done + waits_s
    return count


def _most(facts: Facts, backs: list[GivenBack], *, is_dead: bool) -> int:
    """How often a record may have been stored: not again while the copy of the first time is sure to wait."""
    first = backs[0]
    waits_until = math.inf if is_dead else first.asked + _delay_s(first) - _CLOCKS_S
    count = 0
    for back in backs:
        waits = first.done is not None and first.done < back.asked and back.until < waits_until
        # A broker that was restarted meanwhile knows only those requests that are repeated.
        if not waits or facts.broker_down(first.asked, back.until):
            count += _most_of_one(facts, back)
    return count


def _most_of_one(facts: Facts, back: GivenBack) -> int:
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
                yield Violation("dead letter", f"{entry.uid} ({entry.kind}) is one of {group}, and should not be")
            wanted = set(range(terms.ATTEMPTS_MAX + 1)) if group == terms.SHARED else {0}
            if tries[group, entry.uid] != wanted or entry.attempt != max(wanted) + 1:
                yield Violation(
                    "attempts",
                    f"{entry.uid} is a dead letter of {group} after tries {sorted(tries[group, entry.uid])}, counted "
                    f"as {entry.attempt}",
                )
