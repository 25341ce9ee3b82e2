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
from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import structlog
import trio
from typing_extensions import override

from reput_broker.config.sections import StoreConfig
from reput_broker.observe.counters import Counters
from reput_broker.put.progress import LogProgress, Position
from reput_broker.store.base.errors import DiskFull
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ReputError

if TYPE_CHECKING:
    from outcome import Outcome

log = structlog.get_logger(__name__)

T = TypeVar("T")

_HINT = "check the disk, then restart the broker; messages are rejected until then"


class _Terms(NamedTuple):
    """When something is written without being wanted."""

    interval: float
    """How often it is looked at, in seconds."""
    thorough_interval: float
    """How often it is written however little there is, in seconds."""
    least_pages: int
    """How much there must be otherwise."""


class _WriteService(ABC):
    """Writes the log on demand and by the clock, until that has failed for good.

    Args:
        position: how far it is written.
        on_failure: called once with the reason when a write has failed for good.
    """

    def __init__(
        self,
        store: MessageStore,
        config: StoreConfig,
        position: Position,
        on_failure: Callable[[str], None],
    ) -> None:
        self._store = store
        self._config = config
        self._position = position
        self._on_failure = on_failure
        self._wanted = trio.Event()
        self._thorough_at = -inf
        position.want = self.want

    @abstractmethod
    def _terms(self) -> _Terms:
        """Return the options as they are now."""

    @abstractmethod
    def _is_able(self, least_pages: int) -> bool:
        """Return whether so much can be written."""

    @abstractmethod
    async def _has_work(self) -> None:
        """Return when there may be something to write; until then the clock is not looked at."""

    def want(self) -> None:
        """Write soon."""
        self._wanted.set()

    async def _wanted_or_due(self) -> None:
        """Return when a put waits, or the clock and the number of pages call for a write."""
        while not self._wanted.is_set():
            await self._has_work()
            with trio.move_on_after(self._terms().interval):
                await self._wanted.wait()
                return
            now, terms = trio.current_time(), self._terms()
            if now >= self._thorough_at + terms.thorough_interval:
                self._thorough_at = now
                least_pages = 0
            else:
                least_pages = terms.least_pages
            if self._is_able(least_pages):
                return

    def _fail(self, reason: str) -> None:
        self._position.fail(self._store, reason)
        self._on_failure(reason)


class FlushCommitLogService(_WriteService):
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
        super().__init__(store, config, progress.flushed, on_failure)
        self._counters = counters
        self._progress = progress
        self._sync_always = config.flush == "sync"

    @override
    def _terms(self) -> _Terms:
        config = self._config
        return _Terms(config.flush_interval, config.flush_thorough_interval, config.flush_least_pages)

    @override
    def _is_able(self, least_pages: int) -> bool:
        return self._store.is_able_to_flush(least_pages)

    @override
    async def _has_work(self) -> None:
        pass  # the clock alone decides

    def committed(self) -> None:
        """Sync what a commit has written, if that is awaited."""
        if self._sync_always or self._position.is_awaited:
            self._wanted.set()

    async def run(self) -> None:
        """Sync on demand; with `flush = "async"` also by the clock."""
        self._thorough_at = trio.current_time()
        while self._position.failure is None:
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
            released = self._position.advance(offset)
            if released:
                self._counters.flush_batch_messages.observe(released)

        try:
            await _in_thread(self._store.flush_commit_log, flushed)
        except (ReputError, OSError) as error:
            progress.committed.advance(self._store.committed_offset)
            self._counters.flush_errors["commitlog"] += 1
            log.error("flush_failed", detail=str(error), hint=_HINT)
            self._fail(str(error))


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


class CommitRealTimeService(_WriteService):
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
        super().__init__(store, config, progress.committed, on_failure)
        self._appended = trio.Event()
        self._limiter = trio.CapacityLimiter(1)
        progress.appended.follow(self._note_append)

    def _note_append(self) -> None:
        self._appended.set()

    @override
    def want(self) -> None:
        self._appended.set()
        super().want()

    @override
    def _terms(self) -> _Terms:
        config = self._config
        return _Terms(config.commit_interval, config.commit_thorough_interval, config.commit_least_pages)

    @override
    def _is_able(self, least_pages: int) -> bool:
        return self._store.is_able_to_commit(least_pages)

    @override
    async def _has_work(self) -> None:
        if not self._store.commit_behind_bytes:
            self._appended = trio.Event()
            await self._appended.wait()

    async def run(self) -> None:
        """Commit on demand and by the clock."""
        self._thorough_at = trio.current_time()
        while self._position.failure is None:
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
            log.error("commit_failed", detail=str(error), hint=_HINT)
            self._fail(str(error))
            return
        self._position.advance(committed)
