"""`python tests/schedules/run.py`: kill the master of three brokers every few seconds while schedules send.

Exit code 0 if for each time of each schedule one message is stored, none before its time; a schedule that sends only
the latest of missed times may leave out those that had passed, like a later one, when a new master could send. With
planted bugs: if each was caught.
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

from schedules.planted import BUGS
from schedules.scene import run
from support.planted_bugs import NONE, add_bug_option, chosen_bugs

_ALL = ("@every 1000ms", "@every 1500ms", "@every 2000ms", "@every 3000ms", "@every 5000ms", "@every 11000ms")
_LATEST = ("@every 1000ms", "@every 2000ms", "@every 7000ms")
_CRON = ("* * * * *", "*/2 * * * *")
_SCHEDULES = [(when, "all") for when in (*_ALL, *_CRON)] + [(when, "latest") for when in (*_LATEST, *_CRON)]
_PLANTED_MINUTES = 0.5


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="of kills (10)")
    parser.add_argument("--seed", type=int, help="of when masters are killed")
    add_bug_option(parser, [*BUGS])
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no process is left behind
    seed = secrets.randbelow(1 << 31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    rng = random.Random(seed)
    names = chosen_bugs(arguments.bug, BUGS)
    caught = 0
    for name in names:
        with tempfile.TemporaryDirectory(prefix="reput-schedules-") as place:
            verdict, _ = run(Path(place), _PLANTED_MINUTES, _SCHEDULES, rng, bug=name)
        caught += bool(verdict.wrong)
        what = f"caught: {verdict.wrong[0]}" if verdict.wrong else "NOT CAUGHT"
        print(f"{name} ({BUGS[name].story}): {what}", flush=True)
    if arguments.bug != NONE:
        print(f"{caught} of {len(names)} planted bugs caught")
        return int(caught < len(names))
    with tempfile.TemporaryDirectory(prefix="reput-schedules-") as place:
        verdict, kills = run(
            Path(place),
            arguments.minutes,
            _SCHEDULES,
            rng,
            progress=lambda text: print(text, end="\r", file=sys.stderr, flush=True),
        )
    late = verdict.late_s
    print(
        f"{kills} masters killed; {len(_SCHEDULES)} schedules, {verdict.times} times, {len(late)} messages, "
        f"{verdict.left_out} left out for a later one; "
        f"late by {late[len(late) // 2]:.3f} s (median), {late[len(late) * 99 // 100]:.1f} s (99 %), {late[-1]:.1f} s; "
        f"{len(verdict.wrong)} wrong"
    )
    for line in verdict.wrong[:50]:
        print(f"  {line}")
    return int(bool(verdict.wrong))


if __name__ == "__main__":
    sys.exit(main())
