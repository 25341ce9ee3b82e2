"""`python tests/filters/run.py`: filters against an independent evaluation of random expressions and messages.

Prints the seed first, then what was compared; exit code 0 if there was no difference.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from filters.check import check_store, check_values

EXPRESSIONS_PER_MESSAGE = 50


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description="Compare filters with an independent evaluation.")
    parser.add_argument("--cases", type=int, default=10_000, help="expressions, and messages in a store")
    parser.add_argument("--seed", type=int, default=None, help="repeat the random choices of an earlier run")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 31)
    cases = arguments.cases
    print(f"seed {seed}", flush=True)
    failed = not _tried("expressions on a message each", lambda: check_values(seed, cases))
    with tempfile.TemporaryDirectory() as directory:
        expressions = max(1, cases // EXPRESSIONS_PER_MESSAGE)
        failed |= not _tried(
            "expressions over a store", lambda: check_store(seed, Path(directory) / "s", cases, expressions)
        )
    print("FAILED" if failed else "no difference")
    return 1 if failed else 0


def _tried(what: str, check: Callable[[], Counter[str]]) -> bool:
    started_at = time.monotonic()
    try:
        seen = check()
    except AssertionError as error:
        print(f"{what}: {error}")
        return False
    counts = ", ".join(f"{count:,} {name}" for name, count in sorted(seen.items()))
    print(f"{what}: {counts}; {time.monotonic() - started_at:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
