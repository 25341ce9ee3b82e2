"""No lock is given to one member while it is another's.

A member has a lock from the answer that gives it, until it asks to free it or to leave, or until the lock has not been
renewed for its time, which counts from when the renewal was asked for. A lock that was given to another one, all of
whose request and answer are in between, was given twice. A broker that is restarted knows no locks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from histories import terms
from histories.judge.facts import Facts, QueueKey
from histories.judge.violation import Violation


@dataclass(slots=True)
class _Hold:
    who: str
    given: float
    expires: float


def judge(facts: Facts) -> Iterator[Violation]:
    """Follow all locks."""
    held: dict[tuple[str, QueueKey], dict[str, _Hold]] = {}
    for event in facts.events:
        match event.what:
            case "locked":
                yield from _given(facts, held, event.who, event["group"], event["queues"], event["asked"], event.at)
            case "unlock":
                for topic, queue_id in event["queues"]:
                    held.get((event["group"], (topic, queue_id)), {}).pop(event.who, None)
            case "leave":
                for holds in held.values():
                    holds.pop(event.who, None)
            case "broker-down":
                held.clear()
            case _:
                pass


def _given(
    facts: Facts,
    held: dict[tuple[str, QueueKey], dict[str, _Hold]],
    who: str,
    group: str,
    queues: list[tuple[str, int]],
    asked: float,
    at: float,
) -> Iterator[Violation]:
    if facts.broker_down(asked, at):
        return
    for topic, queue_id in queues:
        holds = held.setdefault((group, (topic, queue_id)), {})
        for other in list(holds.values()):
            if other.who == who:
                continue
            if other.given < asked and at < other.expires:
                yield Violation(
                    "lock given twice",
                    f"{group} {topic}/{queue_id} to {other.who} at {other.given:.3f}, until {other.expires:.3f}, and "
                    f"to {who}, which asked at {asked:.3f} and was answered at {at:.3f}",
                )
            if other.expires <= at:
                del holds[other.who]
        holds[who] = _Hold(who, at if who not in holds else holds[who].given, asked + terms.LOCK_TIMEOUT_S)
