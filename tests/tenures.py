"""A source of tenures that a test sets."""

from __future__ import annotations

import trio

from reput_broker.ha.roles import Role, Tenure


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
