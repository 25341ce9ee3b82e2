"""`python tests/pipeline_faults/run.py`: real drivers and brokers are killed, and rows in = rows out = distinct.

Prints each kind with what was counted; exit code 0 if every promise held. `--kind TEXT` runs those with it in their
name.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from pipeline_faults.kinds import KINDS


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(
        description="Kill drivers and brokers under the pipeline, and count rows."
    )
    parser.add_argument("--kind", default="", help="only kinds with this text in their name")
    arguments = parser.parse_args()
    kinds = {name: kind for name, kind in KINDS.items() if arguments.kind in name}
    if not kinds:
        print(f"no kind has {arguments.kind!r} in its name; there are {', '.join(KINDS)}", file=sys.stderr)
        return 2
    violations = 0
    for name, kind in kinds.items():
        started_at = time.monotonic()
        outcome = kind()
        violations += len(outcome.violations)
        took = time.monotonic() - started_at
        print(
            f"{name}: {outcome.rounds} rounds, {len(outcome.violations)} violations, {took:.0f} s", flush=True
        )
        for text in outcome.notes:
            print(f"    {text}")
        for text in outcome.violations[:10]:
            print(f"  {text}")
    print("FAILED" if violations else "all promises kept")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
