"""What serving sinks takes, put together: tables that a start reads, and parts that work on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog
import trio

from reput_broker.config.sections import SinkConfig
from reput_broker.flush_service import FlushCommitLogService
from reput_broker.observe.counters import Counters
from reput_broker.processors.appender import Appender
from reput_broker.processors.topic_access import TopicAccess
from reput_broker.request import Handler
from reput_broker.sink.batches import CommittedBatches
from reput_broker.sink.committer import Committer
from reput_broker.sink.decision import last_file_start
from reput_broker.sink.intent import IntentFile
from reput_broker.sink.publisher import Publisher
from reput_broker.sink.requests import SinkProcessor
from reput_broker.sink.staging import Staging
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.table_saver import SaveSoon, TableSaver, save_now
from reput_broker.tables.topics import TopicConfigManager

log = structlog.get_logger(__name__)


class SinkTables:
    """What is on the disk about sinks: stagings, the intent, the last batch of each query."""

    def __init__(self, data_dir: Path, clock_ms: Callable[[], int]) -> None:
        directory = data_dir / "staging"
        self.staging = Staging(directory, trio.current_time)
        self.intents = IntentFile(directory)
        self.batches = CommittedBatches(data_dir / "config" / "sinkBatches.json", clock_ms)
        self._clock_s = trio.current_time()

    def load(self) -> None:
        """Read all of it. Blocks.

        Raises:
            ConfigFileDamaged: the table of batches cannot be used.
            StoreDamaged: the intent cannot be used.
            OSError: something cannot be read.
        """
        self.batches.load()
        intent = self.intents.read()
        self.staging.load(self._clock_s, () if intent is None else intent.staging_ids)

    def persist(self) -> None:
        """Write the table of batches if it has changed. Blocks. Raises OSError; the markers hold it all the same."""
        save_now(self.batches)


class SinkParts:
    """The part of a broker that serves sinks."""

    def __init__(
        self,
        config: SinkConfig,
        tables: SinkTables,
        store: MessageStore,
        access: TopicAccess,
        appender: Appender,
        flush: FlushCommitLogService,
        topics: TopicConfigManager,
        topics_saver: TableSaver,
        batches_saver: TableSaver,
        counters: Counters,
        *,
        clock_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._batches = tables.batches
        self._saver = batches_saver
        self._save_soon = SaveSoon(self._saver, "sinkBatches")
        self._committer = Committer(
            store,
            appender,
            flush,
            Publisher(store, appender, flush, topics, clock_ms),
            tables.staging,
            tables.batches,
            tables.intents,
            topics,
            topics_saver,
            access.may_write,
            clock_ms,
        )
        self._processor = SinkProcessor(
            store,
            access,
            counters,
            tables.staging,
            tables.batches,
            self._committer,
            config,
            self._save_soon.changed,
        )

    def handlers(self) -> dict[int, Handler]:
        """Return the processors by request code."""
        return self._processor.handlers()

    def services(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return what runs beside the requests."""
        processor = self._processor
        return (
            processor.run,
            processor.keep_up,
            processor.sync_ahead,
            self._committer.run,
            self._save_soon.run,
        )

    async def recover(self) -> None:
        """Complete what was being published; see `Committer.recover`."""
        await self._committer.recover()
        self._save_soon.changed()

    async def before_delete(self) -> None:
        """Bring the table of batches, and how far a decided batch is published, to the disk.

        So no marker is deleted that the table lacks, and no message that a start would miss.

        Raises:
            OSError, ReputError: something cannot be written, and a file before the last one may hold what it lacks.
        """
        await self._committer.save_progress()
        try:
            await self._saver.save()
        except OSError as error:
            unsaved_from = self._batches.unsaved_from
            if unsaved_from is not None and unsaved_from < last_file_start(self._store):
                raise
            log.warning("table_not_saved", table="sinkBatches", detail=str(error), hint="free disk space")
