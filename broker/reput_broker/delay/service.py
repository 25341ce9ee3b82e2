"""Background tasks of delayed messages: deliver, feed the wheel, load its slots, count, save, clean (RocketMQ: the
services of ScheduleMessageService and TimerMessageStore).

Each does a bounded step and then yields to the event loop. Without work it sleeps until the next message is due or one
arrives; a changed wall clock is noticed within a second.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import structlog
import trio

from reput_broker.delay.deliverer import Deliverer, Stuck
from reput_broker.delay.level_counts import LevelCounts
from reput_broker.delay.state import DelayState
from reput_broker.delay.timer_feed import LOADED_MAX, TimerFeed
from reput_broker.pull import Arrivals
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ReputError
from reput_protocol.names import SCHEDULE_TOPIC, TIMER_TOPIC

log = structlog.get_logger(__name__)

_POLL_S = 1.0
_WAIT_MIN_S = 0.001
_STUCK_S = 0.1
_RETRY_S = 1.0
_FLUSHED_POLL_S = 0.05
_CLEAN_S = 30.0
_COUNT_PAUSE_S = 0.001


class DelayService:
    """Runs these tasks. Checks every `flush_interval_s` whether progress must be saved."""

    def __init__(
        self,
        state: DelayState,
        store: MessageStore,
        deliverer: Deliverer,
        feed: TimerFeed,
        counts: LevelCounts,
        arrivals: Arrivals,
        *,
        clock_ms: Callable[[], int],
        flush_interval_s: Callable[[], float],
    ) -> None:
        self._state = state
        self._store = store
        self._deliverer = deliverer
        self._feed = feed
        self._counts = counts
        self._clock_ms = clock_ms
        self._flush_interval_s = flush_interval_s
        self._due = trio.Event()
        self._next_ms: float = math.inf
        """When the message is due that deliveries wait for."""
        self._arrived = trio.Event()
        self._activated = trio.Event()
        self._uncounted = trio.Event()
        self._caught_up = trio.Event()
        arrivals.watch(TIMER_TOPIC, self._on_timer)
        arrivals.watch(SCHEDULE_TOPIC, self._on_level)

    def _on_timer(self) -> None:
        self._arrived.set()

    def _on_level(self) -> None:
        self._due.set()
        self._uncounted.set()

    def _wake_if_earlier(self) -> None:
        """Deliver earlier than planned if the wheel has a message that is due before."""
        next_ms = self._state.timers.active.next_ms
        if next_ms is not None and next_ms < self._next_ms:
            self._due.set()

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks, which run concurrently until cancelled."""
        return self.deliver, self.feed_wheel, self.load_slots, self.count_levels, self.save, self.clean

    async def deliver(self) -> None:
        """Deliver due messages, and retry while the store refuses them."""
        while True:
            self._due = trio.Event()
            try:
                done = await self._deliverer.step(with_timers=self._caught_up.is_set())
            except Stuck:
                await trio.sleep(_STUCK_S)
                continue
            except (ReputError, OSError) as error:
                log.error("delayed_delivery_failed", detail=str(error), hint="the broker retries")
                await trio.sleep(_RETRY_S)
                continue
            if done:
                await trio.lowlevel.checkpoint()
                continue
            next_ms = self._deliverer.next_ms if self._caught_up.is_set() else None
            self._next_ms = math.inf if next_ms is None else next_ms
            wait_s = min(_POLL_S, max(_WAIT_MIN_S, (self._next_ms - self._clock_ms()) / 1000))
            with trio.move_on_after(wait_s):
                await self._due.wait()

    async def feed_wheel(self) -> None:
        """Put the messages of the timer's queue into the wheel."""
        logged = self._state.timers.wheel_refusal or ""
        while True:
            self._arrived = trio.Event()
            if not self._feed.is_behind:
                if not self._caught_up.is_set():
                    self._caught_up.set()
                    self._due.set()
                await self._arrived.wait()
                continue
            try:
                taken = await self._feed.take_from_queue(self._clock_ms())
            except (ReputError, OSError, MemoryError) as error:
                if str(error) != logged:
                    logged = str(error)
                    log.warning(
                        "timer_files_not_made",
                        detail=logged,
                        hint="free disk space or memory; the broker retries, and messages with a deliver time wait "
                        "until it succeeds",
                    )
                await trio.sleep(_RETRY_S)
                continue
            logged = ""
            self._wake_if_earlier()
            if self._state.timers.chains:
                self._activated.set()
            if taken:
                await trio.lowlevel.checkpoint()
            else:
                await trio.sleep(_STUCK_S)

    async def load_slots(self) -> None:
        """Load the slots of the wheel that are due soon."""
        await self._caught_up.wait()
        timers = self._state.timers
        while True:
            self._activated = trio.Event()
            self._feed.finish_slots(self._clock_ms())
            before = timers.active_until
            timers.activate_slots(self._clock_ms())
            while timers.chains:
                while len(timers.active) > LOADED_MAX:  # noqa: ASYNC110 - an event would cost every delivery
                    await trio.sleep(_STUCK_S)
                await self._feed.load(timers.chains.popleft())
                self._wake_if_earlier()
            if timers.active_until - before > 1000 * _POLL_S:
                await trio.lowlevel.checkpoint()  # more slots may be due
                continue
            with trio.move_on_after(_POLL_S):
                await self._activated.wait()

    async def count_levels(self) -> None:
        """Count the messages that wait in the levels' queues."""
        while True:
            self._uncounted = trio.Event()
            try:
                counted = await self._counts.step()
            except (ReputError, OSError) as error:
                log.warning("delayed_messages_not_counted", detail=str(error), hint="the broker retries")
                counted = 0
            if counted:
                await trio.sleep(_COUNT_PAUSE_S)
            else:
                await self._uncounted.wait()

    async def save(self) -> None:
        """Save the progress at each interval in which it has changed."""
        while True:
            await trio.sleep(self._flush_interval_s())
            self._feed.finish_slots(self._clock_ms())
            self._state.note_queues()
            progress = self._state.progress()
            if progress is None:
                continue
            while self._store.flushed_offset < progress.log_end:  # noqa: ASYNC110 - once a save
                await trio.sleep(_FLUSHED_POLL_S)
            try:
                await trio.to_thread.run_sync(self._state.save, progress)
            except (ReputError, OSError) as error:
                log.error(
                    "delay_progress_not_saved",
                    detail=str(error),
                    hint="free disk space; the next start reads more of the log",
                )
                await trio.sleep(_RETRY_S)

    async def clean(self) -> None:
        """Delete files of the timer log that no slot needs any more."""
        timers = self._state.timers
        while True:
            await trio.sleep(_CLEAN_S)
            try:
                await trio.to_thread.run_sync(timers.log.drop_first_before, timers.read_ms)
            except (ReputError, OSError) as error:
                log.warning("timer_log_not_cleaned", detail=str(error), hint="the broker retries")
