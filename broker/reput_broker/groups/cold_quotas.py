"""How much of old messages consumer groups may read from the disk (RocketMQ: ColdDataCgCtrService,
ColdDataPullRequestHoldService).

A group that is far behind reads from the disk what consumers that keep up find in memory, and takes the disk from
everything else. With a quota, a pull waits that would read more from the disk than the group may in a window of five
seconds: until the window ends, but for three seconds at most, so that a group that is held up still advances.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import trio
from msgspec import Struct

WINDOW_S: Final = 5.0
HELD_MAX_S: Final = 3.0
_SHOWN_MS: Final = 60_000
"""How long a group is shown after its last read from the disk."""


class _Reads(Struct):
    """What a group has read from the disk."""

    created_ms: int
    last_ms: int = 0
    window: int = -1
    size: int = 0
    """Bytes in this window."""


class ColdQuotas:
    """The quotas of groups, until the broker stops, and what the groups have read lately. Only a few groups have one.

    Args:
        clock_ms: milliseconds since the epoch, for administrators.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._quotas: dict[str, int] = {}
        self._reads: dict[str, _Reads] = {}

    def set(self, group: str, size: int) -> None:
        """Let a group read this many bytes from the disk in five seconds."""
        self._quotas[group] = size

    def remove(self, group: str) -> None:
        """Let a group read without limit."""
        self._quotas.pop(group, None)

    async def wait(self, group: str) -> None:
        """Wait until a group may read from the disk."""
        until = trio.current_time() + HELD_MAX_S
        while (now := trio.current_time()) < until:
            quota = self._quotas.get(group)
            if quota is None or self._used(group) < quota:
                return
            window_end = (self._window() + 1) * WINDOW_S
            await trio.sleep(min(until, window_end) - now)

    def count(self, group: str, size: int) -> None:
        """Note that a group has read from the disk."""
        now_ms, window = self._clock_ms(), self._window()
        reads = self._reads.get(group)
        if reads is None:
            self._forget_old(now_ms)
            reads = self._reads[group] = _Reads(now_ms)
        if reads.window != window:
            reads.window, reads.size = window, 0
        reads.size += size
        reads.last_ms = now_ms

    def described(self) -> dict[str, Any]:
        """Return quotas and reads, with RocketMQ's names."""
        self._forget_old(self._clock_ms())
        return {
            "configTable": dict(self._quotas),
            "runtimeTable": {
                group: {
                    "coldAcc": self._used(group),
                    "createTimeMills": reads.created_ms,
                    "lastColdReadTimeMills": reads.last_ms,
                }
                for group, reads in self._reads.items()
            },
            "globalAcc": sum(self._used(group) for group in self._reads),
        }

    def _used(self, group: str) -> int:
        reads = self._reads.get(group)
        return reads.size if reads is not None and reads.window == self._window() else 0

    @staticmethod
    def _window() -> int:
        return int(trio.current_time() // WINDOW_S)

    def _forget_old(self, now_ms: int) -> None:
        for group in [group for group, reads in self._reads.items() if now_ms - reads.last_ms > _SHOWN_MS]:
            del self._reads[group]
