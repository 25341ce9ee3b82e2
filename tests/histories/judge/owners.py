"""No two members have a queue at once for longer than a handover takes, unless one was disturbed. One always has it.

A member that gets a queue of a living member waits before it asks where to continue, so that the other one can
hear of it, let go and commit. (In order locks see to that.)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from typing import Final, TypeAlias

from histories import terms
from histories.judge.facts import Facts, QueueKey, Span
from histories.judge.holdings import Holding, Holdings
from histories.judge.violation import Violation

OVERLAP_S: Final = 2.0
QUIET_S: Final = 3.0
"""How long before a disturbance may still have its effects."""
WAIT_S: Final = 0.3
"""How long a member waits for another to let go (client.md)."""
STANDS_S: Final = 6.0
"""How long after a disturbance a queue may have no owner."""
Owners: TypeAlias = "dict[tuple[str, QueueKey], list[tuple[str, Span]]]"
"""By group and queue."""


def judge(facts: Facts) -> Iterator[Violation]:
    """Compare which queues members had."""
    owners = _owners(facts)
    yield from _owned_twice(facts, owners)
    yield from _owned_by_none(facts, owners)
    yield from _taken_too_soon(facts)


def _owners(facts: Facts) -> Owners:
    """Return the members that had each queue, with from when to when."""
    owners: Owners = defaultdict(list)
    has_since: dict[tuple[str, QueueKey], float] = {}

    def had_until(who: str, queue: QueueKey, at: float) -> None:
        since = has_since.pop((who, queue))
        owners[facts.groups.get(who, ""), queue].append((who, Span(since, min(at, facts.killed.get(who, at)))))

    for event in facts.events:
        if event.what == "let-go":  # one that leaves says no more what it has
            queue = (event["topic"], event["queue"])
            if (event.who, queue) in has_since:
                had_until(event.who, queue, event.at)
        if event.what != "assigned":
            continue
        queues = {(topic, queue_id) for topic, queue_id in event["queues"]}
        for who, queue in [key for key in has_since if key[0] == event.who and key[1] not in queues]:
            had_until(who, queue, event.at)
        for queue in queues:
            has_since.setdefault((event.who, queue), event.at)
    for who, queue in list(has_since):
        had_until(who, queue, facts.lives[who].until)
    return owners


def _owned_twice(facts: Facts, owners: Owners) -> Iterator[Violation]:
    for (group, queue), spans in owners.items():
        for (one, first), (other, second) in combinations(spans, 2):
            since, until = max(first.since, second.since), min(first.until, second.until)
            if one == other or until - since < OVERLAP_S:
                continue
            if not any(facts.disturbed(who, since - QUIET_S, until) for who in (one, other)):
                yield Violation(
                    "owned twice", f"{group}: {one} and {other} both had {queue} from {since:.3f} to {until:.3f}"
                )


def _owned_by_none(facts: Facts, owners: Owners) -> Iterator[Violation]:
    """A queue that a group has had needs an owner soon after the last disturbance, until the history has settled."""
    settled = next((event.at for event in facts.events if event.what == "settled"), 0.0)
    for (group, queue), spans in owners.items():
        members = [who for who in facts.lives if facts.groups.get(who) == group]
        changes = [at for who in members for at in facts.lives[who]]
        disturbed = [*facts.down, *(span for who in members for span in facts.stood[who])]
        since = math.inf
        for owned in [*sorted(span for _, span in spans), Span(settled, settled)]:
            until = min(owned.since, settled)
            calm = [at for at in changes if since < at < until]
            calm += [span.until for span in disturbed if span.meets(since, until)]
            calm_since = max(since, *calm, 0.0)
            if until - calm_since > STANDS_S:
                yield Violation(
                    "owned by none",
                    f"{group}: no member had {queue} from {since:.3f} to {until:.3f}, "
                    f"although nothing was disturbed since {calm_since:.3f}",
                )
            since = owned.until if since == math.inf else max(since, owned.until)


def _taken_too_soon(facts: Facts) -> Iterator[Violation]:
    for holdings in Holdings(facts):
        for holding in holdings:
            asked = holding.asked(holding.taken)
            if holding.group == terms.ORDERLY or asked >= holding.wanted + WAIT_S:
                continue
            for other in holdings:
                if other.who == holding.who or not other.taken < asked < _until(facts, other):
                    continue
                if not any(facts.disturbed(one.who, asked - QUIET_S, holding.taken) for one in (holding, other)):
                    yield Violation(
                        "taken too soon",
                        f"{holding.group}: {holding.who} was to have {holding.queue} at {holding.wanted:.3f} and asked "
                        f"at {asked:.3f} where to go on, but {other.who} let it go at {other.let_go:.3f}",
                    )


def _until(facts: Facts, holding: Holding) -> float:
    """When a member had a queue no more, however that came."""
    end = min(facts.lives[holding.who].until, facts.killed.get(holding.who, math.inf))
    return min(holding.let_go, end)
