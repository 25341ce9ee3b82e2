"""Offsets: nothing is committed that is not handled, and committed offsets do not go back.

A commit counts from the moment it is asked for: everything before it must have been handled by then, or be back with
the broker. An offset that is read must not be lower than one acknowledged, or read, before the request.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from histories import terms
from histories.history import Event
from histories.judge.facts import Facts, QueueKey
from histories.judge.violation import Violation


def judge(facts: Facts) -> Iterator[Violation]:
    """Look at every commit and every read."""
    yield from _too_soon(facts)
    yield from _backwards(facts)


def _too_soon(facts: Facts) -> Iterator[Violation]:
    settled: dict[tuple[str, QueueKey], dict[int, float]] = defaultdict(dict)
    for group in terms.GROUPS:
        for queue, deliveries in facts.by_queue(group).items():
            for delivery in deliveries:
                before = settled[group, queue].get(delivery.offset, math.inf)
                settled[group, queue][delivery.offset] = min(before, delivery.settled)
    said: set[tuple[str, QueueKey, int]] = set()
    for event in facts.events:
        if event.what not in ("commit", "offset") or not event["offset"]:
            continue
        key = _key(event)
        times, latest = settled[key], -math.inf
        for offset in range(event["offset"]):
            at = times.get(offset, math.inf)
            if at > event.at and (*key, offset) not in said:
                said.add((*key, offset))
                when = "is never" if at == math.inf else f"is {at - event.at:.3f} s later"
                yield Violation("commit", f"{event} although offset {offset} {when} settled")
                break
            latest = max(latest, at)


def _backwards(facts: Facts) -> Iterator[Violation]:
    known: dict[tuple[str, QueueKey], list[tuple[float, int]]] = defaultdict(list)  # rising in both
    lost_at = -math.inf
    for event in facts.events:
        if event.what == "offset":
            offset = -1 if event["offset"] is None else event["offset"]
            before = max((high for at, high in known[_key(event)] if at <= event["asked"]), default=-1)
            if offset < before:
                yield Violation("offset went back", f"{event}, after {before}")
        elif event.what == "committed":
            offset = event["offset"]
        elif event.what == "may-lose" and "offsets" in event["levels"]:
            known.clear()
            lost_at = event.at
            continue
        else:
            continue
        if event.get("asked", event.at) < lost_at:
            continue  # the answer was on its way for so long
        highs = known[_key(event)]
        if not highs or offset > highs[-1][1]:
            highs.append((event.at, offset))


def _key(event: Event) -> tuple[str, QueueKey]:
    return event["group"], (event["topic"], event["queue"])
