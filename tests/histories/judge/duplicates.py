"""What comes twice must have a reason, and there are few.

Of two deliveries of one message from one queue to one group, the second is explained only if:

- it came again in the same member, which had raised and could not give it back, or consumes in order;
- the second's member had stood still, and was awake again for a moment only;
- the first was in flight, or not committed, when its member was killed, cut off or stood still;
- the first, or a message before it in its queue, behind which nothing can be committed, was still in flight when its
  queue changed hands, or its member's commit came too late for the next owner, within a second of the hand-over.

A message that was handled, and whose commit was acknowledged before the next owner asked where to go on, never comes
again; see `commits.py` for what the owner must be told then.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from histories import terms
from histories.judge.facts import Delivery, Facts, QueueKey
from histories.judge.violation import Violation

AGAIN_HERE: Final = "raised, again here"
HANDOVER_S: Final = 1.0
_IN_FLIGHT_S: Final = 0.05
"""What is handled sooner after its queue is given up must be committed: its member waits twice as long for it."""
_AWAKE_S: Final = 0.3
_ON_ITS_WAY_S: Final = 0.1
BACK_S: Final = 3.0
"""How long a connection that was lost, or a process that stood still, has its effects: reconnecting, joining anew."""


class Reasons:
    """Why messages came twice: counts by reason."""

    def __init__(self, facts: Facts) -> None:
        self.counts: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self._facts = facts
        self._reads: dict[tuple[str, str, QueueKey], list[tuple[float, float]]] = defaultdict(list)
        self._commits: dict[tuple[str, QueueKey], list[tuple[float, int]]] = defaultdict(list)
        self._assignments: dict[str, list[tuple[float, set[QueueKey]]]] = defaultdict(list)
        self._read()
        for group in terms.GROUPS:
            for deliveries in facts.by_queue(group).values():
                self._look(deliveries)

    def _read(self) -> None:
        for event in self._facts.events:
            if event.what == "offset" and event.who != "runner":
                queue = (event["topic"], event["queue"])
                self._reads[event.who, event["group"], queue].append((event.at, event["asked"]))
            elif event.what in ("commit", "committed"):
                queue = (event["topic"], event["queue"])
                self._commits[event.who, queue].append((event.at, event["offset"]))
            elif event.what == "assigned":
                queues = {(topic, queue_id) for topic, queue_id in event["queues"]}
                self._assignments[event.who].append((event.at, queues))

    def _look(self, deliveries: list[Delivery]) -> None:
        last: dict[int, Delivery] = {}
        for delivery in deliveries:
            first = last.get(delivery.offset)
            last[delivery.offset] = delivery
            if first is None:
                continue
            reason = self._reason(first, delivery, deliveries)
            if reason is None:
                self.violations.append(
                    Violation(
                        "duplicate", f"{first} and again {delivery.who} {delivery.begun:.3f}, for no reason"
                    )
                )
            else:
                self.counts[reason] += 1

    def _reason(self, first: Delivery, second: Delivery, deliveries: list[Delivery]) -> str | None:
        facts = self._facts
        if first.who == second.who and first.raised is not None and first.backed is None:
            return AGAIN_HERE
        if facts.died(first.who, first.begun, second.begun):
            return "member killed"
        if facts.broker_down(first.begun - BACK_S, second.begun):
            return "broker down"
        if facts.stood_still(first.who, first.begun - BACK_S, second.begun):
            return "member stood still"
        taken = self._taken(second)
        released = self._released(first, taken)
        if released is not None:
            held_until = released + _IN_FLIGHT_S
            if first.settled > held_until:
                return "in flight at a hand-over"
            if any(
                other.who == first.who and other.offset < first.offset and other.begun < released
                and other.settled > held_until
                for other in deliveries
            ):  # fmt: skip
                return "behind one in flight at a hand-over"
        if released is not None and self._committed_late(first, taken):
            return "committed late at a hand-over"
        if any(0.0 <= second.begun - span.until <= _AWAKE_S for span in facts.stood[second.who]):
            return "next owner just awake"
        return None

    def _taken(self, delivery: Delivery) -> float:
        """When a member asked where to go on, before it began with a message."""
        reads = self._reads[delivery.who, delivery.group, delivery.queue]
        index = bisect_right(reads, (delivery.begun, math.inf)) - 1
        return reads[index][1] if index >= 0 else delivery.begun

    def _released(self, first: Delivery, taken: float) -> float | None:
        """When a member had given the queue up that another one took, or gave it up soon; None if it did not."""
        for at, queues in self._assignments[first.who]:
            if at >= first.begun - HANDOVER_S and first.queue not in queues:
                return at if at <= taken + HANDOVER_S else None
        end = self._facts.lives[first.who].until
        return end if end <= taken + HANDOVER_S else None

    def _committed_late(self, first: Delivery, taken: float) -> bool:
        """Whether the first member asked to commit it only when the next had asked where to go on, or just before."""
        commits = self._commits[first.who, first.queue]
        soonest = min((at for at, offset in commits if offset > first.offset), default=math.inf)
        return taken - _ON_ITS_WAY_S <= soonest <= taken + HANDOVER_S


def judge(facts: Facts) -> Iterator[Violation]:
    """Look at all that came twice."""
    yield from Reasons(facts).violations
