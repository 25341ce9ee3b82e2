"""`python tests/crash/run.py`: crash rounds against the real broker, or the checker against planted bugs.

Prints the seed first and the counts last; exit code 0 if every promise held, or every planted bug was caught.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dataclasses import replace

from crash import checker
from crash.planted import BUGS
from crash.rounds import CrashRun, Options, Report
from support.planted_bugs import add_bug_option, chosen_bugs

PLANTED_ROUNDS_MAX = 12
ROUNDS_A_LIFE = 20


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description="Kill the broker, again and again, and look for what it lost.")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="repeat the random choices of an earlier run")
    add_bug_option(parser, [*BUGS])
    parser.add_argument(
        "--pool", action="store_true", help="append through a pool of buffers (store.transient_store_pool)"
    )
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 31)
    print(f"seed {seed}", flush=True)
    bugs = chosen_bugs(arguments.bug, BUGS)
    if bugs:
        planted = Options(PLANTED_ROUNDS_MAX, seed, Path(), full_check_every=1, pool=arguments.pool)
        caught = sum(_report_bug(bug, _run(replace(planted, bug=bug))) for bug in bugs)
        print(f"{caught} of {len(bugs)} planted bugs caught")
        return 1 if caught < len(bugs) else 0
    failed = not _report_run(_run_lives(arguments.rounds, seed, arguments.pool), arguments.rounds)
    print("FAILED" if failed else "all promises kept")
    return 1 if failed else 0


def _run_lives(rounds: int, seed: int, pool: bool) -> Report:
    """Run all rounds, on a fresh directory every so often: what is checked is checked whole, and must not grow."""
    total = Report()
    for number, done in enumerate(range(0, rounds, ROUNDS_A_LIFE)):
        life = _run(Options(min(ROUNDS_A_LIFE, rounds - done), seed + number, Path(), pool=pool))
        for name, count in life.counts.items():
            total.counts[name] = max(total.counts[name], count) if name.endswith("_max") else total.counts[name] + count
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
    print(f"planted bug {bug} ({BUGS[bug].story}): {where}", flush=True)
    if caught:
        print(checker.summary(report.violations, limit=1))
    return caught


if __name__ == "__main__":
    sys.exit(main())
