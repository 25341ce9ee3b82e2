"""Sync the log, and answer the puts that wait for it (RocketMQ: GroupCommitService, FlushRealTimeService).

With `flush = "async"` the log is synced every `flush_interval` if there are `flush_least_pages` or a file is full, and
every `flush_thorough_interval` in any case. In both modes a put that waits for its sync starts one immediately.

One sync runs at a time, in a worker thread; puts that arrive meanwhile share the next one (group commit). A failed sync
is final: the store is read-only afterwards. With a pool of buffers, a sync commits first; `commit_service.py` commits
without syncing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

import structlog
import trio

from reput_broker.config.sections import StoreConfig
from reput_broker.observe.counters import Counters
from reput_broker.put.pending_puts import PendingPut, PendingPutQueue
from reput_broker.request import Refusal
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ErrorCode, ReputError

log = structlog.get_logger(__name__)

_NO_PROGRESS_S = 0.05


class FlushCommitLogService:
    """Decides when the log is synced and answers waiting puts.

    Args:
        on_committed: called after each sync, which commits first, whether or not it succeeded; None without a pool.
        on_flushed: called after each sync that moved the flushed offset, before any answer, so that acknowledged
            messages are readable.
        on_failure: called once with the reason when a sync has failed.
    """

    def __init__(
        self,
        store: MessageStore,
        config: StoreConfig,
        counters: Counters,
        *,
        on_committed: Callable[[], None] | None = None,
        on_flushed: Callable[[], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self._store = store
        self._config = config
        self._counters = counters
        self._on_committed = on_committed
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._waiters = PendingPutQueue(counters.produce_seconds["flushed"])
        self._wanted = trio.Event()
        self._waiting = trio.Event()
        self._synced = trio.Event()
        self._limiter = trio.CapacityLimiter(1)
        self._failure: str | None = None
        self.on_start: Callable[[], None] = lambda: None
        """Called when a sync begins."""
        self._sync_always = config.flush == "sync"
        self._thorough_at = -inf

    def wrote(self) -> None:
        """Record an append that no put waits for."""
        if self._sync_always:
            self._wanted.set()

    def want(self) -> None:
        """Sync the log soon, in either mode."""
        self._wanted.set()

    def committed(self) -> None:
        """Record that a commit was made, which may now be synced."""
        if self._sync_always or self._waiters:
            self._wanted.set()

    def answer_when_flushed(self, end_offset: int, put: PendingPut) -> None:
        """Answer `put` once the log is flushed up to `end_offset`, or that this was not reached in
        time."""
        self._waiters.add(end_offset, put, self._config.sync_timeout)
        if self._failure is not None:
            self._waiters.fail(self._store.committed_offset, self._failure)
            return
        self._wanted.set()
        self._waiting.set()

    async def flushed_to(self, end_offset: int) -> None:
        """Sync the log and wait until it is flushed up to `end_offset`, without a timeout.

        Raises:
            Refusal: a sync has failed.
        """
        while self._store.flushed_offset < end_offset:
            if self._failure is not None:
                raise Refusal(ErrorCode.READ_ONLY, f"{self._failure}; see the broker's log")
            before = self._store.flushed_offset
            self._wanted.set()
            await self._synced.wait()
            if self._store.flushed_offset == before:  # the disk was full for a commit, which is temporary
                await trio.sleep(_NO_PROGRESS_S)

    async def run(self) -> None:
        """Sync on demand; with `flush = "async"` also by the clock."""
        self._thorough_at = trio.current_time()
        while self._failure is None:
            if self._sync_always:
                await self._wanted.wait()
            else:
                await self._wanted_or_due()
            self._wanted = trio.Event()
            await self.flush_now()

    async def flush_now(self) -> None:
        """Sync once and answer waiting puts."""
        started_at = time.monotonic()
        before = self._store.flushed_offset
        self.on_start()
        try:
            flushed = await trio.to_thread.run_sync(self._store.flush_commit_log, limiter=self._limiter)
        except (ReputError, OSError) as error:
            self._counters.flush_errors["commitlog"] += 1
            self._fail(str(error))
            return
        finally:
            if self._on_committed is not None:
                self._on_committed()
            synced, self._synced = self._synced, trio.Event()
            synced.set()
        if flushed > before:
            self._counters.flush_seconds["commitlog"].observe(time.monotonic() - started_at)
            self._on_flushed()
        released = self._waiters.release(flushed)
        if released:
            self._counters.flush_batch_messages.observe(released)

    async def expire(self) -> None:
        """Answer puts whose timeout is over: stored, but not known to be flushed."""
        while True:
            await self._waiting.wait()
            await trio.sleep(min(0.25, self._config.sync_timeout / 4))
            reason = f"the sync took longer than store.sync_timeout ({self._config.sync_timeout} s)"
            self._waiters.admit_late(self._store.committed_offset, reason)
            if not self._waiters:
                self._waiting = trio.Event()

    async def _wanted_or_due(self) -> None:
        """Return when a put waits, or the clock and the number of pages call for a sync."""
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

    def _fail(self, reason: str) -> None:
        self._failure = reason
        log.error(
            "flush_failed",
            detail=reason,
            hint="check the disk, then restart the broker; puts are refused until then",
        )
        self._waiters.fail(self._store.committed_offset, reason)
        self._on_failure(reason)
