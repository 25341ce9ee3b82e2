"""A few kills under a Celery program; `make soak KIND=task-faults` kills for long. And the judge itself."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("celery")

from task_faults.judge import Kill, Marks, Run, judge
from task_faults.scene import KILLS, run


@pytest.mark.process
def test_every_task_runs_through_kills(tmp_path: Path) -> None:
    """The invisible time is longer than the broker is away, so that a worker can extend it afterwards."""
    verdict, kills = run(tmp_path, "reput", 600, 5.0, KILLS, random.Random(1), kills_s=6.0, invisible_s=8.0)
    assert not verdict.wrong, (verdict, kills)
    assert verdict.sent == len(verdict.late_s) == 600


def _simulate(*options: str) -> str:
    """Simulate with seed 1; return what it has printed."""
    command = [sys.executable, str(Path(__file__).with_name("simulated.py")), "--seed", "1", *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.process
def test_messages_of_virtual_minutes_through_kills() -> None:
    said = _simulate("--messages", "2000")
    assert "2000 tasks sent, 2000 have run" in said


@pytest.mark.process
def test_planted_bugs_are_caught_in_virtual_time() -> None:
    assert "3 of 3 planted bugs caught" in _simulate("--bug", "only")


def test_what_the_judge_says() -> None:
    runs = {
        1: [Run(7, 100.5)],
        2: [Run(7, 99.0)],
        3: [Run(7, 100.5), Run(8, 130.0)],
        4: [Run(8, 100.5), Run(9, 130.0)],
        5: [Run(8, 80.0), Run(9, 130.0)],
        6: [Run(8, 104.0), Run(9, 130.0)],
    }
    marks = Marks(dict.fromkeys(range(1, 8), 80.0) | {1: 100.0, 2: 100.0}, {1, 2, 3, 4, 5, 6, 7}, runs)
    verdict = judge(marks, [Kill("worker", 101.0, 101.1, frozenset([7]))])
    assert verdict.lost == [7]
    assert verdict.early == [2]
    assert [*verdict.unexplained] == [4, 5, 6]
    assert verdict.repeated == {"worker": 1}
    assert len(verdict.wrong) == 6
    verdict = judge(marks, [Kill("broker", 101.0, 103.0)])
    assert [*verdict.unexplained] == [5, 6]
    assert verdict.repeated == {"broker": 2}


def test_a_line_that_a_kill_has_cut_is_none(tmp_path: Path) -> None:
    (tmp_path / "12").write_text("sent 1 100.0 90.0\nran 1 100.0 100.25\nran 2 10")
    marks = Marks.read(tmp_path)
    assert marks == Marks({1: 100.0}, {1}, {1: [Run(12, 100.25)]})
