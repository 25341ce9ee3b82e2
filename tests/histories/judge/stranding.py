"""A client that knows all brokers leaves a master that is isolated from the others, and finds the next one.

The isolated master hears nothing of the others and of the engine, and everything of its clients. Once another one
leads, and nothing else is disturbed, every producer sends again within some seconds, and so does one that starts then.
"""

from __future__ import annotations

from collections.abc import Iterator

from histories.history import Event
from histories.judge.facts import Facts, Span
from histories.judge.violation import Violation

FIND_S = 6.0
"""How long clients may take to find the next master, and that to have a slave in sync."""
_AFTERMATH_S = 3.0
_SEEN_S = 1.0
_FAILURES = ("refused", "unknown", "not-reached", "unconnected")


def judge(facts: Facts) -> Iterator[Violation]:
    """Look at each isolation of a master, as long as nothing else was disturbed."""
    healed = {event["name"]: event.at for event in facts.events if event.what == "healed"}
    for event in facts.events:
        if event.what == "isolated":
            until = healed.get(event["name"], facts.end)
            since = _quiet_since(facts, event, until, healed)
            if since is not None:
                yield from _stranded(facts, Span(since, until))


def _quiet_since(facts: Facts, isolated: Event, until: float, healed: dict[str, float]) -> float | None:
    """Return from when on another master led, and nothing else was disturbed; None if there was none."""
    leads = (
        event.at
        for event in facts.events
        if event.what == "leads" and isolated.at < event.at < until and event["address"] != isolated["of"]
    )
    since = next(leads, None)
    if since is None:
        return None
    for event in facts.events:
        if event.what == "fault" and event.at < until and event["how"] not in ("failover", "isolate-master"):
            since = max(since, healed.get(event["name"], until) + _AFTERMATH_S)
    return since


def _stranded(facts: Facts, quiet: Span) -> Iterator[Violation]:
    started = {event.who: event.at for event in facts.events if event.what == "start"}
    producers = {event.who for event in facts.events if event.what == "put"}
    for who in sorted(producers | _unconnected(facts)):
        since = max(quiet.since, started.get(who, 0.0)) + FIND_S
        if quiet.until - since < _SEEN_S:
            continue
        begun = {
            event["uid"] for event in facts.events if event.what == "put" and event.who == who and since <= event.at
        }
        ends = [event for event in facts.events if event.who == who and since <= event.at <= quiet.until]
        failures = [event for event in ends if event.what in _FAILURES and event.get("uid") in {None, *begun}]
        # What has not connected and sends nothing may be a consumer.
        if failures or (who in producers and not any(event.what == "acked" for event in ends)):
            found = str(failures[0]) if failures else "nothing was acknowledged"
            yield Violation("stranded", f"{who}, {since - quiet.since:.1f} s after another master led: {found}")


def _unconnected(facts: Facts) -> set[str]:
    return {event.who for event in facts.events if event.what == "unconnected"}
