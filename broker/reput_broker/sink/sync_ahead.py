"""Bringing to the disk what is staged while more of it comes, so that the end of a staging has little to wait for."""

from __future__ import annotations

from typing import Final

import trio

from reput_broker.sink.staging_file import StagingFile

AHEAD_BYTES: Final = 8 << 20
"""How much of a staging may wait for its sync: with less there would be many syncs, with more its end would wait."""


class SyncAhead:
    """Syncs stagings that have grown, one at a time, beside everything else. Belongs to the event loop."""

    def __init__(self) -> None:
        self._due: list[StagingFile] = []
        self._wanted = trio.Event()

    def grown(self, file: StagingFile) -> None:
        """Note that something was added to a staging."""
        if file.unsynced >= AHEAD_BYTES and file not in self._due:
            self._due.append(file)
            self._wanted.set()

    async def run(self) -> None:
        """Sync what has grown, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._due:
                await trio.to_thread.run_sync(self._due[0].sync_ahead)
                del self._due[0]
