"""Delayed delivery of one broker: its services, its request processor and its figures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from reput_broker.delay.canceller import Canceller
from reput_broker.delay.delay_redirects import DelayRedirects
from reput_broker.delay.deliverer import Deliverer
from reput_broker.delay.level_counts import LevelCounts
from reput_broker.delay.processor import DelayProcessor
from reput_broker.delay.record_reader import RecordReader
from reput_broker.delay.service import DelayService
from reput_broker.delay.state import DelayState
from reput_broker.delay.timer_feed import TimerFeed
from reput_broker.delay.waiting_messages import WaitingMessages
from reput_broker.observe.metrics import DelaySources
from reput_broker.request import Handler
from reput_broker.tenure.core import Core


class DelayFeature:
    """Delayed delivery, over an open storage."""

    def __init__(self, core: Core, state: DelayState) -> None:
        config, store, puts, clock_ms = core.config, core.store, core.puts, core.clock_ms
        self.delay_redirects = DelayRedirects(config.delay, clock_ms)
        self._state = state
        self._clock_ms = clock_ms
        reader = RecordReader(store, core.warm_from)
        counts = LevelCounts(state, store, reader)
        state.on_lost = counts.recount
        self._deliverer = Deliverer(
            state, counts, store, puts.own, reader, core.tables.topics, clock_ms=clock_ms
        )
        self._feed = TimerFeed(state, store, reader)
        self._service = DelayService(
            state,
            store,
            self._deliverer,
            self._feed,
            counts,
            core.arrivals,
            clock_ms=clock_ms,
            flush_interval_s=lambda: config.delay.flush_interval,
        )
        waiting = WaitingMessages(state, store, reader, clock_ms)
        canceller = Canceller(state, counts, store, puts.own, waiting, clock_ms=clock_ms)
        core.sources.delays = DelaySources(state.stats, self.due_s, state.timers_behind)
        self.processor = DelayProcessor(
            core,
            state,
            waiting,
            canceller,
            core.sources.delays,
        )

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return self.processor.handlers()

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the background tasks."""
        return self._service.tasks()

    def due_s(self) -> float:
        """Return how late the most overdue message is, in seconds; 0 if none is."""
        next_ms = self._deliverer.next_ms
        return 0.0 if next_ms is None else max(0, self._clock_ms() - next_ms) / 1000

    def status(self) -> dict[str, Any]:
        """Return what /status shows."""
        stats = self._state.stats
        return {
            "waiting": sum(stats.waiting.values()) + self._feed.behind,
            "delivered": stats.error_seconds.count,
            "cancelled": sum(stats.cancelled.values()),
            "dropped": sum(stats.dropped.values()),
            "due_s": self.due_s(),
        }
