"""`python tests/cluster_faults/run.py`: three brokers on machines of their own, with etcd, under random faults.

Prints the seed first and the counts last; exit code 0 if no promise was broken, 2 if this machine cannot run it.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from cluster_faults.network import Unavailable, enter
from cluster_faults.recording import Outcome, record
from cluster_faults.troubles import WEIGHTS, Plan

PART_S = 120.0
"""How long one history is at most: what is recorded is judged whole, so it must not grow."""
SETTLE_S = 90.0
_SHOWN = 10


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description="Break a cluster in many ways, record everything, judge it.")
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="of faults; start and end of each history come on top"
    )
    parser.add_argument("--seed", type=int, default=None, help="repeat the schedule of an earlier run")
    parser.add_argument("--kind", default="", help="only faults with this text in their name")
    parser.add_argument("--brokers", type=int, default=3, help="1: without replication and election")
    parser.add_argument("--keep", type=Path, help="a directory to leave all histories and logs in")
    arguments = parser.parse_args()
    weights = {name: weight for name, weight in WEIGHTS.items() if arguments.kind in name}
    if not weights:
        parser.error(f"no fault has {arguments.kind!r} in its name; there are {', '.join(WEIGHTS)}")
    try:
        enter(("etcd", "etcd-server"), ("iptables", "iptables"))
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    logging.getLogger("reput_client").setLevel(
        logging.CRITICAL
    )  # the connections of runner and auditors end with the brokers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 31)
    print(f"seed {seed}", flush=True)
    return _run(seed, 60 * arguments.minutes, weights, arguments)


def _run(seed: int, seconds: float, weights: dict[str, int], arguments: argparse.Namespace) -> int:
    total, number, failed = Outcome(), 0, False
    while seconds > 0:
        plan = Plan(min(PART_S, seconds), weights)
        where = Path(tempfile.mkdtemp(prefix="reput-cluster-faults-", dir=arguments.keep))
        try:
            outcome = record(plan, seed + number, brokers=arguments.brokers, settle_s=SETTLE_S, directory=where)
        except AssertionError as error:
            print(f"  history {number + 1}: {error}\n    its files are in {where}")
            print(_again(seed + number, plan, arguments), flush=True)
            return 1
        total.add(outcome)
        print(f"  history {number + 1}, {plan.duration_s:.0f} s: {outcome.line()}", flush=True)
        for violation in outcome.violations[:_SHOWN]:
            print(f"    {violation}")
        if outcome.violations:
            failed = True
            print(f"    its files are in {where}")
            print(_again(seed + number, plan, arguments), flush=True)
        elif arguments.keep is None:
            shutil.rmtree(where, ignore_errors=True)
        seconds -= plan.duration_s
        number += 1
    print(total.line())
    print("FAILED" if failed else "no promise broken")
    return 1 if failed else 0


def _again(seed: int, plan: Plan, arguments: argparse.Namespace) -> str:
    kind = f" ARGS='--kind {arguments.kind}'" if arguments.kind else ""
    return f"    the same schedule: make soak KIND=cluster-faults MINUTES={plan.duration_s / 60:g} SEED={seed}{kind}"


if __name__ == "__main__":
    sys.exit(main())
