"""Every kind of fault of the pipeline that `run.py` tries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pipeline_faults import archive_kinds, lake_kinds, replay_kinds, sink_kinds, stream_kinds
from pipeline_faults.outcomes import Outcome
from pipeline_faults.scene import Trial

KINDS: dict[str, Callable[[Trial], Outcome]] = {
    "sink: driver killed": sink_kinds.driver_killed,
    "sink: task fails": sink_kinds.task_fails,
    "sink: broker killed": sink_kinds.broker_killed,
    "sink: master killed": sink_kinds.master_killed,
    "sink: speculation": sink_kinds.speculation,
    "sink: broker and driver killed": sink_kinds.both_killed,
    "archive: driver killed": archive_kinds.driver_killed,
    "archive: task fails": archive_kinds.task_fails,
    "archive: broker killed": archive_kinds.broker_killed,
    "lake: delta job killed": lake_kinds.delta_killed,
    "lake: iceberg job killed": lake_kinds.iceberg_killed,
    "replay: driver killed": replay_kinds.driver_killed,
    "replay: broker killed": replay_kinds.broker_killed,
    "stream: masters killed": stream_kinds.masters_killed,
    "stream: packets lost": stream_kinds.packets_lost,
}
WITH_A_NETWORK: Final = frozenset({"stream: packets lost"})
"""Those that need a network of their own, which only root can make."""
