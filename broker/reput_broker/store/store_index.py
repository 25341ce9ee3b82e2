"""The index of an open store: completion after a crash, dispatch and flush."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from reput_broker.store.base.checkpoint import FlushMark, StoreCheckpoint
from reput_broker.store.base.deleted_topics import DeletedTopics
from reput_broker.store.base.dispatch import DispatchBatch
from reput_broker.store.base.errors import DiskFull, FileNotMade, FlushFailed, StoreDamaged, StoreError
from reput_broker.store.base.file_io import is_out_of_descriptors
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.running_flags import RunningFlags
from reput_broker.store.base.stats import StoreStats
from reput_broker.store.index.service import IndexService
from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.queue.reput import STEP_BYTES_MAX, LogFollower

INDEX_AT_ONCE_BYTES = 64 << 20
"""How much of the log is indexed again during a start; more is done afterwards."""


class StoreIndex:
    """The index of one store, or its absence. Owned like the store.

    Args:
        dispatched_offset: end of the running dispatch, which continues the index once it is
            complete up to there.
    """

    def __init__(
        self,
        index: IndexService | None,
        log: CommitLog,
        deleted: DeletedTopics,
        checkpoint: StoreCheckpoint,
        flags: RunningFlags,
        *,
        dispatched_offset: Callable[[], int],
        options: StoreOptions,
    ) -> None:
        self._index = index
        self._log = log
        self._deleted = deleted
        self._checkpoint = checkpoint
        self._flags = flags
        self._dispatched_offset = dispatched_offset
        self._options = options
        self._reader: LogFollower | None = None
        self.has_gap = False
        """Whether the index lacks records that cannot be read from the log."""
        self._is_failing = False

    def complete(self, end_offset: int) -> None:
        """Index what the index lacks: now if that is little, otherwise in steps while the broker runs."""
        index = self._index
        if index is None:
            return
        start = max(index.resume_from, self._log.min_offset)
        if start >= end_offset:
            return
        self._read_from(start, index)
        if end_offset - start <= INDEX_AT_ONCE_BYTES:
            with suppress(DiskFull, FlushFailed, OSError):  # later steps retry
                while self.index_step():
                    pass
        else:
            self._options.on_event("index_behind", {"from_offset": start, "to_offset": end_offset})

    def _read_from(self, offset: int, index: IndexService) -> None:
        index.is_behind = True
        self._reader = LogFollower(
            self._log,
            [_IndexAlone(index)],
            self._deleted,
            StoreStats(),
            limit=self._dispatched_offset,
            position=offset,
            levels_ms=self._options.delay_levels_ms,
        )

    def dispatch(self, batch: DispatchBatch) -> None:
        """Take a batch that follows the previous ones.

        If the index cannot be written for another reason than lack of space or descriptors, it falls behind: dispatch
        does not wait for what can be rebuilt from the log at any time.

        Raises:
            DiskFull: there is no room for a new index file; the same batch may be offered again.
            OSError: no descriptor was free; the same batch may be offered again.
        """
        index = self._index
        if index is None:
            return
        try:
            index.dispatch(batch)
        except (FlushFailed, OSError) as error:
            if isinstance(error, OSError) and is_out_of_descriptors(error):
                raise
            self._fall_behind(batch.start_offset, error, index)

    def _fall_behind(self, offset: int, error: FlushFailed | OSError, index: IndexService) -> None:
        self._read_from(offset, index)
        self._note_failure(error, index)

    def _note_failure(self, error: FlushFailed | OSError, index: IndexService) -> None:
        """Report that the index cannot be written (event `index_not_written`, until `index_complete`)."""
        if not self._is_failing:
            self._is_failing = True
            path = getattr(error, "filename", None) or (
                index.files[-1].path if index.files else index.directory / "..."
            )
            self._options.on_event("index_not_written", {"reason": str(FileNotMade(path, error))})

    def index_step(self, max_bytes: int = STEP_BYTES_MAX) -> int:
        """Index about `max_bytes` of what the index lacks; return how many records. 0: it lacks nothing.

        If the log cannot be read there, which a start need not notice so far back, the index continues with new
        messages, and every query reports that messages may be missing.

        Raises:
            DiskFull: there is no room for a new index file; the step may be repeated.
            FlushFailed, OSError: one cannot be created for another reason; the step may be repeated.
        """
        reader, index = self._reader, self._index
        if reader is None or index is None:
            return 0
        try:
            count = reader.step(max_bytes)
            if not count and self._is_failing:
                index.complete()
        except (FlushFailed, OSError) as error:
            self._note_failure(error, index)
            raise
        except StoreDamaged as damage:
            self._reader = None
            self.has_gap = True
            self._is_failing = index.is_behind = False
            self._options.on_event("index_incomplete", {"reason": str(damage)})
            return 0
        if not count:
            # From here on every dispatched batch is indexed too.
            self._reader = None
            self._is_failing = index.is_behind = False
            self._options.on_event("index_complete", {"offset": index.position})
        return count

    @property
    def index_behind_bytes(self) -> int:
        """Bytes of the log whose entries are in the queues but whose keys are not in the index yet."""
        return 0 if self._reader is None else self._reader.behind_bytes

    def complete_index(self) -> None:
        """Make everything that was dispatched findable by key. In the thread that dispatches.

        If the index cannot be written, it falls behind as in `dispatch`, and queries report that.

        Raises:
            DiskFull: there is no room for a new index file; may be retried.
        """
        index = self._index
        if index is None or self._is_failing:
            return
        try:
            index.complete()
        except (FlushFailed, OSError) as error:
            if self._reader is None:
                self._read_from(self._dispatched_offset(), index)
            self._note_failure(error, index)

    def flush_index(self) -> None:
        """Sync index files that have become full, and record that in the checkpoint. Blocks.

        Raises:
            StoreReadOnly: the sync failed. The index can be rebuilt, but not by this process.
            OSError: no descriptor was free; the next call does it.
        """
        if self._index is None:
            return
        try:
            if self._index.flush_full_files():
                self._checkpoint.index_msg_timestamp_ms = self._index.full_until_ms
                self._checkpoint.flush()
        except (StoreError, OSError) as error:
            if isinstance(error, OSError) and is_out_of_descriptors(error):
                raise
            raise self._flags.final(error) from error

    def finish(self, mark: FlushMark) -> FlushMark:
        """Sync the whole index before an orderly stop; return the mark with the index's final state.

        The checkpoint's index time advances, in memory. Blocks.

        Raises:
            DiskFull, FlushFailed: there is no room for a new index file, or the sync failed.
        """
        index = self._index
        if index is None:
            return mark
        try:
            index.complete()
        except (FlushFailed, OSError) as error:  # the next start rebuilds it
            self._note_failure(error, index)
            return mark
        index.flush_full_files()
        index.flush()
        self._checkpoint.index_msg_timestamp_ms = index.full_until_ms
        if self.has_gap:  # the next start tries again
            return mark
        return mark._replace(index_offset=index.position, index_digest=index.digest)


class _IndexAlone:
    """Feeds the index what it lacks, while its own `dispatch` does nothing."""

    def __init__(self, index: IndexService) -> None:
        self._index = index

    def dispatch(self, batch: DispatchBatch) -> None:
        self._index.apply(batch)
