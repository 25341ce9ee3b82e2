"""One run from beginning to end: recorded, settled, read back, judged, counted."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cluster_faults.logs import differences
from cluster_faults.scene import Cluster
from cluster_faults.troubles import Plan, Troubles
from histories import terms
from histories.history import Event, read
from histories.judge import judge
from histories.judge.facts import Facts
from histories.judge.violation import Violation
from histories.settling import CommitWatch, audit, settle
from reput_client.transport.routing import ROUTE_REFRESH_S

_SHOWN: Final = (
    "faults", "take_overs", "puts", "acknowledged", "replicated", "unanswered", "refused", "taken_back", "handled",
    "again", "read",
)  # fmt: skip

_TAKEN_BACK: Final = ("page_cache", "flushed", "offsets")
"""What may be lost when another broker takes over."""
_BY_THE_CLOCK: Final = frozenset({"delayed early", "retry early", "late", "stale master"})
"""Rules that compare times of the brokers' clocks, which say nothing where those were set."""


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Add another one."""
        self.counts += other.counts
        self.faults += other.faults
        self.violations += other.violations

    def line(self) -> str:
        """Return the numbers."""
        counts = "  ".join(f"{name}={self.counts[name]}" for name in _SHOWN)
        faults = ", ".join(f"{count} {name}" for name, count in self.faults.most_common())
        return f"{counts}  violations={len(self.violations)}  ({faults})"


def record(plan: Plan, seed: int, *, brokers: int, settle_s: float, directory: Path) -> Outcome:
    """Record one history in `directory` and judge it."""
    chance = random.Random(f"{seed} members")
    with Cluster(directory, seed=seed, brokers=brokers) as cluster:
        watch = CommitWatch(cluster)
        try:
            cluster.join(terms.BYSTANDER)
            for group in (terms.SHARED, terms.ORDERLY):
                for face in ("trio", chance.choice(("asyncio", "blocking"))):
                    cluster.join(group, "--face", face)
            cluster.until_joined()
            cluster.produce()
            cluster.read()
            cluster.until_produced()
            Troubles(cluster, plan, seed).run()
            cluster.until_whole()
            cluster.recorder.note("broker-up")
            settle(cluster, settle_s)
            cluster.end_readers()
        finally:
            watch.stop()
        audit(cluster)
        stores = [machine.store for machine in cluster.machines]
        cluster.end_brokers()
        outcome = outcome_of(directory / "events")
        outcome.violations += [Violation("logs differ", text) for text in differences(stores)]
        cluster.keeps_stores = bool(outcome.violations)
    return outcome


def outcome_of(events: Path) -> Outcome:
    """Judge the history in a directory."""
    facts, violations = judge([*as_one_broker(read(events))])
    faults = Counter(event["name"] for event in facts.events if event.what == "fault")
    if faults["set-clock"]:
        violations = [violation for violation in violations if violation.rule not in _BY_THE_CLOCK]
    return Outcome(_counts(facts), faults, violations)


def as_one_broker(events: Sequence[Event]) -> Iterator[Event]:
    """Give a cluster's history the form of one broker's: what a failover may take back, and who stood still.

    While the cluster is disturbed, and until clients with an old route ask for a new one, offsets may be read from a
    slave, which has those of a second ago.
    """
    leader, exact_from = None, 0.0
    for event in events:
        match event.what:
            case "stood" if event.who.startswith("b"):
                yield Event(event.at, "broker", "stood", event.facts)
                continue
            case "leads":
                if leader not in (None, event.who):
                    yield Event(event.at, "runner", "may-lose", {"levels": _TAKEN_BACK})
                leader = event.who
            case "broker-down":
                exact_from = math.inf
            case "broker-up":
                exact_from = event.at + ROUTE_REFRESH_S
            case "offset" if event.at < exact_from:
                yield Event(event.at, "runner", "may-lose", {"levels": ("offsets",)})
        yield event


def _counts(facts: Facts) -> Counter[str]:
    what = Counter(event.what for event in facts.events)
    stored = {entry.uid for entry in facts.stored}
    acked = [put for put in facts.puts.values() if put.acked_at is not None]
    handled = {(delivery.group, delivery.uid) for delivery in facts.deliveries if delivery.handled is not None}
    return Counter(
        faults=what["fault"],
        take_overs=len(facts.may_lose["flushed"]),
        puts=what["put"],
        acknowledged=what["acked"],
        replicated=sum(put.ack == "replicated" for put in acked),
        unanswered=what["unknown"],
        refused=what["refused"],
        taken_back=sum(put.uid not in stored and put.kind not in terms.ROLLED_BACK for put in acked),
        handled=len(handled),
        again=what["handled"] - len(handled),
        read=what["read"],
    )
