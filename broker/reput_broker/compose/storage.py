"""What a start opens in the data directory, and the end closes: the store, the tables, delays and transactions."""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from reput_broker.compose.delay import DelayParts
from reput_broker.compose.retry import RetryParts
from reput_broker.config.model import BrokerConfig
from reput_broker.long_polling import PullRequestHoldService
from reput_broker.observe.counters import Counters
from reput_broker.observe.metrics import MetricsSources
from reput_broker.sink.tables import SinkTables
from reput_broker.store.message_store import MessageStore
from reput_broker.store.options import StoreOptions
from reput_broker.store.results import RecoveryReport
from reput_broker.tables.tables import Tables
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)


class Storage:
    """Everything of one broker that lives in its data directory. Constructing it reads nothing.

    `tables` and `sink` are there once `open` has locked the directory.

    Args:
        options: of the store.
        on_saved: called with a table's name after each save, and with the error if it failed.
    """

    def __init__(
        self,
        config: BrokerConfig,
        options: StoreOptions,
        counters: Counters,
        clock_ms: Callable[[], int],
        on_saved: Callable[[str, Exception | None], None],
    ) -> None:
        self.clock_ms = clock_ms
        self.hold = PullRequestHoldService(config.long_polling)
        self.delay = DelayParts(config, clock_ms)
        self.store = MessageStore(
            options, clock_ms=clock_ms, listener=self.hold, dispatchers=[self.delay.arrivals]
        )
        self.retry = RetryParts(config, counters.retry, self.delay.delay_hook, clock_ms)
        self.warm_from = 0
        """Log offset from which on the recovery has read the log, so that it is in the page cache."""
        self._config = config
        self._on_saved = on_saved
        self._has_tables = False
        self._is_sink_loaded = False

    async def open(self) -> RecoveryReport:
        """Lock and recover the directory and read the tables, in a worker thread.

        Raises:
            StoreError, ConfigFileDamaged, OSError: something cannot be used. `close` is due all the same.
        """
        report = await trio.to_thread.run_sync(self.store.open)
        self.warm_from = report.checked_from
        # From here on the directory is named by the handle that the store holds: another directory at its path is not
        # touched.
        data_dir = self.store.options.data_dir
        self.tables = Tables(data_dir / "config", self._config, self.clock_ms, self._on_saved)
        self.sink = SinkTables(data_dir, self.clock_ms, self._on_saved)
        self._has_tables = True
        await trio.to_thread.run_sync(self._load, trio.current_time())
        return report

    def _load(self, now_s: float) -> None:
        self.tables.load()
        self.sink.load(now_s)
        self._is_sink_loaded = True
        self.tables.adopt_queues(self.store.queues())
        self.delay.open(self.store, self.tables.topics.all())
        self.retry.open(self.store, self.tables.offsets)

    def show(self, sources: MetricsSources, report: RecoveryReport) -> None:
        """Let the metrics read from the opened store and tables."""
        sources.held_pulls_bytes = lambda: self.hold.held_bytes
        sources.open_transactions = lambda: self.retry.transactions.open_by_topic
        sources.delays = self.delay.sources()
        sources.store = self.store
        sources.topics, sources.offsets = self.tables.topics, self.tables.offsets
        sources.recovery_duration_s = report.duration_s
        sources.recovery_truncated_bytes = report.truncated_bytes

    async def close(self) -> bool | None:
        """Save and close what was opened, in a worker thread. What fails is logged, and the rest is done.

        Returns whether everything is flushed; None if the store was not open.
        """
        return await trio.to_thread.run_sync(self._close)

    def _close(self) -> bool | None:
        if self._has_tables:
            self.tables.close()
        if self._is_sink_loaded:
            try:
                self.sink.persist()
            except (OSError, ReputError) as error:
                log.error(
                    "table_not_saved", table="sinkBatches", detail=str(error), hint="check the data directory"
                )
        try:
            self.delay.close()
        except (OSError, ReputError) as error:
            log.error(
                "delay_progress_not_saved", detail=str(error), hint="the next start reads more of the log"
            )
        if not self.store.is_open:
            return None
        try:
            return self.store.close()
        except (OSError, ReputError) as error:
            log.error(
                "store_not_closed_in_order", detail=str(error), hint="the next start recovers the store"
            )
            return False
