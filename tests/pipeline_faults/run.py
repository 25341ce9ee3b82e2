"""`python tests/pipeline_faults/run.py`: real drivers and brokers are killed, and rows in = rows out = distinct.

Prints the seed first, then each kind with what was counted; exit code 0 if every promise held, or every planted bug
was caught. `--kind TEXT` runs those with it in their name.
"""

from __future__ import annotations

import argparse
import random
import secrets
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from cluster_faults.network import Unavailable, enter
from pipeline_faults.kinds import KINDS, WITH_A_NETWORK
from pipeline_faults.planted import BUGS, Bug
from pipeline_faults.scene import Trial
from support.planted_bugs import add_bug_option, chosen_bugs


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description="Kill drivers and brokers under the pipeline, and count rows.")
    parser.add_argument("--kind", default="", help="only kinds with this text in their name")
    parser.add_argument("--point", action="append", default=[], help="only this point; repeatable")
    parser.add_argument("--seed", type=int, default=None, help="repeat the random choices of an earlier run")
    parser.add_argument("--minutes", type=float, default=5.0, help="of a kind that runs for a time")
    add_bug_option(parser, [*BUGS])
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no driver and no broker is left behind
    kinds = [name for name in KINDS if arguments.kind in name]
    if not kinds:
        print(f"no kind has {arguments.kind!r} in its name; there are {', '.join(KINDS)}", file=sys.stderr)
        return 2
    chosen = [BUGS[name] for name in chosen_bugs(arguments.bug, BUGS)]
    bugs = [bug for bug in chosen if bug.kind in kinds]
    if chosen and not bugs:
        needed = ", ".join(f"{bug.name}: {bug.kind!r}" for bug in chosen)
        print(f"no bug is for a kind with {arguments.kind!r} in its name; {needed}", file=sys.stderr)
        return 2
    if WITH_A_NETWORK.intersection(kinds) and not bugs:
        try:
            enter(("iptables", "iptables"))
        except Unavailable as error:
            print(f"without {' and '.join(WITH_A_NETWORK)}: {error}", file=sys.stderr)
            kinds = [name for name in kinds if name not in WITH_A_NETWORK]
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 31)
    print(f"seed {seed}", flush=True)
    if bugs:
        caught = sum(_report_bug(bug, seed) for bug in bugs)
        print(f"{caught} of {len(bugs)} planted bugs caught")
        return 1 if caught < len(bugs) else 0
    trials = {
        name: Trial(random.Random(f"{seed} {name}"), tuple(arguments.point), minutes=arguments.minutes)
        for name in kinds
    }
    kept = [_report_kind(name, trial) for name, trial in trials.items()]
    print("all promises kept" if all(kept) else "FAILED")
    return 0 if all(kept) else 1


def _report_kind(name: str, trial: Trial) -> bool:
    started_at = time.monotonic()
    outcome = KINDS[name](trial)
    took = time.monotonic() - started_at
    print(f"{name}: {outcome.rounds} rounds, {len(outcome.violations)} violations, {took:.0f} s", flush=True)
    for text in outcome.notes:
        print(f"    {text}")
    for violation in outcome.violations[:10]:
        print(f"  {violation}", flush=True)
    return not outcome.violations


def _report_bug(bug: Bug, seed: int) -> bool:
    outcome = KINDS[bug.kind](Trial(random.Random(f"{seed} {bug.name}"), bug.points, bug.name))
    caught = [violation for violation in outcome.violations if violation.rule in bug.rules]
    how = f"caught by {bug.kind}" if caught else f"NOT CAUGHT by {bug.kind}"
    print(f"{bug.name} ({bug.story}): {how}", flush=True)
    for violation in (caught or outcome.violations)[:1]:
        print(f"    {str(violation)[:200]}", flush=True)
    return bool(caught)


if __name__ == "__main__":
    sys.exit(main())
