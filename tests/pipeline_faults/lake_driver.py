"""The job `archive` to a table, with the bug that the environment names: `python lake_driver.py ARGUMENTS...`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from pipeline_faults import planted
from reput_pipeline.jobs.run import run_job

if __name__ == "__main__":
    planted.plant_of_environment()
    sys.exit(run_job("archive", sys.argv[1:]))
