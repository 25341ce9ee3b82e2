"""The services between an append and its acknowledgement: lock, appender, flush, commit, dispatch and store tasks.

**Flush and commit** (RocketMQ: GroupCommitService, FlushRealTimeService, CommitRealTimeService). With `flush = "async"`
the log is synced every `flush_interval` if there are `flush_least_pages` or a file is full, and every
`flush_thorough_interval` in any case. In both modes a put that waits for its sync starts one immediately. One sync runs
at a time, in a worker thread; puts that arrive meanwhile share the next one (group commit). A failed sync is final: the
store is read-only afterwards.

With `store.transient_store_pool` a put stays in the broker's memory until a commit writes it to its file, and so to the
page cache; then `page_cache` is acknowledged. A waiting put starts a commit immediately; puts that arrive while one
runs share the next. Oneway sends are committed every `commit_interval` if there are `commit_least_pages` or a file is
full, and every `commit_thorough_interval` in any case. Puts that wait for a sync need none: each sync commits first.
Commits can be slow, so they run in a worker thread, one at a time.

**Dispatch** (RocketMQ: ReputMessageService). The task waits for an event while it is idle, because a loop of
one-millisecond sleeps takes a tenth of a core.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import structlog
import trio
from typing_extensions import override

from reput_broker.config.model import BrokerConfig
from reput_broker.config.sections import StoreConfig
from reput_broker.observe.counters import Counters
from reput_broker.put.appender import Appender
from reput_broker.put.held_pulls import PullRequestHoldService
from reput_broker.put.progress import LogProgress, Position, do_nothing
from reput_broker.put.put_lock import Fence, OwnPuts, PutLock
from reput_broker.remoting.request import Confirmed, PutAck, Refusal
from reput_broker.store.base.errors import DiskFull
from reput_broker.store.message_store import MessageStore
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ErrorCode, ReputError

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
        self, store: MessageStore, config: StoreConfig, position: Position, on_failure: Callable[[str], None]
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
        self, store: MessageStore, config: StoreConfig, progress: LogProgress, on_failure: Callable[[str], None]
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


_REPUT_INTERVAL_S = 0.001
_AT_ONCE_BYTES = 16 * 1024
_BUSY_BYTES = 64 * 1024
_WORTH_A_STEP_BYTES = 512 * 1024
_CATCH_UP_STEPS = 4
_STUCK_INTERVAL_S = 0.1


@dataclass(eq=False, repr=False)
class ReputMessageService:
    """Dispatches immediately after a put, every millisecond under load.

    A step costs as much as some hundred messages in it, so under load a millisecond's messages are dispatched together.
    Readers do not notice: what was acknowledged before a request is dispatched before it is handled.

    Args:
        store: whose log is dispatched.
        dispatched: advanced after each step.
    """

    _store: MessageStore
    _dispatched: Position
    _woken: trio.Event = field(default_factory=trio.Event, init=False)
    _last_putter: object = field(default=None, init=False)

    def wake(self) -> None:
        """Start dispatch."""
        self._woken.set()

    def dispatch_put_by(self, putter: object) -> None:
        """Dispatch what `putter` has put and been answered for.

        Done here if no other putter is active and little was put: waking a task costs more than a small step, which
        overlaps with the putter's next request. Otherwise `run` dispatches everything together.
        """
        store = self._store
        behind = store.dispatch_behind_bytes
        if putter is not self._last_putter or behind > _AT_ONCE_BYTES:
            self._last_putter = putter
            self.wake()
        elif behind:
            self._step()
            if not store.dispatch_is_idle():
                self.wake()

    def dispatch_acknowledged(self, *, can_wait: bool = False) -> None:
        """Dispatch what was acknowledged, before a request reads it.

        With `can_wait`, as for pulls that can be held, only a small backlog is dispatched: frequent pulls would
        otherwise force many small steps under load.
        """
        store = self._store
        if store.dispatch_is_idle() or (can_wait and store.dispatch_behind_bytes > _AT_ONCE_BYTES):
            return
        self.catch_up()

    def catch_up(self) -> None:
        """Dispatch what has just become readable; `run` does the rest if it is much or fails."""
        store = self._store
        for _ in range(_CATCH_UP_STEPS):
            if store.dispatch_is_idle() or not self._step():
                break
        if not store.dispatch_is_idle():
            self.wake()

    def complete_index(self, unknown: str) -> None:
        """Dispatch what is readable, and bring what is dispatched into the index, so that a look-up finds it.

        Args:
            unknown: what cannot be looked up if this fails.

        Raises:
            Refusal: there is no disk space for the index.
        """
        self.catch_up()
        try:
            self._store.complete_index()
        except DiskFull as error:
            raise Refusal(ErrorCode.DISK_FULL, f"{error}; {unknown} cannot be looked up") from error

    def _step(self) -> bool:
        """Run one dispatch step; False if it did nothing. `run` meets and logs the same error."""
        try:
            dispatched = self._store.reput_step() > 0
            if dispatched:
                self._dispatched.advance(self._store.dispatched_offset)
            return dispatched
        except ReputError:
            return False

    async def run(self) -> None:
        """Dispatch until cancelled."""
        store = self._store
        while True:
            if store.dispatch_is_idle():
                await self._woken.wait()
            self._woken = trio.Event()
            before = store.dispatched_offset
            try:
                dispatched = store.reput_step()
            except ReputError as error:
                log.error(
                    "dispatch_stopped",
                    detail=str(error),
                    hint="restore the missing file, or stop the broker and run `reput store verify`",
                )
                await trio.sleep(_STUCK_INTERVAL_S)
                continue
            if dispatched:
                now = store.dispatched_offset
                self._dispatched.advance(now)
                is_busy = now - before >= _BUSY_BYTES
                if is_busy and store.dispatch_behind_bytes < _WORTH_A_STEP_BYTES:
                    await trio.sleep(_REPUT_INTERVAL_S)
                else:
                    await trio.lowlevel.checkpoint()
            elif not store.dispatch_is_idle():
                await trio.sleep(_REPUT_INTERVAL_S if store.is_writable else _STUCK_INTERVAL_S)


_UNLOCK_AFTER_S = 6.0  # (RocketMQ: CommitLog, unlockMappedFile)
_DIRECTORIES_INTERVAL_S = 2.0
_INDEX_STEP_BYTES = 256 * 1024
_INDEX_PAUSE_S = 0.0005  # lets other tasks run and still indexes some hundred MiB a second


@dataclass(eq=False, repr=False)
class StoreTasks:
    """The tasks, each of which works only if there is something new.

    A queue is synced once `consume_queue_flush_least_pages` of it are unsynced or a file of it is full; every
    `consume_queue_flush_thorough_interval` all queues are synced and the checkpoint is written. (RocketMQ:
    FlushConsumeQueueService.)
    """

    _store: MessageStore
    _config: StoreConfig
    _counters: Counters
    _complete_flushes: int = field(default=0, init=False)

    async def flush_queues(self) -> None:
        """Sync the ConsumeQueues until cancelled."""
        config, store = self._config, self._store
        thorough_at = trio.current_time()
        certain = store.dispatched_offset  # a start syncs the queues
        while True:
            await trio.sleep(config.consume_queue_flush_interval)
            now = trio.current_time()
            is_thorough = now >= thorough_at + config.consume_queue_flush_thorough_interval
            if is_thorough:
                thorough_at = now
            dispatched = store.dispatched_offset
            if dispatched == certain:
                continue
            if await self._flush_queues(0 if is_thorough else config.consume_queue_flush_least_pages):
                certain = dispatched
                self._complete_flushes += 1
            if is_thorough:
                await self._write_checkpoint()

    async def complete_index(self) -> None:
        """Index what a crash, or a failed write, has left out of the index, until cancelled."""
        logged = ""
        while True:
            try:
                indexed = self._store.index_step(_INDEX_STEP_BYTES)
                logged = ""
            except (ReputError, OSError) as error:
                indexed = 0
                if str(error) != logged:
                    logged = str(error)
                    log.warning("index_incomplete", detail=logged, hint="check the disk; the broker retries")
            await trio.sleep(_INDEX_PAUSE_S if indexed else _RETRY_INTERVAL_S)

    async def write_checkpoints(self) -> None:
        """Write the checkpoint until cancelled."""
        written = (-1, -1, -1)
        while True:
            await trio.sleep(self._config.checkpoint_interval)
            store = self._store
            progress = (store.max_physical_offset, store.flushed_offset, self._complete_flushes)
            if progress != written:
                written = progress
                await self._write_checkpoint()

    async def watch_directories(self) -> None:
        """Check that the store's directories still exist, until one does not; the store then becomes read-only.

        For an idle broker, and for puts that do not wait for a sync, which checks too.
        """
        with suppress(ReputError):
            while True:
                await trio.sleep(_DIRECTORIES_INTERVAL_S)
                await trio.to_thread.run_sync(self._store.check_directories)

    async def _flush_queues(self, least_pages: int) -> bool:
        """Sync the queues with so many unsynced pages; return whether everything dispatched is then
        flushed."""
        started_at = time.monotonic()
        try:
            is_complete = await trio.to_thread.run_sync(self._store.flush_consume_queues, least_pages)
            await trio.to_thread.run_sync(self._store.flush_index)
        except (ReputError, OSError) as error:
            self._counters.flush_errors["consumequeue"] += 1
            log.error("queue_flush_failed", detail=str(error), hint="check the disk; queues are rebuilt from the log")
            return False
        self._counters.flush_seconds["consumequeue"].observe(time.monotonic() - started_at)
        return is_complete

    async def _write_checkpoint(self) -> None:
        try:
            await trio.to_thread.run_sync(self._store.write_checkpoint)
        except (ReputError, OSError) as error:
            log.error("checkpoint_failed", detail=str(error), hint="check the disk; the next recovery reads more")


class AllocateService:
    """Makes the files that the store requests, so that puts do not wait (RocketMQ: AllocateMappedFileService).

    Log files are made when one is full enough, index files when dispatch needs them.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._wanted = trio.Event()
        self._filled = trio.Event()
        store.when_file_wanted(self._want)
        if store.file_refusal is not None:  # the file that the start found takes no appends
            self._want()

    def _want(self) -> None:
        self._wanted.set()

    async def run(self) -> None:
        """Make files until cancelled. Failures are retried, and each is logged once.

        Puts that need the file are refused meanwhile.
        """
        logged = ""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            if self._store.has_files_to_unlock:
                self._filled.set()
            try:
                while self._store.should_prepare_next_file():
                    await trio.to_thread.run_sync(self._store.prepare_next_file)
            except (ReputError, OSError) as error:
                if str(error) != logged:
                    logged = str(error)
                    log.warning("next_file_not_made", detail=logged, hint="the broker retries")
                await trio.sleep(_RETRY_INTERVAL_S)
                self._want()
            else:
                logged = ""
                if self._store.file_refusal is not None:  # puts are refused, whatever file there is
                    await trio.sleep(_RETRY_INTERVAL_S)
                    self._want()

    async def unlock_full_files(self) -> None:
        """Unlock files that warm-up has locked into memory, some seconds after they are full."""
        while True:
            await self._filled.wait()
            await trio.sleep(_UNLOCK_AFTER_S)
            self._filled = trio.Event()
            await trio.to_thread.run_sync(self._store.unlock_full_files)


class PutPath:
    """The services of the log of one broker.

    Args:
        hold: answers waiting pulls after each dispatch.
        on_failure: called with the reason when nothing can be stored any more.
        fence: of this tenure.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        hold: PullRequestHoldService,
        counters: Counters,
        on_failure: Callable[[str], None],
        fence: Fence,
    ) -> None:
        self.fence = fence
        self.lock = PutLock(fence, config.store)
        self.allocate = AllocateService(store)
        self.progress = progress = LogProgress(store, config, counters)
        self.reput = ReputMessageService(store, progress.dispatched)
        self.flush = FlushCommitLogService(store, config.store, counters, progress, on_failure)
        self.commit: CommitRealTimeService | None = None
        self.store_tasks = StoreTasks(store, config.store, counters)
        progress.dispatched.follow(hold.answer_ready)
        is_sync = config.store.flush == "sync"
        self.wrote: Callable[[], None] = self.flush.want if is_sync else self.reput.wake
        """Called after the broker has appended messages of its own."""
        if progress.has_pool:
            self.commit = CommitRealTimeService(store, config.store, progress, on_failure)
            if not is_sync:
                progress.committed.follow(self.reput.catch_up)
            progress.committed.follow(self.flush.committed)
            progress.replicated.want = progress.confirmed.want = self.commit.want
            self.wrote = do_nothing
        elif is_sync:
            progress.replicated.want = progress.confirmed.want = self.flush.want
        # Under SYNC_FLUSH the flush dispatches, because readers see only what is flushed; with a pool, the commit does.
        put_dispatches = not is_sync and not progress.has_pool
        self.dispatch_put_by = self.reput.dispatch_put_by if put_dispatches else None
        # A slave reports first: its master waits for that, and its own consumers can wait a moment. A master answers
        # first: the step overlaps with the putters' next requests, and a read dispatches what was acknowledged before.
        dispatch_flushed = self.reput.wake if store.options.is_replica else self.reput.catch_up
        progress.flushed.follow(dispatch_flushed, after_answers=True)
        progress.confirmed.follow(dispatch_flushed, after_answers=True)
        self.appender = Appender(
            store, self.lock, fence, progress, counters, self.reput.wake if put_dispatches else do_nothing
        )
        self.local_ack = AckLevel.FLUSHED if is_sync else AckLevel.PAGE_CACHE
        self._ha = config.ha
        self._elects = config.election.is_on
        self.own = OwnPuts(store, self.lock, fence, self.wrote)

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the background tasks."""
        return (
            *(() if self.commit is None else (self.commit.run,)),
            self.reput.run,
            self.flush.run,
            self.progress.expire,
            self.allocate.run,
            self.allocate.unlock_full_files,
            self.store_tasks.flush_queues,
            self.store_tasks.complete_index,
            self.store_tasks.write_checkpoints,
            self.store_tasks.watch_directories,
        )

    def default_ack(self) -> AckLevel:
        """Return the ack level of requests that name none."""
        if self._ha.role == "SYNC_MASTER" and self._ha.in_sync_replicas > 1:
            return AckLevel.REPLICATED
        return self.local_ack

    def ack_of_returned(self, ack: AckLevel) -> PutAck:
        """Return the level for a message that a consumer returns, if `ack` was asked or is the default.

        The consumer continues behind the message. So, in a group with an election, it is answered once no failover
        takes it back, however few members are in sync.
        """
        return Confirmed.CONFIRMED if self._elects and ack is not AckLevel.REPLICATED else ack
