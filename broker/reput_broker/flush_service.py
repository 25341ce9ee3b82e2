"""Sync the log, and answer the puts that wait for it (RocketMQ: GroupCommitService, FlushRealTimeService).

With `flush = "async"` the log is synced by the clock: every `flush_interval` if `flush_least_pages` have gathered or a
file is full, and every `flush_thorough_interval` whatever there is. A put that waits for its sync gets it at once, in
either mode.

One sync runs at a time, in a worker thread. Puts that arrive meanwhile wait for the next one together: that is group
commit, and nothing has to be timed for it. A failed sync is final: the store is read-only from then on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import NamedTuple

import structlog
import trio

from reput_broker.config import StoreConfig
from reput_broker.counters import Counters
from reput_broker.pending_puts import PendingPut, flush_clients
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)


class _Waiter(NamedTuple):
    end_offset: int
    deadline: float
    put: PendingPut


class FlushCommitLogService:
    """Decides when the log is synced and releases those who wait.

    Args:
        on_flushed: called after each sync that moved the flushed offset, before anybody is answered: what is
            acknowledged as flushed can then be read already.
        on_failure: called once, with the reason, when a sync has failed.
    """

    def __init__(
        self,
        store: MessageStore,
        config: StoreConfig,
        counters: Counters,
        *,
        on_flushed: Callable[[], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self._store = store
        self._config = config
        self._counters = counters
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._waiters: deque[_Waiter] = deque()
        self._wanted = trio.Event()
        self._waiting = trio.Event()
        self._limiter = trio.CapacityLimiter(1)
        self._failure: str | None = None
        self._sync_always = config.flush == "sync"
        self._thorough_at = -inf

    def wrote(self) -> None:
        """Note that something was appended that nobody waits for."""
        if self._sync_always:
            self._wanted.set()

    def answer_when_flushed(self, end_offset: int, put: PendingPut) -> None:
        """Answer `put` once the log is durable up to `end_offset`, or say that this was not reached in time."""
        if self._failure is not None:
            put.admit(self._failure)
            put.client.flush()
            return
        self._waiters.append(_Waiter(end_offset, put.received_at + self._config.sync_timeout, put))
        self._wanted.set()
        self._waiting.set()

    async def run(self) -> None:
        """Sync whenever it is wanted; with `flush = "async"` also by the clock."""
        self._thorough_at = trio.current_time()
        while self._failure is None:
            if self._sync_always:
                await self._wanted.wait()
            else:
                await self._wanted_or_due()
            self._wanted = trio.Event()
            await self.flush_now()

    async def flush_now(self) -> None:
        """Sync once and release whom that releases."""
        started_at = time.monotonic()
        before = self._store.flushed_offset
        try:
            flushed = await trio.to_thread.run_sync(self._store.flush_commit_log, limiter=self._limiter)
        except (ReputError, OSError) as error:
            self._counters.flush_errors["commitlog"] += 1
            self._fail(str(error))
            return
        if flushed > before:
            self._counters.flush_seconds["commitlog"].observe(time.monotonic() - started_at)
            self._on_flushed()
            self._release(flushed)
        elif self._waiters:
            self._release(flushed)

    async def expire(self) -> None:
        """Answer waiters whose time is up: stored, but not known to be on disk."""
        while True:
            await self._waiting.wait()
            await trio.sleep(min(0.25, self._config.sync_timeout / 4))
            now = time.monotonic()
            late = []
            while self._waiters and self._waiters[0].deadline <= now:
                late.append(self._waiters.popleft().put)
            _admit(late, f"the sync took longer than store.sync_timeout ({self._config.sync_timeout} s)")
            if not self._waiters:
                self._waiting = trio.Event()

    async def _wanted_or_due(self) -> None:
        """Return when somebody waits for a sync, or the clock and what has gathered say that it is time for one."""
        config, store = self._config, self._store
        while not self._wanted.is_set():
            with trio.move_on_after(config.flush_interval):
                await self._wanted.wait()
                return
            now = trio.current_time()
            if now >= self._thorough_at + config.flush_thorough_interval:
                self._thorough_at = now
                least_pages = 0
            else:
                least_pages = config.flush_least_pages
            if store.is_able_to_flush(least_pages):
                return

    def _release(self, flushed_offset: int) -> None:
        released: list[PendingPut] = []
        waiters = self._waiters
        messages = 0
        now = time.monotonic()
        produce_seconds = self._counters.produce_seconds["flushed"]
        while waiters and waiters[0].end_offset <= flushed_offset:
            put = waiters.popleft().put
            put.acknowledge()
            released.append(put)
            messages += put.messages
            produce_seconds.observe(now - put.received_at, put.requests)
        if released:
            self._counters.flush_batch_messages.observe(messages)
            flush_clients(released)

    def _fail(self, reason: str) -> None:
        self._failure = reason
        log.error(
            "flush_failed",
            detail=reason,
            hint="check the disk, then restart the broker; puts are refused until then",
        )
        waiters, self._waiters = self._waiters, deque()
        _admit([waiter.put for waiter in waiters], reason)
        self._on_failure(reason)


def _admit(puts: list[PendingPut], reason: str) -> None:
    for put in puts:
        put.admit(reason)
    flush_clients(puts)
