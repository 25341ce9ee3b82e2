"""Commit the log; sync log, queues and checkpoint (RocketMQ: FlushCommitLogService and others).

A failed sync is final: what the system reports afterwards cannot be trusted, so the store accepts
no more puts until it has been opened again and has recovered.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from reput_broker.store.base.checkpoint import StoreCheckpoint
from reput_broker.store.base.errors import DiskFull, StoreError, StoreReadOnly
from reput_broker.store.base.file_io import is_out_of_descriptors
from reput_broker.store.base.running_flags import RunningFlags
from reput_broker.store.base.stats import StoreStats
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.queue.reput import LogDispatch
from reput_broker.store.queue.table import ConsumeQueueTable


class StoreFlush:
    """The flushes of one store; each may run in a worker thread, one call at a time.

    Args:
        check_directories: raises DirectoryLost if what was synced is no longer in the store's
            directories.
    """

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueueTable,
        checkpoint: StoreCheckpoint,
        dispatch: LogDispatch,
        flags: RunningFlags,
        stats: StoreStats,
        check_directories: Callable[[], None],
    ) -> None:
        self._check_directories = check_directories
        self._log = log
        self._queues = queues
        self._checkpoint = checkpoint
        self._dispatch = dispatch
        self._flags = flags
        self._stats = stats

    def commit_buffers(self) -> int:
        """Write the contents of the pool's buffers to the files; return the offset up to which that is done.

        Everything before it can be read and survives the process. Blocks; safe in any thread.

        Raises:
            DiskFull: no room, although the file was preallocated. No put is accepted until a commit succeeds; nothing
                is lost: repeat the call.
            StoreReadOnly: the file cannot be written, now or earlier. What is not committed is lost, and the store
                accepts no more puts.
        """
        flags = self._flags
        if flags.read_only_reason is not None and self._stats.commit_failures:
            raise StoreReadOnly(flags.read_only_reason)
        try:
            committed = self._log.files.commit()
        except DiskFull as error:
            flags.note_commit_without_space(error)
            raise
        except (StoreError, OSError) as error:
            self._stats.commit_failures += 1
            raise flags.final(error) from error
        flags.note_commit()
        return committed

    def flush_commit_log(self) -> int:
        """Commit and sync the log; return the offset up to which it is durable. Blocks; one thread at a time.

        If a commit finds no room, what was committed before is synced. If no descriptor is free for the checkpoint, it
        lags behind until the next call, which is safe.

        Raises:
            StoreReadOnly: the sync failed, now or earlier. What had been flushed is safe; the rest may be lost, and the
                store accepts no more puts.
        """
        reason = self._flags.read_only_reason
        if reason is not None and self._stats.flush_failures:
            raise StoreReadOnly(reason)
        log = self._log
        before = log.flushed_offset
        stored_ms = log.last_store_timestamp_ms
        wrote = log.wrote_offset
        if wrote == before:
            return before
        if log.pool is not None:
            with suppress(DiskFull):
                self.commit_buffers()
        stats = self._stats
        try:
            flushed = log.files.flush()
            self._check_directories()  # before any acknowledgement: syncing a deleted file succeeds too
            if stored_ms and flushed >= wrote:
                self._checkpoint.physic_msg_timestamp_ms = stored_ms
            self._checkpoint.move_mark(flushed_offset=flushed)
            self._write_checkpoint_if_it_can_be_opened()
        except (StoreError, OSError) as error:
            # Even for a full disk: the checkpoint exists and is only overwritten, so the disk is
            # broken.
            stats.flush_failures += 1
            raise self._flags.final(error) from error
        stats.flushes += 1
        stats.flushed_bytes += flushed - before
        return flushed

    def _write_checkpoint_if_it_can_be_opened(self) -> None:
        try:
            self._checkpoint.write()
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise

    def flush_consume_queues(self, least_pages: int = 0) -> bool:
        """Sync what was dispatched before the call. Blocks; one thread at a time.

        Args:
            least_pages: skip queues with fewer unsynced pages than this and no full file. While any is skipped, the
                offset that recovery starts from does not advance.

        Returns:
            Whether no queue was skipped.

        Raises:
            StoreReadOnly: the sync failed. The queues can be rebuilt, but not by this process.
            OSError: no descriptor was free; nothing has changed.
        """
        position, stored_ms, entries = self._dispatch.dispatched
        try:
            is_complete = self._queues.flush(least_pages)
        except (StoreError, OSError) as error:
            if isinstance(error, OSError) and is_out_of_descriptors(error):
                raise  # nothing has failed: the next call does it
            raise self._flags.final(error) from error
        if not is_complete:
            return False
        checkpoint = self._checkpoint
        checkpoint.logics_msg_timestamp_ms = max(checkpoint.logics_msg_timestamp_ms, stored_ms)
        checkpoint.move_mark(queues_offset=position, entries=entries)
        return True

    def write_checkpoint(self) -> None:
        """Sync the checkpoint. Blocks; one thread at a time.

        Raises:
            StoreReadOnly: the sync failed.
            OSError: no descriptor was free; nothing has changed.
        """
        try:
            self._checkpoint.flush()
        except (StoreError, OSError) as error:
            if isinstance(error, OSError) and is_out_of_descriptors(error):
                raise  # nothing has failed: the next call does it
            raise self._flags.final(error) from error
