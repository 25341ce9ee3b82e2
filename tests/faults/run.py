"""`python tests/faults/run.py`: every kind of fault, a lot of each, or the checkers against planted bugs.

Prints the seed first, then each kind with its number of images or rounds and its violations; exit code 0 if every
promise held, or every planted bug was caught.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
import time
from pathlib import Path

import structlog

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))  # where `outcome` is ours, and trio wants another

from faults.kinds import KINDS, Tried
from faults.planted import BUGS, Bug, images_until_caught
from support.planted_bugs import add_bug_option, chosen_bugs


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description="Break the disk under the store and look for what it lost.")
    parser.add_argument("--images", type=int, default=10_000, help="power cuts; other kinds get a share of it")
    parser.add_argument("--rounds", type=int, default=20, help="of the kinds that need a whole store each")
    parser.add_argument("--seed", type=int, default=None, help="repeat the random choices of an earlier run")
    parser.add_argument("--kind", default="", help="only kinds with this text in their name")
    add_bug_option(parser, [*BUGS])
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 31)
    # The tables say what they set aside, and the client what is damaged; here that is what is wanted.
    structlog.configure(processors=[_drop])
    logging.getLogger("reput_client").setLevel(logging.CRITICAL)
    print(f"seed {seed}", flush=True)
    bugs = [BUGS[name] for name in chosen_bugs(arguments.bug, BUGS)]
    if bugs:
        caught = sum(_report_bug(bug, seed) for bug in bugs)
        print(f"{caught} of {len(bugs)} planted bugs caught")
        return 1 if caught < len(bugs) else 0
    failed = False
    for name, tried in KINDS.items():
        if arguments.kind in name:
            failed |= not _report_kind(name, tried, seed, arguments.rounds if tried.in_rounds else arguments.images)
    print("FAILED" if failed else "all promises kept")
    return 1 if failed else 0


def _report_kind(name: str, tried: Tried, seed: int, amount: int) -> bool:
    started_at = time.monotonic()
    outcome = tried.kind(seed, max(1, int(amount * tried.share)))
    what = "rounds" if tried.in_rounds else "images"
    took = time.monotonic() - started_at
    print(f"{name}: {outcome.images} {what}, {len(outcome.violations)} violations, {took:.0f} s", flush=True)
    for note in outcome.notes:
        print(f"    {note}")
    for violation in outcome.violations[:10]:
        print(f"  {violation}")
    return not outcome.violations


def _report_bug(bug: Bug, seed: int) -> bool:
    images, violation = images_until_caught(bug, seed)
    checker = bug.caught_by.__name__
    end = f"caught after {images} by {checker}" if violation else f"NOT CAUGHT in {images} by {checker}"
    print(f"{bug.name} ({bug.story}): {end}", flush=True)
    if violation:
        print(f"    {violation[:200]}")
    return bool(violation)


def _drop(*_: object) -> dict[str, object]:
    raise structlog.DropEvent


if __name__ == "__main__":
    sys.exit(main())
