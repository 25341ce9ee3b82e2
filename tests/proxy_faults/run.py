"""`python tests/proxy_faults/run.py`: kill proxy, broker or master under RocketMQ's gRPC clients for Java and Python.

Exit code 0 if everything whose send has succeeded is received, and nothing is received again that was acknowledged
(`judge.py`); or with planted bugs, if each was caught.
"""

from __future__ import annotations

import argparse
import random
import secrets
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from proxy_faults import planted
from proxy_faults.kinds import KINDS, run
from support.maven import Unreachable
from support.planted_bugs import NONE, add_bug_option, chosen_bugs

CLIENTS = ("grpc-python", "grpc-java")
_PLANTED_ROUNDS = 2


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50, help="kills of each kind under each client (50)")
    parser.add_argument("--kind", action="append", choices=[*KINDS], help="only this one; repeatable")
    parser.add_argument("--client", action="append", choices=CLIENTS, help="only this one; repeatable")
    parser.add_argument("--seed", type=int, help="of the pauses before kills")
    add_bug_option(parser, [*planted.BUGS])
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # no process is left behind
    seed = secrets.randbelow(1 << 31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    clients = arguments.client or CLIENTS
    if arguments.bug != NONE:
        return _run_planted(chosen_bugs(arguments.bug, planted.BUGS), clients[0], seed)
    failed = False
    for kind in arguments.kind or KINDS:
        for client in clients:
            try:
                outcome = run(kind, client, arguments.rounds, random.Random(seed))
            except Unreachable as error:
                print(f"{kind}, {client}: skipped: {error}", flush=True)
                continue
            failed |= bool(outcome.wrong)
            end = "FAILED" if outcome.wrong else "nothing lost, nothing acknowledged came again"
            print("\n  ".join([f"{kind}, {client}: {outcome.counted}; {end}", *outcome.wrong[:20]]), flush=True)
    return int(failed)


def _run_planted(names: list[str], client: str, seed: int) -> int:
    """Run each planted bug under a client; return 0 if every one was caught."""
    caught = 0
    for name in names:
        wrong = run("proxy", client, _PLANTED_ROUNDS, random.Random(seed), bug=name).wrong
        caught += bool(wrong)
        what = f"caught: {wrong[0]}" if wrong else "NOT CAUGHT"
        print(f"{name} ({planted.BUGS[name].story}): {what}", flush=True)
    print(f"{caught} of {len(names)} planted bugs caught")
    return int(caught < len(names))


if __name__ == "__main__":
    sys.exit(main())
