"""Commit the buffers of the transient store pool, and answer the puts that wait for it (RocketMQ:
CommitRealTimeService).

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
from reput_broker.observe.counters import Counters
from reput_broker.put.pending_puts import PendingPut, PendingPutQueue
from reput_broker.store.errors import DiskFull
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

_RETRY_INTERVAL_S = 1.0


class CommitRealTimeService:
    """Decides when buffers are committed and answers waiting puts.

    Args:
        on_committed: called whenever the committed offset has moved, before any answer.
        on_failure: called once with the reason when a commit has failed for good.
    """

    def __init__(
        self,
        store: MessageStore,
        config: StoreConfig,
        counters: Counters,
        *,
        on_committed: Callable[[], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self._store = store
        self._config = config
        self._on_committed = on_committed
        self._on_failure = on_failure
        self._waiters = PendingPutQueue(counters.produce_seconds["page_cache"])
        self._wanted = trio.Event()
        self._appended = trio.Event()
        self._limiter = trio.CapacityLimiter(1)
        self._failure: str | None = None
        self._thorough_at = -inf
        self._noted = store.committed_offset

    def wrote(self) -> None:
        """Record an append that no put waits for."""
        self._appended.set()

    def want(self) -> None:
        """Commit soon."""
        self._appended.set()
        self._wanted.set()

    def answer_when_committed(self, end_offset: int, put: PendingPut) -> None:
        """Answer `put` once the log is committed up to `end_offset`, or refuse it."""
        self._waiters.add(end_offset, put)
        if self._failure is not None:
            self._waiters.fail(self._store.committed_offset, self._failure)
            return
        self.want()

    def committed(self) -> None:
        """Release the puts that a sync has committed, and retry if it could not commit everything."""
        self._note(self._store.committed_offset)
        if self._store.commit_behind_bytes:
            self._appended.set()

    async def run(self) -> None:
        """Commit on demand and by the clock."""
        self._thorough_at = trio.current_time()
        while self._failure is None:
            await self._wanted_or_due()
            self._wanted = trio.Event()
            await self.commit_now()

    async def commit_now(self) -> None:
        """Commit once and answer waiting puts. On a full disk, wait and leave it to the next commit."""
        try:
            committed = await trio.to_thread.run_sync(self._store.commit_log, limiter=self._limiter)
        except DiskFull as error:
            log.warning("commit_waits", detail=str(error), hint="free disk space; the broker retries")
            self._wanted.set()
            await trio.sleep(_RETRY_INTERVAL_S)
            return
        except (ReputError, OSError) as error:
            self._fail(str(error))
            return
        self._note(committed)

    def _note(self, committed: int) -> None:
        """Pass on what is committed, whether by a commit or by a sync, and answer the puts that waited for it."""
        if committed > self._noted:
            self._noted = committed
            self._on_committed()
        self._waiters.release(committed)

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
        self._failure = reason
        log.error(
            "commit_failed",
            detail=reason,
            hint="check the disk, then restart the broker; puts are refused until then",
        )
        self._waiters.fail(self._store.committed_offset, reason)
        self._on_failure(reason)
