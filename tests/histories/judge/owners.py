"""No two members have a queue at once for longer than it takes to hand it over, unless one of them is not itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from typing import Final

from histories.judge.facts import Facts, QueueKey, Span
from histories.judge.violation import Violation

OVERLAP_S: Final = 2.0
QUIET_S: Final = 3.0
"""How long before a disturbance may still have its effects."""


def judge(facts: Facts) -> Iterator[Violation]:
    """Compare what members said that they had."""
    owned: dict[tuple[str, QueueKey], list[tuple[str, Span]]] = defaultdict(list)
    has_since: dict[tuple[str, QueueKey], float] = {}
    for event in facts.events:
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
