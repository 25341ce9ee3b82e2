"""A few seeds without a violation, the same history twice, and planted bugs that are caught.

`make simulate` takes many seeds, `make simulate-planted` every bug. A failure names its seed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_RUN = Path(__file__).with_name("run.py")
_SEED = 20261123


def _run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(_RUN), *options], capture_output=True, text=True, check=False)


def test_a_few_seeds_break_no_promise() -> None:
    ended = _run("--first", str(_SEED), "--seeds", "3")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_same_seed_gives_the_same_history(tmp_path: Path) -> None:
    for name in ("one", "other"):
        ended = _run("--seed", str(_SEED), "--history", str(tmp_path / name))
        assert ended.returncode == 0, ended.stdout + ended.stderr
    histories = [(tmp_path / name / "history.jsonl").read_bytes() for name in ("one", "other")]
    assert histories[0] == histories[1]
    assert b'"acked"' in histories[0]
