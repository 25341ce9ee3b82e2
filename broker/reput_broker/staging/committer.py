"""Commit batches one at a time: decide each by a synced intent, publish it, and close it with a marker.

The steps, and what a kill leaves:

1. The stagings are read completely and the intent is synced. Before that, nothing has changed.
2. The records are appended. The next start finds those that are in the log, and appends the others before it serves.
3. The marker is appended and the log synced. The batch is then committed; a repeated commit is only answered.
4. The intent and the stagings are removed. The next start removes what is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import structlog
import trio

from reput_broker.put.appender import Appender
from reput_broker.put.flush_service import FlushCommitLogService
from reput_broker.put.group_transfer import GroupTransfer
from reput_broker.request import Refusal
from reput_broker.staging.batches import Batch, marker_of
from reput_broker.staging.decision import Decision
from reput_broker.staging.intent import Intent
from reput_broker.staging.publisher import Publisher
from reput_broker.staging.queue_records import records_from
from reput_broker.staging.staging_file import PlacedBlock, StagingFile
from reput_broker.staging.staging_state import StagingState
from reput_broker.staging.staging_table import remove
from reput_broker.store.errors import StoreDamaged
from reput_broker.store.message_store import MessageStore
from reput_broker.store.results import PutResult
from reput_broker.tables.tables import Tables
from reput_protocol.codes import Perm
from reput_protocol.commands.stage import StagedPart
from reput_protocol.commands.topic import TopicConfig
from reput_protocol.errors import ErrorCode
from reput_protocol.names import SINK_TOPIC
from reput_protocol.printable import counted
from reput_protocol.properties import KEYS, encode_properties
from reput_protocol.record.record import Record

log = structlog.get_logger(__name__)

_RETRY_INTERVAL_S: Final = 1.0
_MARKER_QUEUE: Final = 0
_REMEDY: Final = "bring it back, or move staging/intent away to start with the batch published in part"


class Commit(NamedTuple):
    """A requested commit."""

    query_id: str
    batch_id: int
    parts: Sequence[StagedPart]


class Committed(NamedTuple):
    """The result of a commit."""

    batch: Batch
    repeated: bool


class Committer:
    """Commits batches. Concurrent calls of `commit` are processed in order.

    Args:
        tables: of the broker; the topic of the markers is created at first use.
        may_write: tells whether a queue of a topic accepts messages.
    """

    def __init__(
        self,
        store: MessageStore,
        appender: Appender,
        flush: FlushCommitLogService,
        transfer: GroupTransfer,
        publisher: Publisher,
        state: StagingState,
        tables: Tables,
        may_write: Callable[[str, int], bool],
    ) -> None:
        self._store = store
        self._appender = appender
        self._flush = flush
        self._transfer = transfer
        self._publisher = publisher
        self._staging = state.staging
        self._batches = state.batches
        self._intents = state.intents
        self._topics = tables.topics
        self._topics_saver = tables.topic_saver
        self._may_write = may_write
        self._clock_ms = state.clock_ms
        self._lock = trio.Lock()
        self._dropped: list[StagingFile] = []
        self.decision = Decision(store, flush, state.intents)
        self._retry = trio.Event()

    # -- at a start --------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Read which batches are committed, and complete the decided one, before anything is served.

        Waits while the disk is full. If the store accepts no messages at all, the intent stays for
        the next start.

        Raises:
            StoreError, OSError: intent, stagings, log or markers cannot be read. The intent stays.
        """
        await self._read_markers()
        intent = await trio.to_thread.run_sync(self._intents.read)
        if intent is not None and self._batches.is_committed(intent.query_id, intent.batch_id):
            await trio.to_thread.run_sync(self._intents.remove)
            intent = None
        done = [file for file in self._staging.all() if self._batches.is_committed(*file.key[:2])]
        self._dropped += self._staging.forget(done)
        await self.remove_dropped()
        if intent is None:
            return
        started_at = time.monotonic()
        with self.decision.about(intent.query_id, intent.batch_id):
            try:
                await self.decision.resume(intent, self._publisher, self._files_of(intent))
            except StoreDamaged as error:
                raise self._for_a_start(error) from error
        found = sum(self.decision.counts.values())
        while True:
            try:
                await self._complete(intent)
            except Refusal as refusal:
                cause, is_full = refusal.__cause__, refusal.error is ErrorCode.DISK_FULL
                if isinstance(cause, StoreDamaged):  # waiting does not help
                    raise self._for_a_start(cause) from cause
                if isinstance(cause, OSError) and not is_full:
                    raise cause from None
                log.error(
                    "sink_batch_waits", **_names(intent), detail=refusal.text, hint="the broker retries"
                )
                if refusal.error is ErrorCode.READ_ONLY and self._store.read_only_reason is not None:
                    return
                await trio.sleep(_RETRY_INTERVAL_S)
            else:
                break
        await self.remove_dropped()
        log.info(
            "sink_batch_completed",
            **_names(intent),
            messages=intent.messages,
            found=found,
            duration_s=round(time.monotonic() - started_at, 3),
        )

    def _for_a_start(self, error: StoreDamaged) -> StoreDamaged:
        """For a damaged staging, add the remedy that its batch is decided."""
        if error.file.parent != self._staging.directory:
            return error
        return StoreDamaged(error.file, error.position, error.reason, _REMEDY)

    async def _read_markers(self) -> None:
        end = self._store.max_offset_in_queue(SINK_TOPIC, _MARKER_QUEUE)
        start = min(self._batches.next_marker, end)
        self._batches.next_marker = start
        async for record in records_from(self._store, SINK_TOPIC, _MARKER_QUEUE, start):
            try:
                self._batches.note(record.body, record.queue_offset, record.physical_offset)
            except (ValueError, KeyError, TypeError):
                log.warning(
                    "sink_marker_strange", queue_offset=record.queue_offset, hint="not written by this broker"
                )

    def _files_of(self, intent: Intent) -> list[StagingFile]:
        files = []
        for staging_id in intent.staging_ids:
            file = self._staging.get(staging_id)
            if file is None or not file.ended:
                raise StoreDamaged(
                    self._staging.directory / f"{staging_id}.stage",
                    0,
                    f"it is missing or incomplete, and batch {intent.batch_id} of query {intent.query_id} is decided",
                    _REMEDY,
                )
            files.append(file)
        return files

    # -- a commit ----------------------------------------------------------------------------------------------

    async def commit(self, wanted: Commit) -> Committed:
        """Publish a batch unless it has been; return when it is durable. Call `remove_dropped` after the
        answer.

        Raises:
            Refusal: it is not committed and nothing is published, unless the text says that the
                batch is decided.
        """
        async with self._lock:
            await self._complete_earlier(wanted)
            last = self._batches.last(wanted.query_id)
            if last is not None and wanted.batch_id <= last.batch_id:
                self._drop(wanted.query_id, last.batch_id)
                return Committed(last, repeated=True)
            self._check_writable()
            # The intent will name these stagings, so none of them may be removed from now on.
            with self.decision.about(wanted.query_id, wanted.batch_id):
                intent = await self._prepare(wanted)
                try:
                    await self.decision.make(intent)
                    return Committed(await self._complete(intent), repeated=False)
                except Refusal as refusal:
                    if self.decision.intent is None:
                        raise
                    self._retry.set()
                    raise _decided(intent, refusal) from refusal

    async def _prepare(self, wanted: Commit) -> Intent:
        """Read the whole batch and return its intent, without any effect.

        Raises:
            Refusal: the batch is incomplete, unreadable or its queues are closed.
        """
        files = self._checked(wanted)
        blocks: list[PlacedBlock] = []
        try:
            for file in files:
                blocks += await trio.to_thread.run_sync(file.verify)
        except StoreDamaged as error:
            raise Refusal(ErrorCode.INTERNAL, f"{error}; stage the batch again") from error
        self._check_queues(blocks)
        await self._make_topic()
        return Intent(
            wanted.query_id,
            wanted.batch_id,
            [file.key.staging_id for file in files],
            sum(file.messages for file in files),
            self._publisher.places(blocks),
        )

    def _check_writable(self) -> None:
        """Refuse to decide a batch that would have to wait."""
        store = self._store
        if store.read_only_reason is not None:
            raise Refusal(
                ErrorCode.READ_ONLY, f"{store.read_only_reason}; see the broker's log, then commit again"
            )
        if store.disk_full_reason is not None:
            raise Refusal(
                ErrorCode.DISK_FULL, f"{store.disk_full_reason}; free disk space, then commit again"
            )

    def _check_queues(self, blocks: Sequence[PlacedBlock]) -> None:
        """Refuse a batch that consumers could not read: a topic may have been deleted since the staging.

        Raises:
            Refusal: a queue accepts no messages any more.
        """
        for topic, queue_id in dict.fromkeys((block.topic, block.queue_id) for block in blocks):
            if not self._may_write(topic, queue_id):
                gone = self._topics.get(topic) is None
                raise Refusal(
                    ErrorCode.NO_TOPIC if gone else ErrorCode.NO_PERMISSION,
                    f"{f'topic {topic!r}' if gone else f'queue {topic}/{queue_id}'} was "
                    f"{'deleted' if gone else 'closed to messages'} after the batch had been staged; nothing of it "
                    "is published: make the topic again, then run the batch again",
                )

    async def _complete_earlier(self, wanted: Commit) -> None:
        intent = self.decision.intent
        if intent is None:
            return
        try:
            await self._complete(intent)
        except Refusal as refusal:
            if self.decision.covers(wanted.query_id, wanted.batch_id):
                raise _decided(intent, refusal) from refusal
            raise Refusal(
                refusal.error,
                f"batch {intent.batch_id} of query {intent.query_id} is decided and waits to be published: "
                f"{refusal.text}; commit again once that is done",
            ) from refusal

    def _checked(self, wanted: Commit) -> list[StagingFile]:
        """Return the stagings of a commit.

        Raises:
            Refusal: one is missing, incomplete or different from its description.
        """
        files: dict[str, StagingFile] = {}
        for part in wanted.parts:
            file = self._staging.get(part.staging_id)
            if file is None or (file.key.query_id, file.key.batch_id) != (wanted.query_id, wanted.batch_id):
                raise Refusal(
                    ErrorCode.NOT_FOUND,
                    f"staging {part.staging_id} of batch {wanted.batch_id} does not exist: it was aborted, or its "
                    "query was idle for longer than sink.staging_timeout; run the batch again",
                )
            if not file.ended or (file.messages, file.checksum) != (part.messages, part.checksum):
                raise Refusal(
                    ErrorCode.INVALID_ARGUMENT,
                    f"staging {part.staging_id} has {counted(file.messages, 'message')} with checksum {file.checksum}"
                    f"{'' if file.ended else ', and was not ended'}, but the commit names {part.messages} with "
                    f"{part.checksum}; run the batch again",
                )
            files[part.staging_id] = file
        return list(files.values())

    async def _make_topic(self) -> None:
        if self._topics.get(SINK_TOPIC) is None:
            self._topics.put(
                TopicConfig(topic_name=SINK_TOPIC, read_queue_nums=1, write_queue_nums=1, perm=Perm.READ)
            )
        try:
            await self._topics_saver.save()
        except OSError as error:
            raise Refusal(
                ErrorCode.DISK_FULL, f"topics.json cannot be written: {error}; commit again"
            ) from error

    async def _complete(self, intent: Intent) -> Batch:
        """Publish the rest of the decided batch, and close it.

        Raises:
            Refusal: that is impossible now; the batch stays decided. Damage is the refusal's cause.
        """
        decision = self.decision
        await decision.ensure_written()
        try:
            end = await self._publisher.publish(self._files_of(intent), decision.counts)
            batch = Batch(intent.batch_id, intent.messages, self._clock_ms())
            marker = await self._append_marker(intent.query_id, batch)
            end = max(end, marker.end_offset)
            await self._flush.flushed_to(end)
            await self._transfer.confirmed_to(end)  # else a failover could take back what was committed
        except (OSError, StoreDamaged) as error:
            raise Refusal(ErrorCode.READ_ONLY, str(error)) from error
        self._batches.note(marker_of(intent.query_id, batch), marker.queue_offset, marker.physical_offset)
        # It is committed; the rest is cleaning up.
        await decision.close()
        self._drop(intent.query_id, intent.batch_id)
        return batch

    async def _append_marker(self, query_id: str, batch: Batch) -> PutResult:
        host = self._store.options.host
        record = Record(
            SINK_TOPIC,
            marker_of(query_id, batch),
            queue_id=_MARKER_QUEUE,
            born_timestamp_ms=batch.committed_ms,
            born_host=host,
            store_host=host,
            properties=encode_properties({KEYS: query_id}),
        )
        size = len(record.body) + len(record.properties) + 256
        return await self._appender.append_own(size, lambda: self._store.put_record(record), SINK_TOPIC)

    def _drop(self, query_id: str, batch_id: int) -> None:
        done = [file for file in self._staging.of(query_id) if file.key.batch_id <= batch_id]
        self._dropped += self._staging.forget(done)

    async def remove_dropped(self) -> None:
        """Remove the files of dropped stagings; separate from the commit, because large files take
        long."""
        files, self._dropped = self._dropped, []
        if not files:
            return
        try:
            await trio.to_thread.run_sync(remove, files)
        except OSError as error:
            log.warning("staging_not_removed", detail=str(error), hint="the next start removes it")

    # -- background ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Complete a decided batch that could not be published, until cancelled."""
        while True:
            await self._retry.wait()
            self._retry = trio.Event()
            while self.decision.intent is not None:
                await trio.sleep(_RETRY_INTERVAL_S)
                async with self._lock:
                    intent = self.decision.intent
                    if intent is None:
                        break
                    try:
                        await self._complete(intent)
                    except Refusal as refusal:
                        log.warning(
                            "sink_batch_waits",
                            **_names(intent),
                            detail=refusal.text,
                            hint="the broker retries",
                        )
                    else:
                        log.info("sink_batch_completed", **_names(intent), messages=intent.messages)
                        await self.remove_dropped()


def _names(intent: Intent) -> dict[str, object]:
    return {"query_id": intent.query_id, "batch_id": intent.batch_id}


def _decided(intent: Intent, refusal: Refusal) -> Refusal:
    return Refusal(
        refusal.error,
        f"batch {intent.batch_id} is decided, and will be published once this is over: {refusal.text}; do not write it "
        "again under another query or key",
    )
