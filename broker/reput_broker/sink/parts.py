"""Compose the parts of a broker that serve sinks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from reput_broker.config.sections import SinkConfig
from reput_broker.observe.counters import Counters
from reput_broker.processors.topic_access import TopicAccess
from reput_broker.put.appender import Appender
from reput_broker.put.flush_service import FlushCommitLogService
from reput_broker.request import Handler
from reput_broker.sink.committer import Committer
from reput_broker.sink.decision import last_file_start
from reput_broker.sink.publisher import Publisher
from reput_broker.sink.requests import SinkProcessor
from reput_broker.sink.tables import SinkTables
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.table_saver import SaveSoon
from reput_broker.tables.tables import Tables

log = structlog.get_logger(__name__)


class SinkParts:
    """The part of a broker that serves sinks."""

    def __init__(
        self,
        config: SinkConfig,
        store: MessageStore,
        disk: SinkTables,
        tables: Tables,
        access: TopicAccess,
        appender: Appender,
        flush: FlushCommitLogService,
        counters: Counters,
    ) -> None:
        self._store = store
        self._batches = disk.batches
        self._saver = disk.saver
        self._save_soon = SaveSoon(self._saver, "sinkBatches")
        self._committer = Committer(
            store,
            appender,
            flush,
            Publisher(store, appender, flush, tables.topics, disk.clock_ms),
            disk,
            tables,
            access.may_write,
        )
        self._processor = SinkProcessor(
            store,
            access,
            counters,
            disk.staging,
            disk.batches,
            self._committer,
            config,
            self._save_soon.changed,
        )

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return self._processor.handlers()

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
        """Complete a decided batch; see `Committer.recover`."""
        await self._committer.recover()
        self._save_soon.changed()

    async def before_delete(self) -> None:
        """Save the table of batches and the progress of a decided batch before log files are deleted.

        So no deleted marker is missing in the table, and no start misses a published message.

        Raises:
            OSError, ReputError: something cannot be saved, and a file before the last one may hold
                what is missing.
        """
        await self._committer.decision.save_progress()
        try:
            await self._saver.save()
        except OSError as error:
            unsaved_from = self._batches.unsaved_from
            if unsaved_from is not None and unsaved_from < last_file_start(self._store):
                raise
            log.warning("table_not_saved", table="sinkBatches", detail=str(error), hint="free disk space")
