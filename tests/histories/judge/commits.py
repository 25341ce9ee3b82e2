"""Offsets: nothing is committed that is not handled, and committed offsets do not go back.

A commit counts from the moment it is asked for: everything before it must have been handled by then, or be back with
the broker. An offset that is read must not be lower than one acknowledged, or read, before the request. What a broker
of several has lost with its power the others have: it counts once that broker leads. Another master need not have what
was read from the one before and acknowledged to no member.
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
    committed, read = _Highs(), _Highs()
    without: set[str] = set()
    has_leaders = any(event.what == "leads" for event in facts.events)
    for event in facts.events:
        if event.what in ("offset", "committed") and facts.is_overruled(event.at):
            continue
        if event.what == "offset":
            offset = -1 if event["offset"] is None else event["offset"]
            before = max(highs.before(_key(event), event["asked"]) for highs in (committed, read))
            if offset < before:
                yield Violation("offset went back", f"{event}, after {before}")
            read.note(event, offset)
        elif event.what == "committed":
            committed.note(event, event["offset"])
        elif event.what == "leads":
            # The one before may have handed out what was not answered, because the others did not have it.
            read.forget(event.at)
            if event["address"] in without:
                without.remove(event["address"])
                committed.forget(event.at)
        elif event.what == "may-lose" and "offsets" in event["levels"]:
            if has_leaders and event.get("of"):
                without.add(event["of"])
            else:
                for highs in (committed, read):
                    highs.forget(event.at)


class _Highs:
    """The highest offsets that were known, by queue and time."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, QueueKey], list[tuple[float, int]]] = defaultdict(list)  # rising in both
        self._lost_at = -math.inf

    def before(self, key: tuple[str, QueueKey], asked: float) -> int:
        return max((high for at, high in self._known[key] if at <= asked), default=-1)

    def note(self, event: Event, offset: int) -> None:
        if event.get("asked", event.at) < self._lost_at:
            return  # the answer was on its way for so long
        highs = self._known[_key(event)]
        if not highs or offset > highs[-1][1]:
            highs.append((event.at, offset))

    def forget(self, at: float) -> None:
        self._known.clear()
        self._lost_at = at


def _key(event: Event) -> tuple[str, QueueKey]:
    return event["group"], (event["topic"], event["queue"])
