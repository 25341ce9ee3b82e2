"""Histories written by hand, for tests of the judges: every call adds events, a hundredth of a second apart.

`m0` is the bystander, `m1` and `m2` share, `s1` and `s2` consume in order. What is put is stored and acknowledged, and
the bystander gets it, unless stated otherwise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Final

from histories import terms
from histories.history import Event
from histories.judge import judge
from reput_protocol.names import dlq_topic, retry_topic

_STEP_S: Final = 0.01
MEMBERS: Final = {
    "m0": terms.BYSTANDER,
    "m1": terms.SHARED,
    "m2": terms.SHARED,
    "s1": terms.ORDERLY,
    "s2": terms.ORDERLY,
}


class Story:
    """A history that grows, always of queue 0."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[Event] = []
        self.places: dict[str, tuple[str, int, str]] = {}
        self._ends: Counter[str] = Counter()
        self._stored: list[Event] = []
        self._has: defaultdict[str, set[str]] = defaultdict(set)
        self._wants: defaultdict[str, set[str]] = defaultdict(set)
        self._positions: defaultdict[tuple[str, str], dict[int, bool]] = defaultdict(dict)
        for who, group in MEMBERS.items():
            self.note(who, "start", group=group)

    def note(self, who: str, what: str, **facts: Any) -> float:
        """Add any event; return its time."""
        self.now += _STEP_S
        self.events.append(Event(self.now, who, what, facts))
        return self.now

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def store(self, topic: str, uid: str, kind: str, *, attempt: int = 0, at: float | None = None) -> int:
        """The broker has one more message in the end; return its offset."""
        offset = self._ends[topic]
        self._ends[topic] += 1
        stored_ms = int(1000 * (self.now if at is None else at))
        facts = {
            "topic": topic,
            "queue": 0,
            "offset": offset,
            "uid": uid,
            "kind": kind,
            "attempt": attempt,
            "stored_ms": stored_ms,
        }
        self._stored.append(Event(0.0, "runner", "stored", facts))
        return offset

    def put(
        self,
        uid: str,
        topic: str = terms.ORDERS,
        kind: str = terms.OK,
        *,
        stored: bool = True,
        bystander: bool = True,
        **facts: Any,
    ) -> None:
        """A message is put, stored, acknowledged."""
        at = self.note("p1", "put", uid=uid, topic=topic, kind=kind, wall_ms=int(1000 * self.now) + 10, **facts)
        self.places[uid] = (topic, self._ends[topic], kind)
        if stored:
            self.store(topic, uid, kind, at=at + facts.get("delay_s", 0.0))
        self.note("p1", "acked", uid=uid, queue=0, offset=self.places[uid][1])
        if facts.get("delay_s"):
            self.wait(facts["delay_s"])
        if stored and bystander:
            self.handle("m0", uid)

    def begin(
        self, who: str, uid: str, *, topic: str | None = None, offset: int | None = None, attempt: int = 0
    ) -> None:
        """A member gets a message."""
        facts = self._facts(who, uid, topic, offset, attempt)
        self._positions[who, facts["topic"]][facts["offset"]] = False
        self.note(who, "begun", **facts)

    def end(
        self,
        who: str,
        uid: str,
        how: str = "handled",
        *,
        topic: str | None = None,
        offset: int | None = None,
        attempt: int = 0,
        **more: Any,
    ) -> float:
        """What came of it: handled, raised, back, backed or back-failed."""
        facts = self._facts(who, uid, topic, offset, attempt)
        if how in ("handled", "backed"):
            self._positions[who, facts["topic"]][facts["offset"]] = True
        return self.note(who, how, **facts, **more)

    def handle(self, who: str, uid: str, **where: Any) -> None:
        """A member gets a message and handles it."""
        self.begin(who, uid, **where)
        self.end(who, uid, **where)

    def fail(self, who: str, uid: str, *, level: int = terms.RETRY_LEVEL, **where: Any) -> None:
        """A member gets a message, raises, and gives it back."""
        self.begin(who, uid, **where)
        self.end(who, uid, "raised", **where)
        self.end(who, uid, "back", level=level, **where)
        self.end(who, uid, "backed", level=level, **where)

    def come_back(self, who: str, uid: str, attempt: int, *, after_s: float = 1.1, how: str = "handle") -> None:
        """A message comes out of the retry topic, after a while."""
        self.wait(after_s)
        topic = retry_topic(MEMBERS[who])
        offset = self.store(topic, uid, self.places[uid][2], attempt=attempt)
        getattr(self, how)(who, uid, topic=topic, offset=offset, attempt=attempt)

    def die(self, uid: str, group: str, attempt: int) -> None:
        """A message becomes a dead letter."""
        self.store(dlq_topic(group), uid, self.places[uid][2], attempt=attempt)

    def commit(self, who: str, offset: int, topic: str = terms.ORDERS) -> None:
        """A member commits, and is answered."""
        place = {"group": MEMBERS[who], "topic": topic, "queue": 0, "offset": offset}
        self.note(who, "commit", **place)
        self.note(who, "committed", **place)

    def take(self, who: str, offset: int | None, topic: str = terms.ORDERS, *, after_s: float = 0.3) -> None:
        """A member is assigned a queue, asks after a while where to continue, is answered, and has the queue."""
        place = {"group": MEMBERS[who], "topic": topic, "queue": 0}
        self._wanted(who, topic)
        self.wait(after_s)
        asked = self.note(who, "ask-offset", **place)
        self.note(who, "offset", offset=offset, asked=asked, **place)
        self.assigned(who, topic)

    def assigned(self, who: str, *topics: str, grace_s: float = 0.1, forgets: bool = False) -> None:
        """From now on it has these queues; what it does not have any more it gives up, and lets go after a moment.

        One that forgets what it has handled lets go at 0.
        """
        had, has = self._has[who], set(topics)
        self._wanted(who, *topics)
        for topic in sorted(has - had):
            self._positions[who, topic] = {}
            self.note(who, "taken", group=MEMBERS[who], topic=topic, queue=0)
        for topic in sorted(had - has):
            self.note(who, "given-up", group=MEMBERS[who], topic=topic, queue=0)
        self._has[who] = has
        self.note(who, "assigned", group=MEMBERS[who], queues=[[topic, 0] for topic in topics])
        if had - has:
            self.wait(grace_s)
            self._let_go(who, had - has, forgets=forgets)

    def let_go(self, who: str) -> None:
        """It lets go of all that it has, as one that leaves does."""
        self._let_go(who, self._has.pop(who))

    def _wanted(self, who: str, *topics: str) -> None:
        if set(topics) != self._wants[who]:
            self._wants[who] = set(topics)
            self.note(who, "wanted", group=MEMBERS[who], queues=[[topic, 0] for topic in topics])

    def _let_go(self, who: str, topics: set[str], *, forgets: bool = False) -> None:
        for topic in sorted(topics):
            handled = {} if forgets else self._positions[who, topic]
            unhandled = [offset for offset, is_handled in handled.items() if not is_handled]
            position = min(unhandled, default=max(handled, default=-1) + 1)
            self.note(who, "let-go", group=MEMBERS[who], topic=topic, queue=0, position=position)

    def kill(self, who: str) -> None:
        """A member is killed."""
        self.note("runner", "kill", process=who)
        self.note("runner", "killed", process=who)

    def broken(self) -> set[str]:
        """Return the rules that the history breaks."""
        stored = [Event(self.now, event.who, event.what, event.facts) for event in self._stored]
        return {violation.rule for violation in judge([*self.events, *stored])[1]}

    def _facts(self, who: str, uid: str, topic: str | None, offset: int | None, attempt: int) -> dict[str, Any]:
        place = self.places[uid]
        return {
            "group": MEMBERS[who],
            "topic": place[0] if topic is None else topic,
            "queue": 0,
            "offset": place[1] if offset is None else offset,
            "uid": uid,
            "kind": place[2],
            "attempt": attempt,
        }
