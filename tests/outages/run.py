"""`python tests/outages/run.py`: end brokers while programs with default settings send, and check what they were told.

Exit code 0 if no exception reached a program and everything with a receipt is stored once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from outages.scenes import fail_over, stop_or_kill


def main() -> int:
    """Parse the arguments, run, report."""
    parser = argparse.ArgumentParser(description="End brokers while programs with default settings send.")
    parser.add_argument("--rounds", type=int, default=100, help="outages, shared by the three kinds")
    rounds = parser.parse_args().rounds
    share = max(1, rounds // 3)
    scenes = {
        "stopped": partial(stop_or_kill, how="stop", rounds=share),
        "killed": partial(stop_or_kill, how="kill", rounds=share),
        "failed over": partial(fail_over, rounds=max(1, rounds - 2 * share)),
    }
    failed = False
    for name, scene in scenes.items():
        with tempfile.TemporaryDirectory() as directory:
            stored, wrong = scene(Path(directory))
        print(f"{name}: {stored} messages with a receipt; {wrong or 'each stored once'}", flush=True)
        failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
