"""Background tasks of the store: dispatch, queue sync, checkpoint, the next log file.

Each does one step and waits; the store starts nothing by itself. Idle tasks wait for an event,
because a loop of one-millisecond sleeps takes a tenth of a core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import structlog
import trio

from reput_broker.config.sections import StoreConfig
from reput_broker.observe.counters import Counters
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

_REPUT_INTERVAL_S = 0.001
_AT_ONCE_BYTES = 16 * 1024
_BUSY_BYTES = 64 * 1024
_WORTH_A_STEP_BYTES = 512 * 1024
_CATCH_UP_STEPS = 4
_STUCK_INTERVAL_S = 0.1
_RETRY_INTERVAL_S = 1.0
_DIRECTORIES_INTERVAL_S = 1.0
_UNLOCK_AFTER_S = 6.0  # (RocketMQ: CommitLog, unlockMappedFile)
_INDEX_STEP_BYTES = 256 * 1024
_INDEX_PAUSE_S = 0.0005  # lets other tasks run and still indexes some hundred MiB a second


class ReputMessageService:
    """Dispatch the log into the queues: immediately after a put, every millisecond under load.

    A step costs as much as some hundred messages in it, so under load a millisecond's messages are
    dispatched together. Readers do not notice: what was acknowledged before a request is dispatched
    before it is handled.

    (RocketMQ: ReputMessageService.)

    Args:
        store: whose log is dispatched.
        after_step: called after each step that dispatched something; answers long polls.
    """

    def __init__(self, store: MessageStore, after_step: Callable[[], None]) -> None:
        self._store = store
        self._after_step = after_step
        self._woken = trio.Event()
        self._last_putter: object = None

    def wake(self) -> None:
        """Start dispatch."""
        self._woken.set()

    def put_by(self, putter: object) -> None:
        """Dispatch what `putter` has put and been answered for.

        Done here if no other putter is active and little was put: waking a task costs more than a
        small step, which overlaps with the putter's next request. Otherwise `run` dispatches
        everything together.
        """
        store = self._store
        behind = store.dispatch_behind_bytes
        if putter is not self._last_putter or behind > _AT_ONCE_BYTES:
            self._last_putter = putter
            self.wake()
        elif behind:
            self._step()
            if not store.dispatch_idle:
                self.wake()

    def dispatch_acknowledged(self, *, can_wait: bool = False) -> None:
        """Dispatch what was acknowledged, before a request reads it.

        With `can_wait`, as for pulls that can be held, only a small backlog is dispatched: under
        load, frequent pulls would otherwise force many small steps instead of few large ones.
        """
        store = self._store
        if store.dispatch_idle or (can_wait and store.dispatch_behind_bytes > _AT_ONCE_BYTES):
            return
        self.catch_up()

    def catch_up(self) -> None:
        """Dispatch what has just become readable; `run` does the rest if it is much or fails."""
        store = self._store
        for _ in range(_CATCH_UP_STEPS):
            if store.dispatch_idle or not self._step():
                break
        if not store.dispatch_idle:
            self.wake()

    def _step(self) -> bool:
        """Run one dispatch step; False if it did nothing. `run` meets and logs the same error."""
        try:
            dispatched = self._store.reput_step() > 0
            if dispatched:
                self._after_step()
            return dispatched
        except ReputError:
            return False

    async def run(self) -> None:
        """Dispatch until cancelled."""
        store = self._store
        while True:
            if store.dispatch_idle:
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
                self._after_step()
                is_busy = store.dispatched_offset - before >= _BUSY_BYTES
                if is_busy and store.dispatch_behind_bytes < _WORTH_A_STEP_BYTES:
                    await trio.sleep(_REPUT_INTERVAL_S)
                else:
                    await trio.lowlevel.checkpoint()
            elif not store.dispatch_idle:
                await trio.sleep(_REPUT_INTERVAL_S if store.is_writable else _STUCK_INTERVAL_S)


class AllocateService:
    """Make the next files of log and index ahead, so that puts do not wait (RocketMQ:
    AllocateMappedFileService).

    The store requests them: after an append has filled enough of the log's file, and dispatch for
    the index.
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


class StoreUpkeep:
    """Sync the queues and write the checkpoint periodically, if there is something new.

    (RocketMQ: FlushConsumeQueueService.) A queue is synced once `consume_queue_flush_least_pages`
    of it are unsynced or a file of it is full; every `consume_queue_flush_thorough_interval` all
    queues are synced and the checkpoint is written.
    """

    def __init__(self, store: MessageStore, config: StoreConfig, counters: Counters) -> None:
        self._store = store
        self._config = config
        self._counters = counters
        self._complete_flushes = 0

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
        """Check that the store's directories still exist, until one does not; the store then becomes
        read-only.

        Puts that wait for a sync are checked after it. This check is for other puts and for an idle
        broker.
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
            log.error(
                "queue_flush_failed",
                detail=str(error),
                hint="check the disk; queues are rebuilt from the log",
            )
            return False
        self._counters.flush_seconds["consumequeue"].observe(time.monotonic() - started_at)
        return is_complete

    async def _write_checkpoint(self) -> None:
        try:
            await trio.to_thread.run_sync(self._store.write_checkpoint)
        except (ReputError, OSError) as error:
            log.error(
                "checkpoint_failed", detail=str(error), hint="check the disk; the next recovery reads more"
            )
