"""Save tables from the event loop without stopping it: the file work runs in a worker thread.

A table hands out a `SaveJob` that holds a copy of what is to be written. Several callers share one write:
whoever finds that nothing has changed since the last job has nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog
import trio

from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

_RETRY_INTERVAL_S = 1.0


class SaveJob(Protocol):
    """One write of a table's file, in three steps."""

    def write(self) -> None:
        """Write the new file beside the old one. Blocks: for a worker thread. Raises OSError."""

    def adopt(self) -> None:
        """Let the new file take the old one's place. Quick: for the table's owner. Raises OSError."""

    def sync(self) -> None:
        """Make the new name durable. Blocks: for a worker thread. Raises OSError."""

    def abandon(self) -> None:
        """Give up after an error: the table is still unsaved. After one in `write` or `adopt` the old file counts."""


class SavedTable(Protocol):
    """A table that lives in a file."""

    def begin_save(self) -> SaveJob | None:
        """Return a job for what the table holds now, or None if the file has it already."""


def save_now(table: SavedTable) -> None:
    """Save a table in the calling thread. Blocks. Raises what the job raises; the table is still unsaved then."""
    job = table.begin_save()
    if job is None:
        return
    try:
        job.write()
        job.adopt()
        job.sync()
    except BaseException:
        job.abandon()
        raise


class TableSaver:
    """Saves one table, one write at a time.

    Args:
        table: saved.
        on_result: called after each write, with the error if it failed.
    """

    def __init__(
        self, table: SavedTable, on_result: Callable[[Exception | None], None] = lambda _: None
    ) -> None:
        self._table = table
        self._on_result = on_result
        self._lock = trio.Lock()

    async def save(self) -> None:
        """Return once everything that was changed before this call is in the file, durably.

        Raises:
            OSError, ReputError: it could not be written; the old file counts and the table is still unsaved.
        """
        async with self._lock:
            job = self._table.begin_save()
            if job is None:
                return
            try:
                await trio.to_thread.run_sync(job.write)
                job.adopt()
                await trio.to_thread.run_sync(job.sync)
            except BaseException as error:
                job.abandon()
                if isinstance(error, Exception):
                    self._on_result(error)
                raise
            self._on_result(None)


class SaveSoon:
    """Saves a table after changes that nobody waits for: what came into being by itself would do so again."""

    def __init__(self, saver: TableSaver, table: str) -> None:
        """Keep the saver; `table` is what the log calls it."""
        self._saver = saver
        self._table = table
        self._wanted = trio.Event()

    def changed(self) -> None:
        """Note that there is something to save."""
        self._wanted.set()

    async def run(self) -> None:
        """Save until cancelled. What fails is tried again."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            try:
                await self._saver.save()
            except (ReputError, OSError) as error:
                log.warning(
                    "table_not_saved",
                    table=self._table,
                    detail=str(error),
                    hint="check the disk; it is tried again",
                )
                self._wanted.set()
                await trio.sleep(_RETRY_INTERVAL_S)
