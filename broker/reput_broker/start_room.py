"""When a start that found no room on the disk is tried again: each attempt recovers the store from the beginning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio

from reput_broker.observe.figures import free_and_used

_LOOK_S = 5.0
_PAUSE_MAX_S = 600.0
_GROWTH_BYTES = 1 << 20


class StartRoom:
    """Waits for free space between the attempts of a start.

    Args:
        directories: those that the start writes to.
        stop_wanted: ends every wait.
    """

    def __init__(self, directories: Sequence[Path], stop_wanted: trio.Event) -> None:
        self._directories = tuple(directories)
        self._stop_wanted = stop_wanted
        self._pause_s = _LOOK_S

    async def wait(self, needed_bytes: int, attempt_s: float) -> None:
        """Return when another attempt may succeed, or when the broker is to stop.

        That is when a disk has at least 1 MiB more free than now, and the bytes that were needed, but not before the
        broker has waited as long as the last attempt took. Free space does not show a quota, so that an attempt follows
        without it after 5 s, and after twice as long each time, up to 10 minutes.

        Args:
            needed_bytes: what the last attempt asked the disk for; 0 if that is not known.
            attempt_s: how long the last attempt took.
        """
        before = await self._free_bytes()
        began_at = trio.current_time()
        pause_s, self._pause_s = max(self._pause_s, attempt_s), min(2 * self._pause_s, _PAUSE_MAX_S)
        while (left_s := began_at + pause_s - trio.current_time()) > 0:
            with trio.move_on_after(min(_LOOK_S, left_s)):
                await self._stop_wanted.wait()
                return
            if trio.current_time() - began_at < attempt_s:
                continue
            free = await self._free_bytes()
            if any(
                now >= max(needed_bytes, then + _GROWTH_BYTES) for now, then in zip(free, before, strict=True)
            ):
                return

    async def _free_bytes(self) -> list[int]:
        return await trio.to_thread.run_sync(_free_bytes_of, self._directories)


def _free_bytes_of(directories: Sequence[Path]) -> list[int]:
    found = []
    for directory in directories:
        try:
            found.append(free_and_used(directory)[0])
        except OSError:  # not made yet, or not to be reached
            found.append(0)
    return found
