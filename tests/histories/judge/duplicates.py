"""A duplicate must have one of few reasons.

Of two deliveries of one message from one queue to one group, the second is explained only if:

- it came again in the same member, which had raised and could not give it back, or consumes in order;
- the second's member had stood still, and was awake again for a moment only;
- the first was in flight, or not committed, when its member was killed, disconnected or suspended;
- the first, or a message before it in its queue, behind which nothing can be committed, was still in flight when its
  member let the queue go, and had been given the moment that it is given;
- its member's last commit was in flight when the next owner asked where to continue (see `owners.py` for how long that
  one has to wait first).

A message that was handled, and whose commit was acknowledged before the next owner asked where to continue, never comes
again; see `commits.py` for the answer that the owner must get then.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from histories import terms
from histories.judge.facts import Delivery, Facts, QueueKey
from histories.judge.holdings import Holding, Holdings
from histories.judge.violation import Violation

AGAIN_HERE: Final = "raised, again here"
HANDOVER_S: Final = 1.0
"""Seconds after the next owner's question in which the previous one, notified late, may still let go."""
GRACE_S: Final = 0.1
"""How long what is in flight is given when a queue is given up (client.md)."""
_ROUNDING_S: Final = 0.001
_NOTED_S: Final = 0.1
"""Between a handler's note that a message is handled and the client's knowing it, on a machine that is busy."""
_COMMIT_S: Final = 5.0
"""How long the answer to a last commit may take."""
_AWAKE_S: Final = 0.3
BACK_S: Final = 3.0
"""How long a connection that was lost, or a suspended process, has its effects: reconnecting, joining again."""


class Reasons:
    """Why messages came twice: counts by reason."""

    def __init__(self, facts: Facts) -> None:
        self.counts: Counter[str] = Counter()
        self.violations: list[Violation] = []
        self._facts = facts
        self._holdings = Holdings(facts)
        self._committed: dict[tuple[str, QueueKey], list[tuple[float, float, int]]] = defaultdict(list)
        """When each commit was asked for, when its answer was read, which can be long after, and its offset."""
        self._committers: dict[tuple[str, str, QueueKey], list[tuple[float, int]]] = defaultdict(list)
        self._leaving: dict[str, float] = {}
        for event in facts.events:
            if event.what == "committed":
                queue = (event["topic"], event["queue"])
                asked = event.get("asked", event.at)
                self._committed[event["group"], queue].append((asked, event.at, event["offset"]))
                self._committers[event.who, event["group"], queue].append((event.at, event["offset"]))
            elif event.what == "leaving":
                self._leaving[event.who] = event.at
        for group in terms.GROUPS:
            for deliveries in facts.by_queue(group).values():
                self._look(deliveries)

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
                    Violation("duplicate", f"{first} and again {delivery.who} {delivery.begun:.3f}, for no reason")
                )
            else:
                self.counts[reason] += 1

    def _reason(self, first: Delivery, second: Delivery, deliveries: list[Delivery]) -> str | None:
        facts = self._facts
        if self._was_committed(first, second):
            return None
        if first.who == second.who and first.raised is not None and first.backed is None:
            return AGAIN_HERE
        if facts.died(first.who, first.begun, second.begun):
            return "member killed"
        if facts.broker_down(first.begun - BACK_S, second.begun):
            return "broker down"
        if facts.stood_still(first.who, first.begun - BACK_S, second.begun):
            return "member stood still"
        reason = self._handed_over(first, second, deliveries)
        if reason is not None:
            return reason
        if any(0.0 <= second.begun - span.until <= _AWAKE_S for span in facts.stood[second.who]):
            return "next owner just awake"
        return None

    def _handed_over(self, first: Delivery, second: Delivery, deliveries: list[Delivery]) -> str | None:
        """Why a message came twice whose queue changed hands, or was taken again by the member that had let it go."""
        held, taken = self._holdings.of(first), self._holdings.of(second)
        if held is None or taken is None or held is taken:
            return None
        asked = taken.asked(second.begun)
        if held.let_go > asked + HANDOVER_S:
            return None
        if held.position <= first.offset and self._in_flight(held, deliveries):
            is_first = held.position == first.offset
            return "in flight at a hand-over" if is_first else "behind one in flight at a hand-over"
        committed = any(
            offset > first.offset and asked < at < held.let_go + _COMMIT_S
            for at, offset in self._committers[held.who, held.group, held.queue]
        )
        return "committed late at a hand-over" if committed else None

    def _was_committed(self, first: Delivery, second: Delivery) -> bool:
        """Whether a message was known to be committed when the member that got it again asked where to continue."""
        taken = self._holdings.of(second)
        asked, answered = (second.begun,) * 2 if taken is None else taken.last_read(second.begun)
        return any(
            offset > first.offset
            and first.begun < at <= asked
            and not self._facts.may_have_lost("offsets", asked_for, answered)
            and not self._facts.is_overruled(at)
            for asked_for, at, offset in self._committed[first.group, first.queue]
        )

    def _in_flight(self, held: Holding, deliveries: list[Delivery]) -> bool:
        """Whether the message that a queue was let go at was not settled, and had had its time if it was in hand."""
        found = [
            delivery
            for delivery in deliveries
            if delivery.who == held.who
            and delivery.offset == held.position
            and held.taken <= delivery.begun <= held.let_go + _NOTED_S
        ]
        if not found or any(delivery.settled <= held.let_go - _NOTED_S for delivery in found):
            return False
        if all(delivery.finished <= held.let_go for delivery in found):
            return True  # it was to come again
        if held.group == terms.ORDERLY:
            return False  # the current message is waited for
        leaves = self._leaving.get(held.who, math.inf) <= held.let_go
        return leaves or held.let_go - held.given_up >= GRACE_S - _ROUNDING_S


def judge(facts: Facts) -> Iterator[Violation]:
    """Look at all that came twice."""
    yield from Reasons(facts).violations
