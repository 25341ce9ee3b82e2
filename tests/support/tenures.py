"""Roles for tests: a source of tenures that a test sets, and figures of replication."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from reput_broker.observe.metrics import MasterFigures, ReplicationFigures, SlaveFigures
from reput_broker.roles import Role, Tenure

REPLICATION = ReplicationFigures(
    "SYNC_MASTER", 3, MasterFigures(1, 2, 2, 4096, {"1": (10, 0.5)}), SlaveFigures(True, True, 10, 0.5, 1.0)
)
"""Of a master and a slave at once, so that all series are there."""


class SetTenures:
    """What the broker is: as the test says."""

    def __init__(self, current: Tenure | None = None) -> None:
        self.current = current or Tenure(Role.ASYNC_MASTER, 0)
        self._change = trio.Event()

    def set(self, tenure: Tenure) -> None:
        self.current = tenure
        self._change.set()
        self._change = trio.Event()

    async def changed(self, tenure: Tenure) -> None:
        while self.current == tenure:
            await self._change.wait()

    def confirmed(self, epochs: Sequence[tuple[int, int]], end: int) -> int:
        return 0

    def note_confirmed(self, epoch: int, offset: int, epochs: Sequence[tuple[int, int]], end: int) -> None:
        pass
