"""Sync the log (RocketMQ: GroupCommitService, FlushRealTimeService), and commit the buffers of the transient store pool
(RocketMQ: CommitRealTimeService).

With `flush = "async"` the log is synced every `flush_interval` if there are `flush_least_pages` or a file is full, and
every `flush_thorough_interval` in any case. In both modes a put that waits for its sync starts one immediately. One
sync runs at a time, in a worker thread; puts that arrive meanwhile share the next one (group commit). A failed sync is
final: the store is read-only afterwards.

With `store.transient_store_pool` a put stays in the broker's memory until a commit writes it to its file, and so to the
page cache; then `page_cache` is acknowledged. A waiting put starts a commit immediately; puts that arrive while one
runs share the next. Oneway sends are committed every `commit_interval` if there are `commit_least_pages` or a file is
full, and every `commit_thorough_interval` in any case. Puts that wait for a sync need none: each sync commits first.
Commits can be slow, so they run in a worker thread, one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, TypeVar

import structlog
import trio

from reput_broker.config.sections import StoreConfig
from reput_broker.observe.counters import Counters
from reput_broker.put.progress import LogProgress
from reput_broker.store.base.errors import DiskFull
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ReputError

if TYPE_CHECKING:
    from outcome import Outcome

log = structlog.get_logger(__name__)

T = TypeVar("T")


class FlushCommitLogService:
    """Decides when the log is synced.

    Args:
        on_failure: called once with the reason when a sync has failed.
    """

    def __init__(
        self,
        store: MessageStore,
        config: StoreConfig,
        counters: Counters,
        progress: LogProgress,
        on_failure: Callable[[str], None],
    ) -> None:
        self._store = store
        self._config = config
        self._counters = counters
        self._progress = progress
        self._flushed = progress.flushed
        self._on_failure = on_failure
        self._wanted = trio.Event()
        self._sync_always = config.flush == "sync"
        self._thorough_at = -inf
        progress.flushed.want = self.want

    def want(self) -> None:
        """Sync the log soon, in either mode."""
        self._wanted.set()

    def committed(self) -> None:
        """Sync what a commit has written, if that is awaited."""
        if self._sync_always or self._flushed.is_awaited:
            self._wanted.set()

    async def run(self) -> None:
        """Sync on demand; with `flush = "async"` also by the clock."""
        self._thorough_at = trio.current_time()
        while self._flushed.failure is None:
            if self._sync_always:
                await self._wanted.wait()
            else:
                await self._wanted_or_due()
            self._wanted = trio.Event()
            await self.flush_now()

    async def flush_now(self) -> None:
        """Sync once and answer waiting puts."""
        started_at = time.monotonic()
        progress, before = self._progress, self._store.flushed_offset
        if self._sync_always:
            progress.offer()

        def flushed(offset: int) -> None:
            progress.committed.advance(self._store.committed_offset)
            if offset > before:
                self._counters.flush_seconds["commitlog"].observe(time.monotonic() - started_at)
            released = self._flushed.advance(offset)
            if released:
                self._counters.flush_batch_messages.observe(released)

        try:
            await _in_thread(self._store.flush_commit_log, flushed)
        except (ReputError, OSError) as error:
            progress.committed.advance(self._store.committed_offset)
            self._counters.flush_errors["commitlog"] += 1
            self._fail(str(error))

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
        log.error(
            "flush_failed",
            detail=reason,
            hint="check the disk, then restart the broker; messages are rejected until then",
        )
        self._flushed.fail(self._store, reason)
        self._on_failure(reason)


async def _in_thread(function: Callable[[], T], then: Callable[[T], None]) -> None:
    """Call `function` in a worker thread, and `then` with its result in the event loop; return after both.

    `trio.to_thread.run_sync` would resume the caller two turns of the loop later, and costs more than a fast disk.
    """
    await trio.lowlevel.checkpoint_if_cancelled()
    task, token = trio.lowlevel.current_task(), trio.lowlevel.current_trio_token()
    failure: BaseException | None = None

    def finish(result: Outcome[T]) -> None:
        nonlocal failure
        try:
            then(result.unwrap())
        except BaseException as error:
            failure = error
        trio.lowlevel.reschedule(task)

    trio.lowlevel.start_thread_soon(function, lambda result: token.run_sync_soon(finish, result))
    await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
    if failure is not None:
        raise failure


_RETRY_INTERVAL_S = 1.0


class CommitRealTimeService:
    """Decides when buffers are committed.

    Args:
        on_failure: called once with the reason when a commit has failed for good.
    """

    def __init__(
        self,
        store: MessageStore,
        config: StoreConfig,
        progress: LogProgress,
        on_failure: Callable[[str], None],
    ) -> None:
        self._store = store
        self._config = config
        self._committed = progress.committed
        self._on_failure = on_failure
        self._wanted = trio.Event()
        self._appended = trio.Event()
        self._limiter = trio.CapacityLimiter(1)
        self._thorough_at = -inf
        progress.committed.want = self.want
        progress.appended.follow(self._note_append)

    def _note_append(self) -> None:
        self._appended.set()

    def want(self) -> None:
        """Commit soon."""
        self._appended.set()
        self._wanted.set()

    async def run(self) -> None:
        """Commit on demand and by the clock."""
        self._thorough_at = trio.current_time()
        while self._committed.failure is None:
            await self._wanted_or_due()
            self._wanted = trio.Event()
            await self.commit_now()

    async def commit_now(self) -> None:
        """Commit once and answer waiting puts. On a full disk, wait and leave it to the next commit."""
        try:
            committed = await trio.to_thread.run_sync(self._store.commit_buffers, limiter=self._limiter)
        except DiskFull as error:
            log.warning("commit_waits", detail=str(error), hint="free disk space; the broker retries")
            self._wanted.set()
            await trio.sleep(_RETRY_INTERVAL_S)
            return
        except (ReputError, OSError) as error:
            self._fail(str(error))
            return
        self._committed.advance(committed)

    async def _wanted_or_due(self) -> None:
        """Return when a put waits, or the clock and the number of pages call for a commit."""
        config, store = self._config, self._store
        while not self._wanted.is_set():
            if not store.commit_behind_bytes:
                self._appended = trio.Event()
                await self._appended.wait()
            with trio.move_on_after(config.commit_interval):
                await self._wanted.wait()
                return
            now = trio.current_time()
            if now >= self._thorough_at + config.commit_thorough_interval:
                self._thorough_at = now
                least_pages = 0
            else:
                least_pages = config.commit_least_pages
            if store.is_able_to_commit(least_pages):
                return

    def _fail(self, reason: str) -> None:
        log.error(
            "commit_failed",
            detail=reason,
            hint="check the disk, then restart the broker; messages are rejected until then",
        )
        self._committed.fail(self._store, reason)
        self._on_failure(reason)
