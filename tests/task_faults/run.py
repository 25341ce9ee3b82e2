"""`python tests/task_faults/run.py`: kill the workers and the broker of a Celery program whose tasks have an ETA.

Each task is sent with a time of its own, at most MINUTES / 2 ahead. Exit code 0 if every task that was sent has run,
none before its time, and none again without a kill that explains it; or with planted bugs, if each was caught.
`--broker redis` runs the same program on Redis, and counts.
"""

from __future__ import annotations

import argparse
import random
import secrets
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from support.planted_bugs import NONE, add_bug_option, chosen_bugs
from task_faults.judge import counted
from task_faults.planted import BUGS
from task_faults.scene import BROKERS, KILLS, run

_PLANTED_TASKS = 600
_PLANTED_SPREAD_S = 8.0


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000, help="tasks to send (1,000,000)")
    parser.add_argument("--minutes", type=float, default=60.0, help="of kills (60)")
    parser.add_argument("--rounds", type=int, help="kills; one in 20 s if not given")
    parser.add_argument("--broker", choices=[*BROKERS], default="reput")
    parser.add_argument("--seed", type=int, help="of what is killed and when")
    add_bug_option(parser, [*BUGS])
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no process is left behind
    seed = secrets.randbelow(1 << 31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    if arguments.bug != NONE:
        return _run_planted(chosen_bugs(arguments.bug, BUGS), rng)
    rounds = round(arguments.minutes * 3) if arguments.rounds is None else arguments.rounds
    kinds = [*KILLS] * rounds
    kills = rng.sample(kinds, rounds)
    with tempfile.TemporaryDirectory(prefix="reput-task-faults-") as place:
        spread_s = arguments.minutes * 30.0
        verdict, killed = run(
            Path(place), arguments.broker, arguments.messages, spread_s, kills, rng, kills_s=arguments.minutes * 60.0
        )
    print(f"{arguments.broker}: {counted(verdict, killed)}")
    for line in verdict.wrong:
        print(f"  {line}")
    return int(bool(verdict.wrong) and arguments.broker == "reput")


def _run_planted(names: list[str], rng: random.Random) -> int:
    """Run with each planted bug and without kills; return 0 if every one was caught."""
    caught = 0
    for name in names:
        with tempfile.TemporaryDirectory(prefix="reput-task-faults-") as place:
            verdict, _ = run(
                Path(place), "reput", _PLANTED_TASKS, _PLANTED_SPREAD_S, [], rng, invisible_s=5.0, bug=name
            )
        caught += bool(verdict.wrong)
        what = f"caught: {verdict.wrong[0]}" if verdict.wrong else "NOT CAUGHT"
        print(f"{name} ({BUGS[name].story}): {what}", flush=True)
    print(f"{caught} of {len(names)} planted bugs caught")
    return int(caught < len(names))


if __name__ == "__main__":
    sys.exit(main())
