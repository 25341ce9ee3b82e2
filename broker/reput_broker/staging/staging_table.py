"""The stagings of a broker: the directory `staging/` and its files.

The table belongs to the event loop; methods that access files say that they block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Final

import trio

from reput_broker.staging.batches import CommittedBatches
from reput_broker.staging.staging_file import SUFFIX, StagingFile, StagingKey
from reput_broker.store.base.file_io import make_directories
from reput_broker.tables.table_saver import TableSaver

AHEAD_BYTES: Final = 8 << 20
"""How much of a staging may be unsynced: less means many syncs, more a longer wait at its end."""


class SyncAhead:
    """Syncs growing stagings in the background, one at a time. Belongs to the event loop."""

    def __init__(self) -> None:
        self._due: list[StagingFile] = []
        self._wanted = trio.Event()

    def grown(self, file: StagingFile) -> None:
        """Record that something was added to a staging."""
        if file.unsynced >= AHEAD_BYTES and file not in self._due:
            self._due.append(file)
            self._wanted.set()

    async def run(self) -> None:
        """Sync stagings until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._due:
                await trio.to_thread.run_sync(self._due[0].sync_ahead)
                del self._due[0]


STAGING_ID: Final = re.compile(r"[0-9A-Za-z_-]{8,64}")
"""A valid id of a staging, which becomes a file name."""


class StagingTable:
    """All stagings.

    Args:
        directory: `staging/` below the store's root; made when first needed.
        clock_s: monotonic seconds.
    """

    def __init__(self, directory: Path, clock_s: Callable[[], float]) -> None:
        self.directory = directory
        self._clock_s = clock_s
        self._files: dict[str, StagingFile] = {}
        self.bytes = 0
        """Bytes of all staged blocks."""

    def __len__(self) -> int:
        return len(self._files)

    def load(self, now_s: float, decided: Collection[str] = ()) -> None:
        """Read the stagings of an earlier run; they count as used now. Blocks.

        Incomplete files are deleted or truncated. A staging in `decided`, by its id, was complete
        once: its file is left as it is, so that it can be repaired.

        Raises:
            OSError: it cannot be read.
        """
        if not self.directory.is_dir():
            return
        for path in sorted(self.directory.glob(f"*{SUFFIX}")):
            is_decided = path.stem in decided
            file = StagingFile.load(path, truncate=not is_decided)
            if file is None or file.key.staging_id != path.stem:
                if not is_decided:
                    path.unlink()
                continue
            file.last_used = now_s
            self._files[file.key.staging_id] = file
            self.bytes += file.size

    def get(self, staging_id: str) -> StagingFile | None:
        """Return a staging by its id, or None."""
        return self._files.get(staging_id)

    def all(self) -> list[StagingFile]:
        """Return every staging."""
        return list(self._files.values())

    def of(self, query_id: str) -> list[StagingFile]:
        """Return the stagings of a query."""
        return [file for file in self._files.values() if file.key.query_id == query_id]

    def create(self, key: StagingKey, born_host: bytes) -> StagingFile:
        """Make the file of a staging; `add` follows. Blocks. Raises OSError, DiskFull."""
        make_directories(self.directory)
        return StagingFile.create(self.directory, key, born_host)

    def add(self, file: StagingFile) -> None:
        """Add a staging."""
        self._files[file.key.staging_id] = file
        self.bytes += file.size
        self.touch(file.key.query_id)

    def grown(self, file: StagingFile, size: int) -> None:
        """Record that `size` bytes were added to a staging."""
        if file.key.staging_id in self._files:
            self.bytes += size
        self.touch(file.key.query_id)

    def touch(self, query_id: str) -> None:
        """Record activity of a query, which restarts the timeout of its stagings."""
        now = self._clock_s()
        for file in self._files.values():
            if file.key.query_id == query_id:
                file.last_used = now

    def forget(self, files: Iterable[StagingFile]) -> list[StagingFile]:
        """Remove stagings from the table; return those that were in it, whose files `remove` then
        deletes."""
        forgotten = []
        for file in files:
            if self._files.pop(file.key.staging_id, None) is not None:
                self.bytes -= file.size
                forgotten.append(file)
        return forgotten

    def idle(self, timeout_s: float) -> list[StagingFile]:
        """Return the stagings whose query has been idle for `timeout_s`."""
        since = self._clock_s() - timeout_s
        return [file for file in self._files.values() if file.last_used < since]


def remove(files: Iterable[StagingFile]) -> None:
    """Delete the files of forgotten stagings. Blocks. The next start finds leftovers, and they time out.

    Raises:
        OSError: one cannot be deleted.
    """
    for file in files:
        file.remove()


class StagingState:
    """The files, and the tables that hold their content. A master reads the stagings once it has the markers."""

    def __init__(
        self,
        data_dir: Path,
        clock_ms: Callable[[], int],
        on_saved: Callable[[str, Exception | None], None],
    ) -> None:
        directory = data_dir / "staging"
        self.staging = StagingTable(directory, trio.current_time)
        self.batches = CommittedBatches(data_dir / "config" / "sinkBatches.json", clock_ms)
        self.saver = TableSaver(self.batches, partial(on_saved, "sinkBatches"))
