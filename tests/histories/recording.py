"""One history from beginning to end: recorded, settled, read back, judged, counted."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from histories import terms
from histories.churn import Churn, Plan
from histories.history import read
from histories.judge import judge
from histories.judge.duplicates import AGAIN_HERE, Reasons
from histories.judge.facts import Facts
from histories.judge.violation import Violation
from histories.scene import Scene
from histories.settling import CommitWatch, audit, settle

_SHOWN = (
    "puts", "acknowledged", "unanswered", "refused", "deliveries", "handled", "joins", "leaves", "kills", "stops",
    "broker_kills", "broker_restarts", "rebalances", "again_here", "duplicates", "retries", "dead_letters", "delayed",
    "committed", "rolled_back", "stood_still",
)  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Add another one."""
        self.counts += other.counts
        self.reasons += other.reasons
        self.violations += other.violations

    def line(self) -> str:
        """Return the numbers."""
        counts = "  ".join(f"{name}={self.counts[name]}" for name in _SHOWN)
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.reasons.most_common() if reason != AGAIN_HERE)
        return f"{counts}  violations={len(self.violations)}" + (f"  (duplicates: {reasons})" if reasons else "")


def record(
    plan: Plan,
    seed: int,
    *,
    settle_s: float,
    bug: str | None = None,
    kinds: str | None = None,
    keep: Path | None = None,
) -> Outcome:
    """Record a history and judge it; with `keep` its files stay there."""
    directory = Path(tempfile.mkdtemp(prefix="reput-histories-", dir=keep))
    try:
        with Scene(directory, seed=seed, bug=bug, kinds=kinds) as scene:
            watch = CommitWatch(scene)
            try:
                Churn(scene, plan, seed).run()
                settle(scene, settle_s)
            finally:
                watch.stop()
            audit(scene)
        return outcome_of(directory / "events")
    finally:
        if keep is None:
            shutil.rmtree(directory, ignore_errors=True)


def outcome_of(events: Path) -> Outcome:
    """Judge the history in a directory."""
    facts, violations = judge(read(events))
    reasons = Reasons(facts).counts
    return Outcome(_counts(facts, reasons), reasons, violations)


def _counts(facts: Facts, reasons: Counter[str]) -> Counter[str]:
    """Count; a rebalance is a change of one member's queues, and what a handler raised for comes `again_here`."""
    what = Counter(event.what for event in facts.events)
    down = Counter(event["how"] for event in facts.events if event.what == "broker-down")
    joins = sum(event.what == "starting" and bool(event["group"]) for event in facts.events)
    return Counter(
        puts=what["put"],
        acknowledged=what["acked"],
        unanswered=what["unknown"],
        refused=what["refused"],
        deliveries=len(facts.deliveries),
        handled=what["handled"],
        joins=joins,
        leaves=what["leaving"],
        kills=what["killed"],
        stops=what["stop"],
        broker_kills=down["SIGKILL"],
        broker_restarts=down["SIGTERM"],
        rebalances=what["assigned"],
        again_here=reasons[AGAIN_HERE],
        duplicates=reasons.total() - reasons[AGAIN_HERE],
        retries=sum(len(facts.copies_to_retry(group)) for group in terms.GROUPS),
        dead_letters=sum(len(facts.dead_letters(group)) for group in terms.GROUPS),
        delayed=len(facts.stored_in(terms.LATER)),
        committed=len(facts.stored_in(terms.DEALS)),
        rolled_back=sum(put.kind in terms.ROLLED_BACK and put.uid in facts.decided for put in facts.puts.values()),
        stood_still=what["stood"],
    )
