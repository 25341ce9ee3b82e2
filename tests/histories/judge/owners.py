"""No two members have a queue at once for longer than a handover takes, unless one was disturbed.

A member that gets a queue of a living member waits before it asks where to continue, so that the other one can
hear of it, let go and commit. (In order locks see to that.)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from typing import Final

from histories import terms
from histories.judge.facts import Facts, QueueKey, Span
from histories.judge.holdings import Holding, Holdings
from histories.judge.violation import Violation

OVERLAP_S: Final = 2.0
QUIET_S: Final = 3.0
"""How long before a disturbance may still have its effects."""
WAIT_S: Final = 0.3
"""How long a member waits for another to let go (client.md)."""


def judge(facts: Facts) -> Iterator[Violation]:
    """Compare which queues members had."""
    yield from _owned_twice(facts)
    yield from _taken_too_soon(facts)


def _owned_twice(facts: Facts) -> Iterator[Violation]:
    owned: dict[tuple[str, QueueKey], list[tuple[str, Span]]] = defaultdict(list)
    has_since: dict[tuple[str, QueueKey], float] = {}
    for event in facts.events:
        if event.what == "let-go":  # one that leaves says no more what it has
            key = event.who, (event["topic"], event["queue"])
            if key in has_since:
                owned[event["group"], key[1]].append((event.who, Span(has_since.pop(key), event.at)))
        if event.what != "assigned":
            continue
        queues = {(topic, queue_id) for topic, queue_id in event["queues"]}
        for who, queue in [key for key in has_since if key[0] == event.who and key[1] not in queues]:
            owned[event["group"], queue].append((who, Span(has_since.pop((who, queue)), event.at)))
        for queue in queues:
            has_since.setdefault((event.who, queue), event.at)
    for (who, queue), since in has_since.items():
        owned[facts.groups.get(who, ""), queue].append((who, Span(since, facts.lives[who].until)))
    for (group, queue), spans in owned.items():
        for (one, first), (other, second) in combinations(spans, 2):
            since, until = max(first.since, second.since), min(first.until, second.until)
            until = min(until, *(facts.killed.get(who, until) for who in (one, other)))
            if one == other or until - since < OVERLAP_S:
                continue
            if not any(facts.disturbed(who, since - QUIET_S, until) for who in (one, other)):
                yield Violation(
                    "owned twice",
                    f"{group}: {one} and {other} both had {queue} from {since:.3f} to {until:.3f}",
                )


def _taken_too_soon(facts: Facts) -> Iterator[Violation]:
    for holdings in Holdings(facts):
        for holding in holdings:
            asked = holding.asked(holding.taken)
            if holding.group == terms.ORDERLY or asked >= holding.wanted + WAIT_S:
                continue
            for other in holdings:
                if other.who == holding.who or not other.taken < asked < _until(facts, other):
                    continue
                if not any(
                    facts.disturbed(one.who, asked - QUIET_S, holding.taken) for one in (holding, other)
                ):
                    yield Violation(
                        "taken too soon",
                        f"{holding.group}: {holding.who} was to have {holding.queue} at {holding.wanted:.3f} and asked "
                        f"at {asked:.3f} where to go on, but {other.who} let it go at {other.let_go:.3f}",
                    )


def _until(facts: Facts, holding: Holding) -> float:
    """When a member had a queue no more, however that came."""
    end = min(facts.lives[holding.who].until, facts.killed.get(holding.who, math.inf))
    return min(holding.let_go, end)
