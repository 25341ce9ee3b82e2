"""What has to hold of orders and the runs of their tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

_HANDED_OUT_S: Final = 1.0
"""How long after it was handed out a task runs."""
_RESTART_S: Final = 5.0
"""How long a broker that was killed is away."""
_STORED_S: Final = 2.0
"""How long after a task has run its result is stored, while the broker is there."""


class Run(NamedTuple):
    """One run of the task of an order."""

    reference: str
    pid: int
    at: float


class Verdict(NamedTuple):
    """The numbers, and what is wrong.

    Attributes:
        after_worker, after_broker: runs that were repeated because a worker, or the broker, was killed.
    """

    orders: int
    rolled_back: int
    after_worker: int
    after_broker: int
    violations: list[str]


def judge(
    orders: Collection[str],
    rolled_back: Collection[str],
    runs: Iterable[Run],
    *,
    killed: Mapping[int, float],
    broker_kills: Collection[float],
    invisible_s: float,
) -> Verdict:
    """Compare committed orders with the runs of their tasks.

    Each committed order has a run; one that was rolled back, or that is not in the table, has none. A task runs again
    only if the worker of the run before was killed just after it, so that it had no time to store the result, or if the
    broker was killed when it was handing the task out, or had just done so: it may do that again at once, and again
    when the invisible time of the first delivery has ended (docs/pop.md).

    Args:
        orders: the references in the table.
        rolled_back: the references that the programs have rolled back.
        killed: workers by pid, with the time when they were dead.
        broker_kills: when the broker was killed.
        invisible_s: of the workers.
    """
    by_order: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda each: each.at):
        by_order[run.reference].append(run)
    known = set(orders)
    violations = [f"{order} is committed, and its task has not run" for order in orders if order not in by_order]
    violations += [f"{order} is rolled back, and is in the table" for order in rolled_back if order in known]
    after_worker = after_broker = 0
    for order, found in by_order.items():
        if order not in known:
            violations.append(f"{order} is not committed, and its task has run")
        for before, again in pairwise(found):
            if _is_unstored(before, again, killed.get(before.pid), broker_kills):
                after_worker += 1
            elif any(
                -_HANDED_OUT_S < before.at - at < invisible_s + _RESTART_S and at < again.at for at in broker_kills
            ):
                after_broker += 1
            else:
                since = min((before.at - at for at in broker_kills if at < again.at), default=None, key=abs)
                violations.append(
                    f"the task of {order} has run again in process {again.pid}, {again.at - before.at:.1f} s after "
                    f"process {before.pid}, which was not killed or had time to store the result; that was {since} s "
                    "after the broker was killed"
                )
    return Verdict(len(known), len(rolled_back), after_worker, after_broker, violations)


def _is_unstored(before: Run, again: Run, killed_at: float | None, broker_kills: Collection[float]) -> bool:
    """Whether a worker was killed before it could store the result of a run, and the task ran again after that."""
    if killed_at is None or again.at <= killed_at:
        return False
    was_away = any(before.at - _RESTART_S < at <= killed_at for at in broker_kills)
    return 0 <= killed_at - before.at < _STORED_S + (_RESTART_S if was_away else 0.0)
