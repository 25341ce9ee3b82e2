"""The tasks that drive the store: dispatch, queue sync, checkpoint, the next log file.

Each does one step, waits, and does the next; the store itself starts nothing. With nothing to do they sleep until
something happens, not a millisecond at a time: a loop of one-millisecond sleeps costs a tenth of a core.
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
_INDEX_PAUSE_S = 0.0005  # others go first, and yet it gets on by some hundred MiB a second


class ReputMessageService:
    """Dispatch the log into the queues: at once after a put, every millisecond while much is put.

    A step costs as much as some hundred messages in it, so under load a millisecond's worth is dispatched together. No
    reader sees less for it: what was acknowledged before a request is dispatched before it is handled.

    (RocketMQ: ReputMessageService.)

    Args:
        store: whose log is dispatched.
        after_step: runs after each step that found something; long polling answers there.
    """

    def __init__(self, store: MessageStore, after_step: Callable[[], None]) -> None:
        self._store = store
        self._after_step = after_step
        self._woken = trio.Event()
        self._last_putter: object = None

    def wake(self) -> None:
        """Note that there is something to dispatch now."""
        self._woken.set()

    def put_by(self, putter: object) -> None:
        """Dispatch what `putter` has put and been answered for.

        At once if it is alone and put little: waking a task costs more than a small step, and the step is done while
        the putter makes its next request. What several put at a time, or one in bulk, is left to `run`, which
        dispatches it together.
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

    def settle(self, *, can_wait: bool = False) -> None:
        """Dispatch what was acknowledged and is not dispatched: somebody is about to look.

        Who `can_wait`, as pulls can that are parked if they find nothing, has only a little dispatched for them: a pull
        after each few messages of a loaded broker must not undo that they are dispatched together.
        """
        store = self._store
        if store.dispatch_idle or (can_wait and store.dispatch_behind_bytes > _AT_ONCE_BYTES):
            return
        self.catch_up()

    def catch_up(self) -> None:
        """Dispatch what has just become readable, at once; what takes longer, or fails, is left to `run`."""
        store = self._store
        for _ in range(_CATCH_UP_STEPS):
            if store.dispatch_idle or not self._step():
                break
        if not store.dispatch_idle:
            self.wake()

    def _step(self) -> bool:
        """Dispatch what a step takes; False if that was nothing. `run` comes across an error again and says so."""
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
                    "dispatch_stopped", detail=str(error), hint="free disk space, or restart after repair"
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
    """Make the next files of log and index ahead, so that no put waits for one (RocketMQ: AllocateMappedFileService).

    The store says when: an append that has filled enough of the log's file, dispatch for the index.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._wanted = trio.Event()
        self._filled = trio.Event()
        store.when_file_wanted(self._want)
        if store.file_refusal is not None:  # nothing can be appended to the file that the start found
            self._want()

    def _want(self) -> None:
        self._wanted.set()

    async def run(self) -> None:
        """Make files until cancelled. What fails is tried again by itself, and said once until it is over.

        Puts are refused when it comes to that, and taken again when a file has been made.
        """
        said = ""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            if self._store.has_files_to_unlock:
                self._filled.set()
            try:
                while self._store.should_prepare_next_file():
                    await trio.to_thread.run_sync(self._store.prepare_next_file)
            except (ReputError, OSError) as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("next_file_not_made", detail=said, hint="it is tried again by itself")
                await trio.sleep(_RETRY_INTERVAL_S)
                self._want()
            else:
                said = ""
                if self._store.file_refusal is not None:  # no put is taken now, whatever file there is
                    await trio.sleep(_RETRY_INTERVAL_S)
                    self._want()

    async def unlock_full_files(self) -> None:
        """Let go of files that warm-up has locked into memory, some seconds after they are full."""
        while True:
            await self._filled.wait()
            await trio.sleep(_UNLOCK_AFTER_S)
            self._filled = trio.Event()
            await trio.to_thread.run_sync(self._store.unlock_full_files)


class StoreUpkeep:
    """Sync the queues and write the checkpoint, every so often and only if there is something new.

    (RocketMQ: FlushConsumeQueueService.) A queue is synced once `consume_queue_flush_least_pages` of it have gathered
    or a file of it is full; every `consume_queue_flush_thorough_interval` all are, and the checkpoint is written.
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
        certain = store.dispatched_offset  # a start leaves the queues on the disk
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
        """Index what the index lacks after a crash, or since it could not be written, until cancelled."""
        said = ""
        while True:
            try:
                indexed = self._store.index_step(_INDEX_STEP_BYTES)
                said = ""
            except (ReputError, OSError) as error:
                indexed = 0
                if str(error) != said:
                    said = str(error)
                    log.warning(
                        "index_incomplete", detail=said, hint="see to the disk; it is tried again by itself"
                    )
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
        """Check that the store's directories are where they were, until one is not; the store then says so.

        A put that waits for its sync is checked after that. This is for those that do not, and for a broker at rest.
        """
        with suppress(ReputError):
            while True:
                await trio.sleep(_DIRECTORIES_INTERVAL_S)
                await trio.to_thread.run_sync(self._store.check_directories)

    async def _flush_queues(self, least_pages: int) -> bool:
        """Sync the queues that have so many unsynced pages; whether everything dispatched is on the disk then."""
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
