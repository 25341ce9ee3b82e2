"""Saving tables without stopping the event loop: a worker thread writes the file.

A table returns a `SaveJob` with a copy of its content. Callers share a write, unless the table has changed since.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
import trio

from reput_broker.tables.config_file import SavedTable
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

_RETRY_INTERVAL_S = 1.0


def save_now(table: SavedTable) -> None:
    """Save a table in the calling thread. Blocks. Raises the errors of the job; the table is then still unsaved."""
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


@dataclass(eq=False, repr=False)
class TableSaver:
    """Saves one table, one write at a time.

    Args:
        table: saved.
        on_result: called after each write, with the error if it failed.
    """

    _table: SavedTable
    _on_result: Callable[[Exception | None], None] = lambda _: None
    lock: trio.Lock = field(default_factory=trio.Lock, init=False)
    """Held while the file is replaced."""

    async def save(self) -> None:
        """Return once every change made before this call is on disk.

        Raises:
            OSError, ReputError: the write failed; the old file stays valid and the table is still unsaved.
        """
        async with self.lock:
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


@dataclass(eq=False, repr=False)
class SaveSoon:
    """Saves a table in the background, after changes that no request waits for because they would be made again.

    Args:
        table: its name in the log.
    """

    _saver: TableSaver
    _table: str
    _wanted: trio.Event = field(default_factory=trio.Event, init=False)

    def changed(self) -> None:
        """Note that there is something to save."""
        self._wanted.set()

    async def run(self) -> None:
        """Save until cancelled. Failed saves are retried."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            try:
                await self._saver.save()
            except (ReputError, OSError) as error:
                log.warning(
                    "table_not_saved", table=self._table, detail=str(error), hint="check the disk; the save is retried"
                )
                self._wanted.set()
                await trio.sleep(_RETRY_INTERVAL_S)
