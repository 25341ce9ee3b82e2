"""Roles for tests: a source of tenures that a test sets, and figures of replication."""

from __future__ import annotations

from reput_broker.observe.metrics import MasterFigures, ReplicationFigures, SlaveFigures
from reput_broker.tenure.core import Role, Tenure, TenureSource

REPLICATION = ReplicationFigures(
    "SYNC_MASTER", 3, MasterFigures(1, 2, 2, 4096, {"1": (10, 0.5)}), SlaveFigures(True, True, 10, 0.5, 1.0)
)
"""Of a master and a slave at once, so that all series are there."""


class SetTenures(TenureSource):
    """What the broker is: as the test says."""

    def __init__(self, current: Tenure | None = None) -> None:
        super().__init__(current or Tenure(Role.ASYNC_MASTER, 0))

    def set(self, tenure: Tenure) -> None:
        self._set(tenure)
