"""`python tests/fuzz/run.py`: a million inputs at the broker's ports, most of them wrong.

Prints the seed first, then each kind with its number of inputs, its answers and its violations; exit code 0 if
there were none.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))  # where `outcome` is ours, and trio wants another

from fuzz.kinds import KINDS, Tried


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description="Send the broker what no client should.")
    parser.add_argument("--cases", type=int, default=1_000_000, help="inputs; some kinds get a share of it")
    parser.add_argument("--seed", type=int, default=None, help="repeat the inputs of an earlier run")
    parser.add_argument("--kind", default="", help="only kinds with this text in their name")
    arguments = parser.parse_args()
    chosen = {name: tried for name, tried in KINDS.items() if arguments.kind in name}
    if not chosen:
        parser.error(f"there is no kind {arguments.kind!r}; there are {', '.join(KINDS)}")
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 31)
    print(f"seed {seed}", flush=True)
    passed = [_report_kind(name, tried, seed, arguments.cases) for name, tried in chosen.items()]
    print("all inputs survived" if all(passed) else "FAILED")
    return 0 if all(passed) else 1


def _report_kind(name: str, tried: Tried, seed: int, cases: int) -> bool:
    started_at = time.monotonic()
    outcome = tried.kind(seed, max(1, int(cases * tried.share)))
    took_s = time.monotonic() - started_at
    answers = ", ".join(f"{count:,} {answer}" for answer, count in outcome.answers.most_common(12))
    print(
        f"{name}: {outcome.cases:,} inputs, {len(outcome.violations)} violations, memory "
        f"{outcome.growth_b / (1 << 20):+.1f} MiB, {took_s:.0f} s; answers: {answers}",
        flush=True,
    )
    for violation in outcome.violations[:10]:
        print(f"  {violation[:2000]}")
    return not outcome.violations


if __name__ == "__main__":
    sys.exit(main())
