"""Ordered consumption: a message starts when the one before it in its queue is settled, at one member at a time.

Two may have one of a queue's messages at once only if the first was suspended for so long that its lock ran out, or
the broker, which knows the locks, was down meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from histories import terms
from histories.judge.facts import Delivery, Facts, Span
from histories.judge.violation import Violation


def judge(facts: Facts) -> Iterator[Violation]:
    """Look at the queues of the group that consumes in order, and at those that were sent to in order."""
    for queue, deliveries in facts.by_queue(terms.ORDERLY).items():
        if queue[0] in terms.TOPICS:
            yield from _in_order(deliveries)
            yield from _one_at_a_time(facts, deliveries)
    yield from _as_sent(facts)


def _in_order(deliveries: list[Delivery]) -> Iterator[Violation]:
    settled: dict[int, float] = {}
    for delivery in deliveries:
        settled[delivery.offset] = min(settled.get(delivery.offset, math.inf), delivery.settled)
    for delivery in deliveries:
        if delivery.offset and settled.get(delivery.offset - 1, math.inf) > delivery.begun:
            yield Violation("order", f"{delivery} was begun before offset {delivery.offset - 1} was settled")


def _one_at_a_time(facts: Facts, deliveries: list[Delivery]) -> Iterator[Violation]:
    held: list[Delivery] = []
    for delivery in deliveries:
        held = [other for other in held if _hold(facts, other).until > delivery.begun]
        for other in held:
            if other.who == delivery.who:
                if not facts.disturbed(other.who, other.begun - terms.LOCK_TIMEOUT_S, delivery.begun):
                    yield Violation("one at a time", f"{other} and {delivery} were in hand at once")
            elif not _lock_was_lost(facts, other, delivery):
                yield Violation("one at a time", f"{other} was in hand when {delivery} was begun")
        held.append(delivery)


def _hold(facts: Facts, delivery: Delivery) -> Span:
    """The span in which a member had a message."""
    end = min(delivery.finished, facts.lives[delivery.who].until, facts.killed.get(delivery.who, math.inf))
    return Span(delivery.begun, end)


def _lock_was_lost(facts: Facts, first: Delivery, second: Delivery) -> bool:
    since = first.begun - terms.LOCK_TIMEOUT_S
    return facts.broker_down(since, second.begun) or facts.stood_still(first.who, since, second.begun)


def _as_sent(facts: Facts) -> Iterator[Violation]:
    """Messages of one producer are in a queue in the order in which they were sent, but for unknown outcomes.

    A put without an answer may still be under way, such as on a connection whose packets are lost for a while.
    """
    last: dict[tuple[str, int, str], tuple[int, int]] = {}
    for entry in facts.stored:
        if entry.queue[0] == terms.STEPS and facts.puts[entry.uid].acked_at is not None:
            producer, _, number = entry.uid.rpartition("s")
            key = (*entry.queue, producer)
            before = last.get(key, (-1, -1))
            if int(number) < before[1]:
                yield Violation("order", f"{entry} lies behind number {before[1]}")
            last[key] = (entry.offset, int(number))
