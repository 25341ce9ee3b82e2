"""`python tests/fuzz/run.py`: millions of inputs at the broker's ports, most of them wrong.

Prints the seed first, then each kind with its number of inputs, its answers and its violations; exit code 0 if
there were none. Each kind runs in a process of its own, as many at once as there are processors.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from pathlib import Path

# In place of this directory, where `outcome` is ours, and trio wants another. Each process of the pool comes here, too.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from fuzz.kinds import KINDS  # noqa: E402
from fuzz.outcome import Outcome  # noqa: E402


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description="Send the broker what no client should.")
    parser.add_argument("--cases", type=int, default=1_000_000, help="inputs; some kinds take a tenth or a fifth of it")
    parser.add_argument("--seed", type=int, default=None, help="repeat the inputs of an earlier run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="kinds at once (the processors)")
    parser.add_argument("--kind", default="", help="only kinds with this text in their name")
    arguments = parser.parse_args()
    chosen = {name: tried for name, tried in KINDS.items() if arguments.kind in name}
    if not chosen:
        parser.error(f"there is no kind {arguments.kind!r}; there are {', '.join(KINDS)}")
    seed = arguments.seed if arguments.seed is not None else secrets.randbelow(1 << 31)
    print(f"seed {seed}", flush=True)
    passed = True
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn"), max_tasks_per_child=1) as processes:
        signal.signal(signal.SIGTERM, lambda *_: _end(processes))
        running = {processes.submit(_try, name, seed, arguments.cases): name for name in chosen}
        for done in as_completed(running):
            outcome, took_s = done.result()
            passed &= not outcome.violations
            _report(running[done], outcome, took_s)
    print("all inputs survived" if passed else "FAILED")
    return 0 if passed else 1


def _end(processes: ProcessPoolExecutor) -> None:
    """End all: no process is left behind."""
    processes.shutdown(wait=False, cancel_futures=True)
    for process in active_children():
        process.terminate()
    sys.exit(1)


def _try(name: str, seed: int, cases: int) -> tuple[Outcome, float]:
    # As Ctrl-C, which event loops obey: its brokers and files go, too. A shell's background job ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    started_at = time.monotonic()
    tried = KINDS[name]
    outcome = tried.kind(seed, max(1, int(cases * tried.share)))
    return outcome, time.monotonic() - started_at


def _report(name: str, outcome: Outcome, took_s: float) -> None:
    answers = ", ".join(f"{count:,} {answer}" for answer, count in outcome.answers.most_common())
    print(
        f"{name}: {outcome.cases:,} inputs, {len(outcome.violations)} violations, memory "
        f"{outcome.growth_b / (1 << 20):+.1f} MiB, {outcome.more_blocks:+,} objects, {took_s:.0f} s; "
        f"answers: {answers}",
        flush=True,
    )
    for violation in outcome.violations[:10]:
        print(f"  {violation[:2000]}")


if __name__ == "__main__":
    sys.exit(main())
