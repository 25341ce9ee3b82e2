"""The decided batch: in memory, on disk, and its progress.

`staging/intent` tells a start from where on the log may hold the batch. Before two events it is rewritten with correct
places: a start whose log ends earlier than it did at the decision, and the deletion of log files with the beginning of
an unfinished batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import structlog
import trio

from reput_broker.put.flush_service import FlushCommitLogService
from reput_broker.request import Refusal
from reput_broker.staging.intent import Intent, IntentFile, QueuePlace
from reput_broker.staging.publisher import Publisher, Queue
from reput_broker.staging.staging_file import StagingFile
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ErrorCode, ReputError

log = structlog.get_logger(__name__)


class Decision:
    """At most one batch at a time. Belongs to the event loop."""

    def __init__(self, store: MessageStore, flush: FlushCommitLogService, intents: IntentFile) -> None:
        self._store = store
        self._flush = flush
        self._intents = intents
        self.intent: Intent | None = None
        self.counts: dict[Queue, int] = {}
        """How many of its messages are in the log, by queue."""
        self._in_work: tuple[str, int] | None = None
        self._is_written = True
        self._log_start = 0
        self._saved = 0
        self._file_lock = trio.Lock()

    def covers(self, query_id: str, batch_id: int) -> bool:
        """Whether a batch is decided or about to be, so that its stagings must stay."""
        intent = self.intent
        names = None if intent is None else (intent.query_id, intent.batch_id)
        return (query_id, batch_id) in (names, self._in_work)

    @contextmanager
    def about(self, query_id: str, batch_id: int) -> Iterator[None]:
        """Keep the stagings of a batch within the context, in which it is checked and decided."""
        self._in_work = (query_id, batch_id)
        try:
            yield
        finally:
            self._in_work = None

    async def make(self, intent: Intent) -> None:
        """Decide a batch.

        Raises:
            Refusal: it is not decided; or it cannot be ruled out that it is, and then `intent` is
                set.
        """
        with trio.CancelScope(shield=True):
            async with self._file_lock:
                written = True
                try:
                    await trio.to_thread.run_sync(self._intents.write, intent)
                except (OSError, ReputError) as error:
                    # It may have been written all the same. Only if that is ruled out, nothing is
                    # decided.
                    try:
                        await trio.to_thread.run_sync(self._intents.withdraw)
                    except (OSError, ReputError):
                        written = False
                    else:
                        raise Refusal(
                            ErrorCode.DISK_FULL, f"the batch cannot be decided: {error}; commit it again"
                        ) from error
                self.intent, self.counts, self._is_written = intent, {}, written
                self._saved = 0
                self._log_start = self._log_end()
        await self.ensure_written()

    async def resume(self, intent: Intent, publisher: Publisher, files: list[StagingFile]) -> None:
        """Continue with the batch that a start found decided.

        If the log ends earlier than at the decision (unsynced messages of others were lost), the batch will be
        published before the places that the intent names, so they are moved back for the next start.

        Raises:
            StoreError, OSError: log or stagings cannot be read.
        """
        places = [
            place._replace(look_from=min(place.look_from, self._end_of(place))) for place in intent.queues
        ]
        held = replace(intent, queues=places)
        async with self._file_lock:  # keeps the log files that are being read
            self.counts = await publisher.count_published(held, files)
            self.intent, self._is_written = held, places == intent.queues
            self._saved = sum(place.published for place in places)
            self._log_start = 0

    async def ensure_written(self) -> None:
        """Write the intent, if necessary, before anything of the batch is published.

        Raises:
            Refusal: it cannot be written now; the batch stays decided.
        """
        async with self._file_lock:
            intent = self.intent
            if intent is None or self._is_written:
                return
            try:
                await trio.to_thread.run_sync(self._intents.write, intent)
            except (OSError, ReputError) as error:
                raise Refusal(
                    ErrorCode.DISK_FULL, f"{self._intents.path} cannot be written: {error}"
                ) from error
            self._is_written = True

    async def close(self) -> None:
        """End the decision: the batch is published and its marker durable. A leftover intent is
        removed by the next start."""
        self.intent, self.counts = None, {}
        async with self._file_lock:
            try:
                await trio.to_thread.run_sync(self._intents.remove)
            except OSError as error:
                log.warning("sink_intent_not_removed", detail=str(error), hint="the next start removes it")

    async def save_progress(self) -> None:
        """Record how much of the batch is in the log, before files of the log are deleted.

        Otherwise a start that misses the beginning of the batch would publish all of it again.

        Raises:
            Refusal: the log cannot be synced.
            OSError, StoreError: the intent cannot be written, and files before the last may hold
                messages of the batch.
        """
        async with self._file_lock:
            intent, published = self.intent, sum(self.counts.values())
            if intent is None or published == self._saved:
                return
            places = [
                QueuePlace(
                    place.topic,
                    place.queue_id,
                    self.counts.get((place.topic, place.queue_id), 0),
                    self._end_of(place),
                )
                for place in intent.queues
            ]
            end = self._log_end()
        await self._flush.flushed_to(end)
        async with self._file_lock:
            if self.intent is not intent:
                return
            try:
                await trio.to_thread.run_sync(self._intents.write, replace(intent, queues=places))
            except (OSError, ReputError) as error:
                if self._log_start < last_file_start(self._store):
                    raise
                log.warning("sink_progress_not_saved", detail=str(error), hint="free disk space")
                return
            self._is_written, self._saved = True, published

    def _end_of(self, place: QueuePlace) -> int:
        return self._store.max_offset_in_queue(place.topic, place.queue_id)

    def _log_end(self) -> int:
        return self._store.max_physical_offset + self._store.commit_behind_bytes


def last_file_start(store: MessageStore) -> int:
    """Return where the last file of the log begins, which is never deleted."""
    end = store.max_physical_offset
    return end - end % store.options.commit_log_file_size
