"""Commit the buffers of the transient store pool (RocketMQ: CommitRealTimeService).

With `store.transient_store_pool` a put stays in the broker's memory until a commit writes it to its file, and so to the
page cache; then `page_cache` is acknowledged. A waiting put starts a commit immediately; puts that arrive while one
runs share the next. Oneway sends are committed every `commit_interval` if there are `commit_least_pages` or a file is
full, and every `commit_thorough_interval` in any case. Puts that wait for a sync need none: each sync commits first.

Commits can be slow, so they run in a worker thread, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import structlog
import trio

from reput_broker.config.sections import StoreConfig
from reput_broker.put.progress import LogProgress
from reput_broker.store.errors import DiskFull
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

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
