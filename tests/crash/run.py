"""`python tests/crash/run.py`: crash rounds against the real broker, then the checker against planted bugs.

Prints the seed first and the counts last; exit code 0 if every promise held and every planted bug was caught.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crash import checker
from crash.planted import BUGS
from crash.rounds import CrashRun, Options, Report

PLANTED_ROUNDS_MAX = 12
ROUNDS_A_LIFE = 20


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(
        description="Kill the broker, again and again, and look for what it lost."
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="repeat the random choices of an earlier run")
    parser.add_argument(
        "--bug", choices=[*BUGS, "all", "none"], default="all", help="planted bugs to check the checker with"
    )
    parser.add_argument(
        "--pool", action="store_true", help="append through a pool of buffers (store.transient_store_pool)"
    )
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 31)
    print(f"seed {seed}", flush=True)
    failed = False
    if arguments.rounds:
        failed = not _report_run(_run_lives(arguments.rounds, seed, arguments.pool), arguments.rounds)
    bugs = {"all": list(BUGS), "none": []}.get(arguments.bug, [arguments.bug])
    for bug in bugs:
        failed |= not _report_bug(
            bug,
            _run(Options(PLANTED_ROUNDS_MAX, seed, Path(), bug=bug, full_check_every=1, pool=arguments.pool)),
        )
    print(
        "FAILED" if failed else "all promises kept, every planted bug caught" if bugs else "all promises kept"
    )
    return 1 if failed else 0


def _run_lives(rounds: int, seed: int, pool: bool) -> Report:
    """Run all rounds, on a fresh directory every so often: what is checked is checked whole, and must not grow."""
    total = Report()
    for number, done in enumerate(range(0, rounds, ROUNDS_A_LIFE)):
        life = _run(Options(min(ROUNDS_A_LIFE, rounds - done), seed + number, Path(), pool=pool))
        for name, count in life.counts.items():
            total.counts[name] = (
                max(total.counts[name], count) if name.endswith("_max") else total.counts[name] + count
            )
        total.violations += life.violations
        print(f"  {total.counts['rounds']} rounds, {total.counts['acknowledged']} acknowledged", flush=True)
        if total.violations:
            break
    return total


def _run(options: Options) -> Report:
    with tempfile.TemporaryDirectory(prefix="reput-crash-") as directory:
        options.directory = Path(directory)
        run = CrashRun(options)
        started_at = time.monotonic()
        try:
            report = run.run()
        finally:
            run.close()
        report.counts["duration_s"] = int(time.monotonic() - started_at)
        return report


def _report_run(report: Report, rounds: int) -> bool:
    counts = "  ".join(f"{name}={report.counts[name]}" for name in sorted(report.counts))
    print(f"rounds {rounds}: {counts}", flush=True)
    if report.violations:
        print(checker.summary(report.violations))
    return not report.violations


def _report_bug(bug: str, report: Report) -> bool:
    caught = bool(report.violations)
    where = f"caught in round {report.counts['failed_round'] or 'last'}" if caught else "NOT CAUGHT"
    print(f"planted bug {bug} ({BUGS[bug].__doc__}): {where}", flush=True)
    if caught:
        print(checker.summary(report.violations, limit=1))
    return caught


if __name__ == "__main__":
    sys.exit(main())
