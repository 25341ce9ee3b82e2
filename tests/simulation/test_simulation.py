"""A short failover story without a violation, and the same history twice.

`make soak KIND=simulation` takes many seeds. A failure names its seed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_RUN = Path(__file__).with_name("run.py")
_SEED = "20261124"


def _run(*options: str) -> None:
    ended = subprocess.run([sys.executable, str(_RUN), *options], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_same_seed_gives_the_same_history(tmp_path: Path) -> None:
    for name in ("one", "other"):
        _run("--seed", _SEED, "--duration", "2", "--history", str(tmp_path / name))
    histories = [(tmp_path / name / "history.jsonl").read_bytes() for name in ("one", "other")]
    assert histories[0] == histories[1]
    assert b'"acked"' in histories[0]
