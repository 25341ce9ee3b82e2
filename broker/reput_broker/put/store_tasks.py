"""Background work on an open store: its next files; queues, checkpoint and index; its directories."""

from __future__ import annotations

import time
from contextlib import suppress

import structlog
import trio

from reput_broker.config.sections import StoreConfig
from reput_broker.observe.counters import Counters
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

_RETRY_INTERVAL_S = 1.0
_UNLOCK_AFTER_S = 6.0  # (RocketMQ: CommitLog, unlockMappedFile)
_DIRECTORIES_INTERVAL_S = 2.0
_INDEX_STEP_BYTES = 256 * 1024
_INDEX_PAUSE_S = 0.0005  # lets other tasks run and still indexes some hundred MiB a second


class StoreTasks:
    """The tasks, each of which works only if there is something new.

    A queue is synced once `consume_queue_flush_least_pages` of it are unsynced or a file of it is full; every
    `consume_queue_flush_thorough_interval` all queues are synced and the checkpoint is written. (RocketMQ:
    FlushConsumeQueueService.)
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
