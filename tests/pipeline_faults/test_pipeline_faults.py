"""One real driver that is killed, and started again; `make soak KIND=pipeline-faults` kills many, and brokers."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pipeline_faults.kinds import KINDS
from pipeline_faults.planted import BUGS
from pipeline_faults.scene import HERE, Trial

pytestmark = [pytest.mark.process, pytest.mark.fault]

# One seed, so that the test says the same every time.
_SEED = 20261121


@pytest.mark.long
def test_an_archive_whose_driver_was_killed_before_its_manifest_is_whole() -> None:
    seed = int(os.environ.get("FAULTS_SEED", _SEED))
    name = "archive: driver killed"
    print(f"""seed {seed}; make soak KIND=pipeline-faults SEED={seed} ARGS="--kind '{name}'" repeats it""")
    outcome = KINDS[name](Trial(random.Random(f"{seed} {name}"), ("before-manifest",)))
    assert outcome.rounds == 1
    assert not outcome.violations, "\n".join(map(str, outcome.violations))
    assert len(outcome.notes) == 2


def test_every_planted_bug_names_a_kind() -> None:
    assert {bug.kind for bug in BUGS.values()} <= set(KINDS)


def test_a_bug_for_another_kind_is_an_error() -> None:
    """It was reported as 0 of 0 bugs caught."""
    command = [sys.executable, str(HERE / "run.py"), "--bug", "run_for_query", "--kind", "lake"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "run_for_query: 'stream: masters killed'" in done.stderr
