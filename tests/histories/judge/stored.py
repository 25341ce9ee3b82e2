"""A message stored once is there once; rolled-back ones are not; none is delivered before its decision.

- Each put, delayed or committed message is in its topic once: clients repeat only puts that the broker knows again.
- A put that was repeated gets the receipt of the first time.
- What was reported as not stored, or not sent, is not there.
- A half message is delivered only after its transaction has committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from histories import terms
from histories.judge.facts import Facts
from histories.judge.violation import Violation


def judge(facts: Facts) -> Iterator[Violation]:
    """Look at every message of the topics that were sent to."""
    copies = Counter(entry.uid for entry in facts.stored if entry.queue[0] in terms.TOPICS)
    for uid, count in copies.items():
        put = facts.puts.get(uid)
        if put is None:
            continue
        if count > 1:
            rule = {terms.LATER: "delayed once", terms.DEALS: "committed once"}.get(
                put.topic, "deduplicated" if put.deduplicated else "stored once"
            )
            yield Violation(rule, f"{uid} lies in {put.topic} {count} times")
        if put.refused == put.times:
            yield Violation("refused", f"{uid} was said not to be stored, and lies in {put.topic}")
        if put.kind in terms.ROLLED_BACK:
            yield Violation("half message", f"{uid} was rolled back and lies in {put.topic}")
    yield from _receipts(facts)
    yield from _decisions(facts)


def _receipts(facts: Facts) -> Iterator[Violation]:
    for put in facts.puts.values():
        if put.deduplicated and len(set(put.receipts)) > 1:
            yield Violation("deduplicated", f"{put.uid} was acknowledged at {sorted(set(put.receipts))}")


def _decisions(facts: Facts) -> Iterator[Violation]:
    for delivery in facts.deliveries:
        put = facts.puts.get(delivery.uid)
        if put is not None and put.topic == terms.DEALS:
            decided = facts.decided.get(delivery.uid)
            if decided is None or delivery.begun < decided:
                yield Violation("half message", f"{delivery} was delivered before it was committed, {decided}")
