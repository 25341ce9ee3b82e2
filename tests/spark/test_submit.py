"""The jobs as `spark-submit` starts them: by the file of their module, which puts its directory first on the path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import reput_pipeline
from reput_pipeline.archives.manifests import ArchiveDirectory
from reput_pipeline.java import find_java_home
from reput_pipeline.jobs import JOBS
from store_samples import MESSAGES, fill

PACKAGE = Path(reput_pipeline.__file__).parent
SETTINGS = Path(__file__).resolve().parents[2] / "conf" / "spark-defaults.conf"


@pytest.mark.parametrize("name", JOBS)
def test_every_job_is_a_file_that_runs(name: str) -> None:
    command = [sys.executable, str(PACKAGE / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert f"Usage: reput pipeline {name}" in done.stdout


def test_a_submitted_job_does_its_work_under_the_shipped_settings(tmp_path: Path) -> None:
    fill(tmp_path / "s")
    submit = str(Path(sys.executable).with_name("spark-submit"))
    home = find_java_home()
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **({"JAVA_HOME": home} if home else {})}
    command = [submit, "--master", "local[2]", "--properties-file", str(SETTINGS)]
    command += [str(PACKAGE / "archive.py"), "--path", str(tmp_path / "s"), "--to", str(tmp_path / "a")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["status"], result["rows"]) == ("done", MESSAGES)
    assert sum(file.rows for file in ArchiveDirectory(tmp_path / "a").files()) == MESSAGES
