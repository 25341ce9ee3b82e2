"""The judge of the outbox, and a short run with kills."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("django")

from outbox.judge import Run, Verdict, judge


def test_the_judge_finds_what_is_wrong() -> None:
    runs = [Run("a", 1, 10.0), Run("b", 1, 20.0), Run("b", 2, 30.0)]

    def judged(
        orders: list[str], rolled_back: list[str], killed: dict[int, float], broker_kills: list[float]
    ) -> Verdict:
        return judge(orders, rolled_back, runs, killed=killed, broker_kills=broker_kills, invisible_s=2.0)

    assert judged(["a", "b"], ["c"], {1: 20.5}, []) == (2, 1, 1, 0, [])
    assert judged(["a", "b"], ["c"], {1: 26.5}, [21.0]) == (2, 1, 1, 0, [])  # the broker was away meanwhile
    for at in (14.0, 20.5):
        assert judged(["a", "b"], ["c"], {}, [at]) == (2, 1, 0, 1, [])
    for orders, rolled_back, killed, broker_kills in (
        (["a", "b"], [], {2: 20.5}, []),  # it has run again without a kill of the first one
        (["a", "b"], [], {1: 26.5}, []),  # the first one was killed long after it
        (["a", "b"], [], {1: 19.5}, []),  # or before it
        (["a", "b"], [], {1: 30.5}, [29.0]),  # or after the second one
        (["a", "b"], [], {}, [12.0, 25.0]),  # the broker was killed at another time
        (["a", "b", "d"], [], {1: 20.5}, []),  # it has not run
        (["a"], ["b"], {1: 20.5}, []),  # it has run, and was rolled back
        (["a", "b"], ["a"], {1: 20.5}, []),  # it was rolled back, and is there
    ):
        assert len(judged(orders, rolled_back, killed, broker_kills).violations) == 1


@pytest.mark.process
@pytest.mark.fault
def test_a_short_run_with_kills() -> None:
    command = [
        sys.executable,
        str(Path(__file__).with_name("run.py")),
        "--orders",
        "100",
        "--pause",
        "1",
        "--invisible",
        "2",
    ]
    run = subprocess.run(command, env={**os.environ}, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "; 0 violations" in run.stdout
