"""`python tests/task_faults/simulated.py`: a hundred thousand delayed messages under kills, in virtual time.

What is simulated is in `tests/simulation/delayed_tasks.py`; the judge is that of the runs with Celery. Exit code 0 if
nothing is wrong; with planted bugs: if each was caught.
"""

from __future__ import annotations

import argparse
import os
import resource
import secrets
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from simulation.stand_ins import Platform, real_process_time
from support.planted_bugs import NONE, add_bug_option, chosen_bugs
from task_faults.judge import counted, judge

_PLANTED_MESSAGES = 500
_WRONG, _FAILED = 1, 70
_STUCK_S = 600
"""Processor time of a simulation that does not end."""


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000, help="to send (100,000)")
    parser.add_argument("--seed", type=int, help="of what is killed and when")
    add_bug_option(parser)
    arguments = parser.parse_args()
    seed = secrets.randbelow(1 << 30) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    platform = Platform()
    platform.install()
    from simulation.delayed_tasks import BUGS

    if arguments.bug == NONE:
        return _run(platform, seed, arguments.messages, None)
    names = chosen_bugs(arguments.bug, BUGS)
    caught = 0
    for name in names:
        print(f"{name} ({BUGS[name].story})", flush=True)
        caught += _run(platform, seed, _PLANTED_MESSAGES, name) == _WRONG
    print(f"{caught} of {len(names)} planted bugs caught")
    return int(caught < len(names))


def _run(platform: Platform, seed: int, messages: int, bug: str | None) -> int:
    """Simulate in a process of its own, which prints what it finds; return its exit code."""
    with tempfile.TemporaryDirectory(prefix="reput-simulated-tasks-", dir="/dev/shm") as place:
        pid = os.fork()
        if pid == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (_STUCK_S, _STUCK_S))
            try:
                _simulate(platform, seed, messages, bug, Path(place))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(_FAILED)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _simulate(platform: Platform, seed: int, messages: int, bug: str | None, place: Path) -> None:
    from simulation.delayed_tasks import BUGS, TaskWorld

    platform.seed(seed)
    if bug is not None:
        BUGS[bug].plant()

    async def run(nursery: Any) -> None:
        world = TaskWorld(platform, seed, place)
        await world.run(nursery, messages)
        verdict = judge(world.marks, world.kills)
        print(counted(verdict, world.kills))
        print(f"{platform.clock.current_time():.0f} virtual seconds, {real_process_time():.0f} s of processor time")
        for line in verdict.wrong:
            print(f"  {line}")
        sys.stdout.flush()
        os._exit(_WRONG if verdict.wrong else 0)

    platform.run(run)


if __name__ == "__main__":
    sys.exit(main())
