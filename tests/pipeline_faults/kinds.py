"""Every kind of fault of the pipeline that `run.py` tries; a job adds its own here."""

from __future__ import annotations

from collections.abc import Callable

from pipeline_faults import sink_kinds
from pipeline_faults.outcomes import Outcome

KINDS: dict[str, Callable[[], Outcome]] = {
    "sink: driver killed": sink_kinds.driver_killed,
    "sink: task fails": sink_kinds.task_fails,
    "sink: broker killed": sink_kinds.broker_killed,
    "sink: broker and driver killed": sink_kinds.both_killed,
}
