"""`python tests/histories/run.py`: record a history of churn and judge it, or the judges against planted bugs.

Prints the seed first and the counts last; exit code 0 if nothing is violated, or every planted bug was caught.
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

from histories import planted
from histories.churn import Plan
from histories.recording import Outcome, record
from histories.trying import try_bug
from support.planted_bugs import add_bug_option, chosen_bugs

PART_S = 60.0
"""How long one history is at most: what is recorded is judged whole, so it must not grow."""
SETTLE_S = 60.0
_SHOWN = 10


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description="Churn groups and a broker, record everything, judge it.")
    parser.add_argument("--minutes", type=float, default=3.0, help="of churn; the settling after it comes on top")
    parser.add_argument("--seed", type=int, default=None, help="repeat the random choices of an earlier run")
    add_bug_option(parser, [*planted.BUGS])
    parser.add_argument("--keep", type=Path, help="a directory to leave all histories in")
    arguments = parser.parse_args()
    logging.getLogger("reput_client").setLevel(logging.CRITICAL)  # the auditors' connections end with the broker's
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that its end is that of all its processes
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 31)
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}", flush=True)
    names = chosen_bugs(arguments.bug, planted.BUGS)
    if names:
        return _run_planted(names, seed, arguments.keep)
    return _run(seed, 60 * arguments.minutes, arguments.keep)


def _run(seed: int, seconds: float, keep: Path | None) -> int:
    total = Outcome()
    number = 0
    while seconds > 0:
        plan = Plan(min(PART_S, seconds))
        where = keep or Path(tempfile.mkdtemp(prefix="reput-histories-"))
        is_wanted = keep is not None
        try:
            outcome = record(plan, seed + number, settle_s=SETTLE_S, keep=where)
            is_wanted |= bool(outcome.violations)
        finally:
            if not is_wanted:
                shutil.rmtree(where, ignore_errors=True)
        total.add(outcome)
        print(f"  history {number + 1}, {plan.duration_s:.0f} s: {outcome.line()}", flush=True)
        for violation in outcome.violations[:_SHOWN]:
            print(f"    {violation}")
        if outcome.violations:
            print(f"    its files are in {where}", flush=True)
        seconds -= plan.duration_s
        number += 1
    print(total.line())
    print("FAILED" if total.violations else "no promise broken")
    return 1 if total.violations else 0


def _run_planted(names: list[str], seed: int, keep: Path | None) -> int:
    caught = 0
    for name in names:
        bug = planted.BUGS[name]
        tried = try_bug(name, seed, keep)
        violations = tried.outcome.violations
        caught += tried.caught
        found = next((violation for violation in violations if violation.rule in bug.rules), None)
        what = f"caught after {tried.histories} by {found.rule!r}" if found else f"NOT CAUGHT in {tried.histories}"
        print(f"{name} ({bug.story}): {what}", flush=True)
        if found:
            print(f"    {str(found)[:240]}")
    print(f"{caught} of {len(names)} planted bugs caught")
    return 0 if caught == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
