"""An interrupted blocking producer is closed or usable: nothing hangs, no message is stored twice or lost unnoticed.

CI tries a sample of the places where a signal handler may raise. All of them, for a quarter of an hour:

    INTERRUPTS=all python -m pytest tests/client/test_interrupts.py
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest

_ALL: Final = os.environ.get("INTERRUPTS") == "all"
_TESTS: Final = Path(__file__).parents[1]
_PROGRAM: Final = _TESTS / "support" / "interrupted_producer.py"
_SILENCE_S: Final = 60.0
"""No round takes a second, but the machine may be busy."""


def lines(*arguments: str) -> list[str]:
    """Run the program and return its lines; the last one is `hang` if it had to be killed."""
    came: queue.Queue[str] = queue.Queue()
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(_PROGRAM), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(_TESTS)},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                came.put(line.strip())
            came.put("")

        errors: list[str] = []
        threads = [threading.Thread(target=read), threading.Thread(target=lambda: errors.extend(process.stderr or ()))]
        for thread in threads:
            thread.start()
        found: list[str] = []
        try:
            while line := came.get(timeout=_SILENCE_S):
                found.append(line)
        except queue.Empty:
            process.kill()
            found.append("hang")
        for thread in threads:
            thread.join()
    assert process.returncode == 0 or found[-1:] == ["hang"], "".join(errors)
    return found


@pytest.mark.parametrize("second", range(1, 60) if _ALL else [0, 1, 4, 16], ids=lambda second: f"and {second}")
def test_an_interrupt_anywhere_leaves_a_producer_closed_or_whole(second: int) -> None:
    arguments = [] if _ALL else ["--first", str(1 + second), "--step", "131"]
    found = lines("points", "--second", str(second), *arguments)
    assert len(found) > 10
    assert [line for line in found if not line.startswith("ok")] == []


def test_a_burst_of_signals_leaves_a_producer_closed_or_whole() -> None:
    found = lines("signals", "--rounds", "5000" if _ALL else "60")
    assert [line for line in found if not line.startswith("ok")] == []
