"""The job `archive` to a Delta or Iceberg table under kills: every message is in the table once."""

from __future__ import annotations

import os
import sys

from pipeline_faults.outcomes import Outcome
from pipeline_faults.points import BUG
from pipeline_faults.scene import HERE, Trial, scene
from support import lake_tables

_KILLS = 20


def delta_killed(trial: Trial) -> Outcome:
    """The job to a Delta table is killed under a load."""
    return _killed("delta", trial)


def iceberg_killed(trial: Trial) -> Outcome:
    """The job to an Iceberg table is killed under a load."""
    return _killed("iceberg", trial)


def _killed(table_format: str, trial: Trial) -> Outcome:
    outcome = Outcome(rounds=_KILLS)
    with scene(trial, lake_tables.TOPIC, lake_tables.QUEUES) as found:
        command = [sys.executable, str(HERE / "lake_driver.py")]
        environment = {**os.environ, BUG: trial.bug}
        job = lake_tables.Job(found.broker.address, table_format, found.directory / "t", command, environment)
        lake_tables.kill_and_restart(found.broker, job, _KILLS, trial.random)
        wanted = lake_tables.read_by_consumer(found.broker.address)
        there = lake_tables.sums(lake_tables.read(table_format, job.place))
        figures = "rows, distinct ones, sums of offsets and of bytes"
        outcome.expect(wanted == there, "rows once", f"{there} in the table, {wanted} sent ({figures})")
        outcome.notes.append(f"{wanted[0]} rows")
    return outcome
