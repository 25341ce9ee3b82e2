"""The file that the job `package` makes for the executors of a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from reput_protocol import kernel


def packed_file(directory: Path) -> Path:
    """Return the file that `reput pipeline package` makes."""
    packed = directory / "packed.zip"
    command = [sys.executable, "-m", "reput_pipeline.jobs.package", "--to", str(packed)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert (told["file"], told["kernel"]) == (str(packed), kernel.FORM)
    assert f"spark-submit --archives {packed}#reput --conf spark.executorEnv.PYTHONPATH=reput" in ran.stdout
    assert [path.name for path in directory.glob("*packed*")] == ["packed.zip"]
    return packed
