"""A job of the pipeline as a driver that dies where the environment says.

Usage: `python job_driver.py NAME ARGUMENTS...`, as `reput pipeline NAME ...`. The process must lead a session of its
own: what dies is its whole process group, JVM included.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from pipeline_faults import dying_jobs
from pipeline_faults.points import lead_group
from reput_pipeline.jobs.run import run_job

if __name__ == "__main__":
    lead_group()
    dying_jobs.plant()
    sys.exit(run_job(sys.argv[1], sys.argv[2:]))
