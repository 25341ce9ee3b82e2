"""Puts the parts of delayed delivery together: what the broker opens, runs, shows and closes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from reput_broker.config.model import BrokerConfig
from reput_broker.delay.canceller import Canceller
from reput_broker.delay.delay_hook import DelayHook
from reput_broker.delay.deliverer import Deliverer
from reput_broker.delay.level_counts import LevelCounts
from reput_broker.delay.record_reader import RecordReader
from reput_broker.delay.schedule import Schedule
from reput_broker.delay.service import DelayedArrivals, DelayService
from reput_broker.delay.timer_feed import TimerFeed
from reput_broker.delay.timer_wheel import SLOTS
from reput_broker.delay.waiting_messages import WaitingMessages
from reput_broker.observe.delivery_metrics import DelaySources
from reput_broker.processors.delay import DelayProcessor
from reput_broker.put.flush_service import FlushCommitLogService
from reput_broker.put.own_puts import OwnPuts
from reput_broker.put.put_lock import PutLock
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.config_file import encode
from reput_broker.tables.topics import TopicConfigManager

_ROLL_WINDOW_S = 2 * 86_400
"""(RocketMQ: timerRollWindowSlot.)"""
_ROLL_WINDOW_MIN_S = 60


class DelayParts:
    """Delayed delivery of one broker.

    Made before the store is opened, which feeds `arrivals`; `open` blocks, after the store has been opened.
    """

    def __init__(
        self, config: BrokerConfig, clock_ms: Callable[[], int], *, wheel_slots: int = SLOTS
    ) -> None:
        self.arrivals = DelayedArrivals()
        self.delay_hook = DelayHook(config.delay, clock_ms)
        self._config = config
        self._clock_ms = clock_ms
        self._wheel_slots = wheel_slots
        self._schedule: Schedule | None = None
        self._deliverer: Deliverer | None = None
        self._feed: TimerFeed | None = None

    def sources(self) -> DelaySources | None:
        """Return what the metrics show; None before `open`."""
        return None if self._schedule is None else DelaySources(self._schedule.stats, self.due_s)

    def open(self, store: MessageStore, topics: Iterable[str]) -> None:
        """Find out where an earlier run left off. Blocks. Raises what `Schedule.open` does."""
        config = self._config
        schedule = Schedule(
            store.options.data_dir,
            store,
            timer_log_file_size=config.delay.timer_log_file_size,
            roll_window_ms=self._roll_window_ms,
            clock_ms=self._clock_ms,
            wheel_slots=self._wheel_slots,
        )
        schedule.open(topics)
        self._schedule = schedule

    def _roll_window_ms(self) -> int:
        """How far ahead a message may wait in one place: well within the time that its record is kept."""
        reserved_s = int(self._config.store.file_reserved_time) // 2
        return 1000 * max(_ROLL_WINDOW_MIN_S, min(_ROLL_WINDOW_S, reserved_s))

    def compose(
        self,
        store: MessageStore,
        lock: PutLock,
        topics: TopicConfigManager,
        flush: FlushCommitLogService,
        *,
        wrote: Callable[[], None],
        warm_from: int,
    ) -> DelayProcessor:
        """Put the parts together and return the processor of the requests about them."""
        schedule, clock_ms = self._schedule, self._clock_ms
        assert schedule is not None, "it is opened first"
        reader = RecordReader(store, warm_from)
        counts = LevelCounts(schedule, store, reader)
        schedule.on_lost = counts.recount
        puts = OwnPuts(store, lock, wrote)
        deliverer = Deliverer(schedule, counts, store, puts, reader, topics, clock_ms=clock_ms)
        feed = TimerFeed(schedule, store, reader)
        self._feed = feed
        self._service = DelayService(
            schedule,
            store,
            deliverer,
            feed,
            counts,
            self.arrivals,
            clock_ms=clock_ms,
            flush_interval_s=lambda: self._config.delay.flush_interval,
        )
        self._deliverer = deliverer
        waiting = WaitingMessages(schedule, store, reader, clock_ms)
        cancelling = Canceller(schedule, counts, store, puts, waiting, clock_ms=clock_ms)
        return DelayProcessor(
            waiting, cancelling, flush, store.options.host, lambda: encode(schedule.offset_members())
        )

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks to be run."""
        return self._service.tasks()

    def close(self) -> None:
        """Save how far everything has come, and close the files. Blocks. Raises what `Schedule.finish` does."""
        schedule, self._schedule = self._schedule, None
        if schedule is not None:
            schedule.finish()

    def waiting_from(self) -> int:
        """Return a log offset before which no message waits. Blocks; in whatever thread."""
        return 0 if self._schedule is None else self._schedule.waiting_from()

    def due_s(self) -> float:
        """Return how late the most overdue message is, in seconds; 0 if none is."""
        if self._schedule is None or self._deliverer is None:
            return 0.0
        next_ms = self._deliverer.next_ms
        return 0.0 if next_ms is None else max(0, self._clock_ms() - next_ms) / 1000

    def status(self) -> dict[str, Any]:
        """Return what /status shows."""
        if self._schedule is None:
            return {}
        stats = self._schedule.stats
        return {
            "waiting": sum(stats.waiting.values()) + (0 if self._feed is None else self._feed.behind),
            "delivered": stats.error_seconds.count,
            "cancelled": sum(stats.cancelled.values()),
            "dropped": sum(stats.dropped.values()),
            "due_s": self.due_s(),
        }

    def figures(self) -> dict[str, object]:
        """Return what RocketMQ's tools ask for (28): how far levels and timer have come."""
        return {} if self._schedule is None else self._schedule.figures()
