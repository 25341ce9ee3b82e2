"""One history of each queue, whatever happens to the brokers; one master in each epoch.

- An offset that a consumer or reader was handed has one message, for ever: the same for all of them, and in the end.
  What a master has handed out is excused that an operator has overruled, because the engine had elected it by a copy.
- No two brokers lead in the same epoch, and none acknowledges what it stored after another has begun to lead.
- In the end all brokers have the same log.
"""

from __future__ import annotations

from collections.abc import Iterator

from histories.judge.facts import Facts, QueueKey
from histories.judge.violation import Violation


def judge(facts: Facts) -> Iterator[Violation]:
    """Compare all that was handed out with each other and with what is there in the end."""
    yield from _taken_back(facts)
    yield from _two_masters(facts)
    yield from _copies(facts)


def _taken_back(facts: Facts) -> Iterator[Violation]:
    handed_out: dict[tuple[QueueKey, int], tuple[str, str]] = {}
    for event in facts.events:
        if event.what not in ("begun", "read") or facts.is_overruled(event.at):
            continue
        place, uid = ((event["topic"], event["queue"]), event["offset"]), event["uid"]
        before, where = handed_out.setdefault(place, (uid, str(event)))
        if before != uid:
            yield Violation("taken back", f"{event}, and before that {where}")
    stored = {(entry.queue, entry.offset): entry.uid for entry in facts.stored}
    for place, (uid, where) in handed_out.items():
        found = stored.get(place)
        if found != uid and stored:
            yield Violation("taken back", f"{where}: in the end there is {found} at that place")


def _two_masters(facts: Facts) -> Iterator[Violation]:
    leaders: dict[int, str] = {}
    # Its epoch, since when in milliseconds of the brokers' clocks, and where. A broker that was stopped between its
    # election and its turn to lead says so late: the epochs give the order, and not what was said last.
    terms_of_office: list[tuple[int, int, str]] = []
    for event in facts.events:
        if event.what == "leads":
            first = leaders.setdefault(event["epoch"], event.who)
            if first != event.who:
                yield Violation("two masters", f"{first} and {event.who} lead in epoch {event['epoch']}")
            terms_of_office.append((event["epoch"], event["wall_ms"], event["address"]))
    for event in facts.events:
        # A repeated put is answered with the first one's time, by whichever broker leads then.
        if event.what == "acked" and terms_of_office and not facts.puts[event["uid"]].deduplicated:
            stored_ms = event["stored_ms"]
            leading = [(epoch, address) for epoch, since_ms, address in terms_of_office if since_ms < stored_ms]
            if leading and max(leading)[1] != event["host"]:
                yield Violation("stale master", f"{event}, and {max(leading)[1]} led since before that was stored")


def _copies(facts: Facts) -> Iterator[Violation]:
    logs = {event["broker"]: (event["end"], event["digest"]) for event in facts.events if event.what == "log"}
    if len(set(logs.values())) > 1:
        yield Violation("logs differ", f"at the end: {logs}")
