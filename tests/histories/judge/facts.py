"""The facts of a history: puts, deliveries, their results, and disturbances of members."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from histories import terms
from histories.history import EVENTS, Event
from reput_protocol.names import dlq_topic, retry_topic

QueueKey = tuple[str, int]
"""Topic and queue id."""


class Span(NamedTuple):
    """From when to when."""

    since: float
    until: float

    def meets(self, since: float, until: float) -> bool:
        """Whether it has a moment in common with another."""
        return self.since <= until and since <= self.until


@dataclass(slots=True)
class Put:
    """One message that was put, perhaps several times under one id."""

    uid: str
    topic: str
    kind: str
    at: float
    wall_ms: int
    delay_s: float = 0.0
    deduplicated: bool = False
    ack: str = "flushed"
    """The level of acknowledgement that was asked for."""
    acked_at: float | None = None
    acked_by: str = ""
    """The address of the broker that acknowledged it last, if the history says that."""
    stored_ms: int = 0
    """When that broker stored it, by its clock."""
    receipts: list[tuple[int, int]] = field(default_factory=list)
    times: int = 0
    refused: int = 0
    """How many of its puts the client reported as not stored."""


class Loss(NamedTuple):
    """Something that may take back what was acknowledged.

    Without `stored_by` that is everything until the event. With it, it is what was stored until then, by the broker
    `of` only, or by all but the next master, `kept_by`.
    """

    at: float
    stored_by: int | None = None
    of: str = ""
    kept_by: str = ""

    def takes(self, put: Put) -> bool:
        """Whether an acknowledged put may be gone."""
        if self.stored_by is None:
            return put.acked_at is not None and put.acked_at <= self.at
        return put.stored_ms <= self.stored_by and self.of in ("", put.acked_by) and put.acked_by != self.kept_by


@dataclass(slots=True)
class Delivery:
    """A message in the hands of a member, once."""

    who: str
    group: str
    queue: QueueKey
    offset: int
    uid: str
    kind: str
    attempt: int
    begun: float
    handled: float | None = None
    raised: float | None = None
    backed: float | None = None
    """When the broker had it back."""

    @property
    def settled(self) -> float:
        """From when on it may be committed."""
        return min(at for at in (self.handled, self.backed, math.inf) if at is not None)

    @property
    def finished(self) -> float:
        """When its handler came to an end."""
        return min(at for at in (self.handled, self.raised, math.inf) if at is not None)

    def __str__(self) -> str:
        end = f"handled {self.handled:.3f}" if self.handled is not None else "not handled"
        return f"{self.uid} ({self.queue[0]}/{self.queue[1]} at {self.offset}) {self.who} {self.begun:.3f}, {end}"


@dataclass(slots=True)
class GivenBack:
    """A message that was to go back to the broker; `done` when the broker acknowledged it."""

    who: str
    group: str
    queue: QueueKey
    offset: int
    uid: str
    attempt: int
    level: int
    asked: float
    done: float | None = None
    failed: float | None = None

    @property
    def until(self) -> float:
        """When it was over, one way or the other."""
        return min(at for at in (self.done, self.failed, math.inf) if at is not None)


class Stored(NamedTuple):
    """A message as the broker had it in the end."""

    queue: QueueKey
    offset: int
    uid: str
    kind: str
    attempt: int
    stored_ms: int


@dataclass(slots=True)
class Facts:
    """Everything that the judges look at."""

    events: Sequence[Event]
    puts: dict[str, Put] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    backs: list[GivenBack] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    decided: dict[str, float] = field(default_factory=dict)
    """When a transaction's decision was first reported."""
    lives: dict[str, Span] = field(default_factory=dict)
    """Of members: from their start to their end, however it came."""
    killed: dict[str, float] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    stood: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    """When a process stood still, whether it was stopped or got no processor."""
    down: list[Span] = field(default_factory=list)
    """When the broker was down."""
    may_lose: dict[str, list[Loss]] = field(default_factory=lambda: defaultdict(list))
    """When something happened that may take back what was acknowledged before: by level, and "offsets"."""
    overruled: list[Span] = field(default_factory=list)
    """When masters led whose history an operator has given up."""
    end: float = 0.0

    @classmethod
    def of(cls, events: Sequence[Event]) -> Facts:
        """Read a history, whose events are in the order of time."""
        facts = cls(events, end=events[-1].at if events else 0.0)
        reader = _Reader(facts)
        for event in events:
            reader.take(event)
        reader.finish()
        return facts

    # -- looking -------------------------------------------------------------------------------------------

    def by_queue(self, group: str) -> dict[QueueKey, list[Delivery]]:
        """Return the deliveries of a group by queue, in order of time."""
        queues: dict[QueueKey, list[Delivery]] = defaultdict(list)
        for delivery in self.deliveries:
            if delivery.group == group:
                queues[delivery.queue].append(delivery)
        return queues

    def stored_in(self, topic: str) -> list[Stored]:
        """Return what was in a topic in the end."""
        return [stored for stored in self.stored if stored.queue[0] == topic]

    def dead_letters(self, group: str) -> list[Stored]:
        """Return the dead letters of a group."""
        return self.stored_in(dlq_topic(group))

    def copies_to_retry(self, group: str) -> list[Stored]:
        """Return the messages redelivered to a group."""
        return self.stored_in(retry_topic(group))

    def broker_down(self, since: float, until: float) -> bool:
        """Whether the broker was down at some moment of a span."""
        return any(span.meets(since, until) for span in self.down)

    def stood_still(self, who: str, since: float, until: float) -> bool:
        """Whether a process, or the broker, stood still at some moment of a span."""
        return any(span.meets(since, until) for name in (who, "broker") for span in self.stood[name])

    def may_have_lost(self, what: str, since: float, until: float = math.inf) -> bool:
        """Whether what was acknowledged at a level by `since` may have been lost until then."""
        return any(since <= loss.at <= until for loss in self.may_lose[what])

    def may_be_gone(self, put: Put) -> bool:
        """Whether something has happened that may take back an acknowledged put at its level."""
        return any(loss.takes(put) for loss in self.may_lose[put.ack])

    def is_overruled(self, at: float) -> bool:
        """Whether a master led then whose history an operator has given up."""
        return any(span.meets(at, at) for span in self.overruled)

    def died(self, who: str, since: float, until: float) -> bool:
        """Whether a process was killed in a span."""
        return since <= self.killed.get(who, -math.inf) <= until

    def disturbed(self, who: str, since: float, until: float) -> bool:
        """Whether a member was disconnected, killed or suspended at some moment of a span."""
        return self.broker_down(since, until) or self.stood_still(who, since, until) or self.died(who, since, until)


class _Reader:
    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._open: dict[tuple[str, QueueKey, int], Delivery] = {}
        self._backs: dict[tuple[str, QueueKey, int], GivenBack] = {}
        self._stopped: dict[str, float] = {}
        self._down_since: float | None = None
        self._led_since: dict[str, float] = {}
        self._began: dict[str, float] = {}

    def take(self, event: Event) -> None:
        """Call the method that has the event's name, if there is one; raises `ValueError` if no event has it."""
        if event.what not in EVENTS:
            raise ValueError(f"no event of a history is called {event.what!r}")
        what = event.what.replace("-", "_")
        reader = getattr(self, f"_{what}", None)
        if reader is not None:
            reader(event)

    # Puts

    def _put(self, event: Event) -> None:
        put = self._facts.puts.setdefault(
            event["uid"],
            Put(
                event["uid"],
                event["topic"],
                event["kind"],
                event.at,
                event["wall_ms"],
                event.get("delay_s", 0.0),
                event.get("deduplicated", False),
                event.get("ack", "flushed"),
            ),
        )
        put.times += 1
        put.deduplicated |= event.get("deduplicated", False)

    def _acked(self, event: Event) -> None:
        put = self._facts.puts[event["uid"]]
        put.acked_at = put.acked_at or event.at
        put.acked_by, put.stored_ms = event.get("host", ""), event.get("stored_ms", 0)
        put.receipts.append((event["queue"], event["offset"]))

    def _refused(self, event: Event) -> None:
        self._facts.puts[event["uid"]].refused += 1

    def _decided(self, event: Event) -> None:
        self._facts.decided.setdefault(event["uid"], event.at)

    # Deliveries

    def _begun(self, event: Event) -> None:
        queue = (event["topic"], event["queue"])
        delivery = Delivery(
            event.who, event["group"], queue, event["offset"], event["uid"], event["kind"], event["attempt"], event.at
        )
        self._facts.deliveries.append(delivery)
        self._open[event.who, queue, event["offset"]] = delivery

    def _delivery(self, event: Event) -> Delivery | None:
        return self._open.get((event.who, (event["topic"], event["queue"]), event["offset"]))

    def _handled(self, event: Event) -> None:
        delivery = self._delivery(event)
        if delivery is not None:
            delivery.handled = event.at

    def _raised(self, event: Event) -> None:
        delivery = self._delivery(event)
        if delivery is not None:
            delivery.raised = event.at

    def _back(self, event: Event) -> None:
        queue = (event["topic"], event["queue"])
        back = GivenBack(
            event.who, event["group"], queue, event["offset"], event["uid"], event["attempt"], event["level"], event.at
        )
        self._facts.backs.append(back)
        self._backs[event.who, queue, event["offset"]] = back

    def _backed(self, event: Event) -> None:
        back, delivery = self._given_back(event), self._delivery(event)
        if back.done is None:  # a repetition may be answered first
            back.done = event.at
        if delivery is not None and delivery.backed is None:
            delivery.backed = event.at

    def _back_failed(self, event: Event) -> None:
        self._given_back(event).failed = event.at

    def _given_back(self, event: Event) -> GivenBack:
        return self._backs[event.who, (event["topic"], event["queue"]), event["offset"]]

    # Processes

    def _starting(self, event: Event) -> None:
        self._began.setdefault(event["process"], event.at)

    def _start(self, event: Event) -> None:
        self._began.setdefault(event.who, event.at)
        self._facts.groups[event.who] = event.get("group", "")

    def _kill(self, event: Event) -> None:
        self._facts.killed[event["process"]] = event.at

    def _killed(self, event: Event) -> None:
        self._ended(event["process"], event.at)

    def _left(self, event: Event) -> None:
        self._ended(event["process"], event.at)

    def _ended(self, who: str, at: float) -> None:
        self._go_on_from(who, at)
        if who in self._began:
            self._facts.lives[who] = Span(self._began[who], at)

    def _stop(self, event: Event) -> None:
        self._stopped[event["process"]] = event.at

    def _go_on(self, event: Event) -> None:
        self._go_on_from(event["process"], event.at)

    def _go_on_from(self, who: str, at: float) -> None:
        since = self._stopped.pop(who, None)
        if since is not None:
            self._facts.stood[who].append(Span(since, at))

    def _stood(self, event: Event) -> None:
        self._facts.stood[event.who].append(Span(event["since"], event.at))

    def _broker_down(self, event: Event) -> None:
        self._down_since = event.at

    def _broker_up(self, event: Event) -> None:
        if self._down_since is not None:
            self._facts.down.append(Span(self._down_since, event.at))
        self._down_since = None

    def _may_lose(self, event: Event) -> None:
        for what in event["levels"]:
            self._facts.may_lose[what].append(
                Loss(event.at, event.get("stored_by"), event.get("of", ""), event.get("kept_by", ""))
            )

    def _leads(self, event: Event) -> None:
        self._led_since[event["address"]] = event.at

    def _overruled(self, event: Event) -> None:
        self._facts.overruled.append(Span(self._led_since.get(event["of"], event.at), event.at))

    # The end

    def _stored(self, event: Event) -> None:
        self._facts.stored.append(
            Stored(
                (event["topic"], event["queue"]),
                event["offset"],
                event["uid"],
                event["kind"],
                event["attempt"],
                event["stored_ms"],
            )
        )

    def finish(self) -> None:
        facts = self._facts
        for who, at in self._stopped.items():
            facts.stood[who].append(Span(at, facts.end))
        if self._down_since is not None:
            facts.down.append(Span(self._down_since, facts.end))
        for who, began in self._began.items():
            facts.lives.setdefault(who, Span(began, facts.end))


def expected_in(put: Put, group: str) -> str | None:
    """Return what must become of a put in a group: "handled", "dead", or None if it is not for the group."""
    if put.topic not in terms.GROUPS[group] or put.kind in terms.ROLLED_BACK:
        return None
    return "dead" if put.kind == terms.POISON and group != terms.BYSTANDER else "handled"
