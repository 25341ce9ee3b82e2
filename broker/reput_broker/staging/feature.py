"""Build what stages and publishes batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from reput_broker.request import Handler, Request, Response
from reput_broker.staging.committer import Committer
from reput_broker.staging.processor import StagingProcessor
from reput_broker.staging.staging_table import StagingState
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.config_file import DataVersion, encode
from reput_broker.tables.table_saver import SaveSoon
from reput_broker.tenure.core import Core
from reput_protocol.codes import RequestCode

log = structlog.get_logger(__name__)


class StagingFeature:
    """Staging and its tasks, over an open storage."""

    def __init__(self, core: Core, state: StagingState) -> None:
        self._store = core.store
        self._batches = state.batches
        self._saver = state.saver
        self._save_soon = SaveSoon(self._saver, "sinkBatches")
        self._committer = Committer(core, state)
        self._processor = StagingProcessor(core, state, self._committer, self._save_soon.changed)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {**self._processor.handlers(), RequestCode.GET_SINK_BATCHES: self._all_batches}

    def _all_batches(self, _request: Request) -> Response:
        """Answer with the members of `config/sinkBatches.json`, as of now."""
        return Response(0, body=encode(self._batches.members()))

    def batches_version(self) -> DataVersion:
        """Return how often the table of batches changed."""
        return self._batches.version

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the background tasks."""
        processor = self._processor
        return (
            processor.run,
            processor.expire_idle,
            processor.ahead.run,
            self._committer.run,
            self._save_soon.run,
        )

    async def recover(self) -> None:
        """Read which batches are committed; see `Committer.recover`."""
        await self._committer.recover()
        self._save_soon.changed()

    @property
    def begun(self) -> str | None:
        """The decided batch that has to be completed first, in words; None without one."""
        return self._committer.begun

    async def complete_begun(self) -> None:
        """Complete that batch; see `Committer.complete_begun`."""
        await self._committer.complete_begun()
        self._save_soon.changed()

    def needed_from(self) -> int | None:
        """Return the log offset from which on the log is needed to complete a decided batch; None without one."""
        return self._committer.decision.begins_at

    async def before_delete(self) -> None:
        """Save the table of batches before log files are deleted, so that no deleted marker is missing in it.

        Raises:
            OSError, ReputError: something cannot be saved, and a file before the last one may hold
                what is missing.
        """
        try:
            await self._saver.save()
        except OSError as error:
            unsaved_from = self._batches.unsaved_from
            if unsaved_from is not None and unsaved_from < last_file_start(self._store):
                raise
            log.warning("table_not_saved", table="sinkBatches", detail=str(error), hint="free disk space")


def last_file_start(store: MessageStore) -> int:
    """Return where the last file of the log begins, which is never deleted."""
    end = store.max_physical_offset
    return end - end % store.options.commit_log_file_size
