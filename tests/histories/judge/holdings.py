"""Which member had which queue from when to when, by the members' own records.

A member asks where to continue and takes a queue; gives it up, from when on it hands out nothing more; and lets it go
with a last commit. A member that leaves lets everything go without giving it up first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from histories.history import Event
from histories.judge.facts import Delivery, Facts, QueueKey


@dataclass(slots=True)
class Holding:
    """A queue in the hands of one member, once."""

    who: str
    group: str
    queue: QueueKey
    wanted: float
    """When the member was to have it."""
    taken: float
    reads: list[tuple[float, float]]
    """When it asked where to continue, and was answered."""
    given_up: float = math.inf
    let_go: float = math.inf
    position: int = 0
    """How far the queue was handled when it was let go."""

    def asked(self, at: float) -> float:
        """When the member last asked where to continue, before `at`."""
        return self.last_read(at)[0]

    def last_read(self, at: float) -> tuple[float, float]:
        """When the member last asked where to continue, before `at`, and when it was answered."""
        return max((read for read in self.reads if read[1] <= at), default=(self.taken, self.taken))


@dataclass(slots=True)
class _Member:
    open: dict[QueueKey, Holding] = field(default_factory=dict)
    wanted: dict[QueueKey, float] = field(default_factory=dict)
    reads: dict[QueueKey, tuple[float, float]] = field(default_factory=dict)


class Holdings:
    """All of them."""

    def __init__(self, facts: Facts) -> None:
        self._by_queue: dict[tuple[str, QueueKey], list[Holding]] = defaultdict(list)
        self._members: dict[str, _Member] = defaultdict(_Member)
        for event in facts.events:
            self._take(event)

    def __iter__(self) -> Iterator[list[Holding]]:
        return iter(self._by_queue.values())

    def of(self, delivery: Delivery) -> Holding | None:
        """Return the holding in which a member got a message."""
        found = None
        for holding in self._by_queue[delivery.group, delivery.queue]:
            if holding.who == delivery.who and holding.taken <= delivery.begun:
                found = holding
        return found

    def _take(self, event: Event) -> None:
        member = self._members[event.who]
        match event.what:
            case "wanted":
                queues = {(topic, queue_id) for topic, queue_id in event["queues"]}
                member.wanted = {queue: member.wanted.get(queue, event.at) for queue in queues}
            case "offset" if event.who != "runner":
                queue = (event["topic"], event["queue"])
                member.reads[queue] = (event["asked"], event.at)
                if queue in member.open:
                    member.open[queue].reads.append(member.reads[queue])
            case "taken":
                queue = (event["topic"], event["queue"])
                wanted = member.wanted.get(queue, event.at)
                reads = [member.reads[queue]] if queue in member.reads else []
                holding = Holding(event.who, event["group"], queue, wanted, event.at, reads)
                member.open[queue] = holding
                self._by_queue[event["group"], queue].append(holding)
            case "given-up":
                self._holding(event).given_up = event.at
            case "let-go":
                holding = self._holding(event)
                holding.let_go, holding.position = event.at, event["position"]
                member.open.pop(holding.queue, None)
            case "unconnected":  # a member that could not join has nothing
                for holding in member.open.values():
                    holding.let_go = min(holding.let_go, event.at)
                member.open.clear()
            case _:
                pass

    def _holding(self, event: Event) -> Holding:
        queue = (event["topic"], event["queue"])
        holdings = [holding for holding in self._by_queue[event["group"], queue] if holding.who == event.who]
        return holdings[-1]
