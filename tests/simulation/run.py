"""`python tests/simulation/run.py`: simulate many seeds, or one with its history; or planted bugs.

Every seed runs in a process of its own, forked from one that has imported everything.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import json
import os
import resource
import secrets
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from simulation.stand_ins import Platform, real_process_time
from support.planted_bugs import NONE, add_bug_option, chosen_bugs

_HASH_SEED: Final = "0"
_FAILED: Final = 70
_STUCK_S: Final = 90
"""Processor time of a simulation that does not end."""
_SHOWN: Final = 6


def main() -> int:
    """Parse the arguments, run, report."""
    if os.environ.get("PYTHONHASHSEED") != _HASH_SEED:  # the order of sets of strings
        os.environ.update(PYTHONHASHSEED=_HASH_SEED, TZ="UTC")
        os.execv(sys.executable, [sys.executable, *sys.argv])
    parser = argparse.ArgumentParser(description="Simulate brokers, clients, network and disks; judge the history.")
    parser.add_argument("--seeds", type=int, help="how many (1 if the first is given, or 1000)")
    parser.add_argument("--seed", type=int, help="the first of them; random by default")
    parser.add_argument("--history", type=Path, help="of one seed: a directory for its history and log")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    add_bug_option(parser)
    parser.add_argument("--duration", type=float, default=9.0, help="virtual seconds of faults")
    parser.add_argument("--scene", help="what follows the random faults; by the seed")
    parser.add_argument("--group", default="elected", choices=["alone", "followed", "elected"])
    arguments = parser.parse_args()
    platform = Platform()
    platform.install()
    _import_for_all_seeds()
    if arguments.bug != NONE and arguments.history is None:
        return _run_planted(platform, arguments)
    if arguments.seed is not None and arguments.seeds is None:
        outcome = _fork(platform, arguments.seed, arguments).wait()
        print(json.dumps(outcome, indent=1))
        return 1 if outcome["violations"] else 0
    first = _first(arguments)
    return _run_many(platform, range(first, first + (arguments.seeds or 1000)), arguments)


def _first(arguments: argparse.Namespace) -> int:
    return secrets.randbelow(1 << 30) if arguments.seed is None else int(arguments.seed)


def _import_for_all_seeds() -> None:
    """Import the product and what it imports when it is first used."""
    import reput_client
    import simulation.scenario  # noqa: F401

    for name in dir(reput_client):
        getattr(reput_client, name)
    for name in ("anyio._backends._trio", "encodings.idna", "reput_client.transport.aio"):
        import_module(name)


class _Child:
    """A process that simulates one seed."""

    def __init__(self, seed: int, pid: int, directory: Path, result: Path) -> None:
        self.seed = seed
        self.pid = pid
        self._directory = directory
        self._result = result

    def wait(self) -> dict[str, Any]:
        """Return its outcome."""
        _, status = os.waitpid(self.pid, 0)
        return self.outcome(status)

    def outcome(self, status: int) -> dict[str, Any]:
        """Return what it has left."""
        code = os.waitstatus_to_exitcode(status)
        text = self._result.read_text() if self._result.exists() else ""
        self._result.unlink(missing_ok=True)
        shutil.rmtree(self._directory)
        if code == 0:
            outcome: dict[str, Any] = json.loads(text)
            return outcome
        return {"seed": self.seed, "violations": [f"crashed: exit code {code}\n{text}"], "counts": {}, "faults": {}}


def _fork(platform: Platform, seed: int, arguments: argparse.Namespace) -> _Child:
    directory = Path(tempfile.mkdtemp(prefix="reput-simulation-", dir="/dev/shm"))
    result = directory.with_suffix(".json")
    pid = os.fork()
    if pid == 0:
        faulthandler.register(signal.SIGXCPU, chain=True)
        resource.setrlimit(resource.RLIMIT_CPU, (_STUCK_S, _STUCK_S + 10))
        try:
            _simulate(platform, seed, arguments, directory, result)
        except BaseException:
            result.write_text(traceback.format_exc()[-4000:])
        finally:
            os._exit(_FAILED)
    return _Child(seed, pid, directory, result)


def _simulate(platform: Platform, seed: int, arguments: argparse.Namespace, directory: Path, result: Path) -> None:
    from simulation.planted import BUGS
    from simulation.scenario import Plan, outcome_of, simulate

    platform.seed(seed)
    plan = Plan(arguments.group, arguments.scene, None, arguments.duration)
    if arguments.bug != NONE:
        BUGS[arguments.bug].plant()
        bug = BUGS[arguments.bug]
        plan.weights, plan.scene, plan.has_pool = bug.weights, bug.scene, bug.has_pool
    began = real_process_time()

    async def run(nursery: Any) -> None:
        world = await simulate(platform, nursery, plan, seed, directory)
        outcome = dataclasses.asdict(outcome_of(world)) | {"cpu_s": round(real_process_time() - began, 3)}
        _write(world, outcome, result, arguments.history)

    platform.run(run)


def _run_planted(platform: Platform, arguments: argparse.Namespace) -> int:
    """Simulate with each bug until a rule that should has noticed it."""
    from simulation.planted import BUGS

    first = _first(arguments)
    bugs = {name: BUGS[name] for name in chosen_bugs(arguments.bug, BUGS)}
    caught = 0
    print(f"{'planted bug':30} {'seed':>11}  {'of seeds':>8}  found as")
    for name, bug in bugs.items():
        arguments.bug = name
        for seed in range(first, first + bug.seeds):
            violations = _fork(platform, seed, arguments).wait()["violations"]
            found = next((text for text in violations if text.partition(":")[0] in bug.rules), None)
            if found is not None:
                caught += 1
                print(f"{name:30} {seed:>11}  {seed - first + 1:>2} of {bug.seeds:>2}  {found[:120]}")
                break
        else:
            print(f"{name:30} {'NOT CAUGHT':>11}  {bug.seeds:>8}")
        print(f"    {bug.story}", flush=True)
    print(f"{caught} of {len(bugs)} planted bugs caught")
    return 0 if caught == len(bugs) else 1


def _write(world: Any, outcome: dict[str, Any], result: Path, keep: Path | None) -> None:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / "history.jsonl").write_text(world.history.text())
        (keep / "log.txt").write_text("\n".join(world.logged) + "\n")
    result.write_text(json.dumps(outcome))


def _run_many(platform: Platform, seeds: range, arguments: argparse.Namespace) -> int:
    counts: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    faults_of_failed: Counter[str] = Counter()
    rules: Counter[str] = Counter()
    failed, virtual_s, cpu_s = 0, 0.0, 0.0
    print(f"seeds {seeds.start} to {seeds.stop - 1}", flush=True)
    running: dict[int, _Child] = {}
    left = iter(seeds)
    ended = 0
    while ended < len(seeds):
        while len(running) < arguments.jobs and (seed := next(left, None)) is not None:
            child = _fork(platform, seed, arguments)
            running[child.pid] = child
        pid, status = os.wait()
        outcome = running.pop(pid).outcome(status)
        ended += 1
        counts.update(outcome["counts"])
        faults.update(outcome["faults"])
        virtual_s += outcome.get("virtual_s", 0.0)
        cpu_s += outcome.get("cpu_s", 0.0)
        if outcome["violations"]:
            failed += 1
            faults_of_failed.update(outcome["faults"])
            rules.update({violation.partition(":")[0] for violation in outcome["violations"]})
            print(
                f"seed {outcome['seed']}: {len(outcome['violations'])} violations; "
                f"python tests/simulation/run.py --group {arguments.group} --seed {outcome['seed']} --history DIR"
            )
            for violation in outcome["violations"][:_SHOWN]:
                print(f"    {violation[:600]}", flush=True)
            print(f"    faults: {_counted(outcome['faults'])}", flush=True)
    print(_counted(counts))
    print(f"faults: {_counted(dict(sorted(faults.items())))}")
    if failed:
        print(f"faults of the failed seeds: {_counted(dict(sorted(faults_of_failed.items())))}")
        print(f"failed seeds by rule: {_counted(rules)}")
    time_of_one = f"{cpu_s / len(seeds):.2f} s of processor time a seed"
    print(f"{len(seeds)} seeds, {virtual_s:.0f} virtual seconds, {time_of_one}; {failed} failed")
    return 1 if failed else 0


def _counted(counts: Mapping[str, int]) -> str:
    return "  ".join(f"{name}={count}" for name, count in counts.items())


if __name__ == "__main__":
    sys.exit(main())
