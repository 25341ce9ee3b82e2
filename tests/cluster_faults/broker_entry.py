"""The real broker as `make soak KIND=cluster-faults` starts it: its wall clock can be set, and it records its tenures.

Usage: `python broker_entry.py --name b0 --history FILE --clock FILE serve --data-dir DIR`; `--clock` is 8 bytes, the
nanoseconds by which the broker's wall clock is ahead, read at every look at it.
"""

from __future__ import annotations

import argparse
import mmap
import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from histories import terms
from histories.history import Pulse, Recorder
from support.short_locks import shorten_in_broker

_SCAN_S = 0.5


def main() -> None:
    """Install what the run needs, then run the `reput` command with the other arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--clock", type=Path, required=True)
    arguments, command = parser.parse_known_args()
    _settable_clock(arguments.clock)
    recorder = Recorder(arguments.history, arguments.name)
    Pulse(recorder)
    _note_tenures(recorder)
    from reput_broker.groups import membership

    membership._SCAN_S = _SCAN_S
    shorten_in_broker(terms.LOCK_TIMEOUT_S)
    sys.argv = ["reput", *command]
    from reput_cli.main import main as reput

    reput()


def _settable_clock(path: Path) -> None:
    """Put a clock in the place of the wall clock, before any module of the broker is imported."""
    with path.open("rb") as file:
        offset = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    real_ns = time.time_ns

    def time_ns() -> int:
        ahead: int = struct.unpack("<q", offset[:8])[0]
        return real_ns() + ahead

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


def _note_tenures(recorder: Recorder) -> None:
    """Write down what the broker becomes, before it serves anything as that, and the ends of leases."""
    from reput_broker.compose.running_tenure import RunningTenure
    from reput_broker.ha.election.mastership import Mastership

    start, end = RunningTenure._start_parts, Mastership.end

    address = f"{os.environ['REPUT_HOST']}:{os.environ['REPUT_PORT']}"

    def noted(self: Any, nursery: Any) -> Any:
        tenure = self.tenure
        wall_ms = time.time_ns() // 1_000_000
        what = "leads" if tenure.is_master else "follows"
        recorder.note(what, epoch=tenure.epoch, address=address, wall_ms=wall_ms)
        return start(self, nursery)

    def ended(self: Mastership, reason: str, *, is_wanted: bool = False) -> None:
        if not self.is_over:
            recorder.note("led", of=address)
        end(self, reason, is_wanted=is_wanted)

    RunningTenure._start_parts = noted  # type: ignore[method-assign]
    Mastership.end = ended  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
