"""Delayed delivery of one broker: its services, its request processor and its figures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from reput_broker.compose.storage import Storage
from reput_broker.config.model import BrokerConfig
from reput_broker.delay.canceller import Canceller
from reput_broker.delay.delay_hook import DelayHook
from reput_broker.delay.deliverer import Deliverer
from reput_broker.delay.level_counts import LevelCounts
from reput_broker.delay.record_reader import RecordReader
from reput_broker.delay.service import DelayService
from reput_broker.delay.timer_feed import TimerFeed
from reput_broker.delay.waiting_messages import WaitingMessages
from reput_broker.observe.delivery_metrics import DelaySources
from reput_broker.processors.delay import DelayProcessor
from reput_broker.put.own_puts import OwnPuts
from reput_broker.put.put_path import PutPath
from reput_broker.request import Handler
from reput_broker.tables.config_file import encode


class DelayParts:
    """Delayed delivery, over an open storage."""

    def __init__(self, config: BrokerConfig, storage: Storage, puts: PutPath) -> None:
        schedule, store, clock_ms = storage.schedule, storage.store, storage.clock_ms
        self.delay_hook = DelayHook(config.delay, clock_ms)
        self._schedule = schedule
        self._clock_ms = clock_ms
        reader = RecordReader(store, storage.warm_from)
        counts = LevelCounts(schedule, store, reader)
        schedule.on_lost = counts.recount
        own_puts = OwnPuts(store, puts.lock, puts.fence, puts.wrote)
        self._deliverer = Deliverer(
            schedule, counts, store, own_puts, reader, storage.tables.topics, clock_ms=clock_ms
        )
        self._feed = TimerFeed(schedule, store, reader)
        self._service = DelayService(
            schedule,
            store,
            self._deliverer,
            self._feed,
            counts,
            storage.arrivals,
            clock_ms=clock_ms,
            flush_interval_s=lambda: config.delay.flush_interval,
        )
        waiting = WaitingMessages(schedule, store, reader, clock_ms)
        canceller = Canceller(schedule, counts, store, own_puts, waiting, clock_ms=clock_ms)
        self.processor = DelayProcessor(
            waiting,
            canceller,
            puts.flush,
            store.options.host,
            config.broker_name,
            lambda topic: storage.tables.topics.get(topic) is not None,
            lambda: encode(schedule.offset_members()),
        )

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return self.processor.handlers()

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the background tasks."""
        return self._service.tasks()

    def sources(self) -> DelaySources:
        """Return what the metrics show."""
        return DelaySources(self._schedule.stats, self.due_s, self._schedule.timers_behind)

    def due_s(self) -> float:
        """Return how late the most overdue message is, in seconds; 0 if none is."""
        next_ms = self._deliverer.next_ms
        return 0.0 if next_ms is None else max(0, self._clock_ms() - next_ms) / 1000

    def status(self) -> dict[str, Any]:
        """Return what /status shows."""
        stats = self._schedule.stats
        return {
            "waiting": sum(stats.waiting.values()) + self._feed.behind,
            "delivered": stats.error_seconds.count,
            "cancelled": sum(stats.cancelled.values()),
            "dropped": sum(stats.dropped.values()),
            "due_s": self.due_s(),
        }
