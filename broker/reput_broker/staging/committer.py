"""Commit batches one at a time: decide each by a marker in the log, publish it, and close it with another marker.

The steps, and what is left if the broker is killed, or another one becomes the master:

1. The stagings are read completely; of an elected master they are copied into the log. Nothing is decided yet.
2. The marker that decides the batch is appended. A master that has it in its log completes the batch before it takes
   anything new. One that does not has no message of the batch either, since they follow the marker.
3. The messages are appended. The next master finds those that are in its log, and appends the others.
4. The marker that closes the batch is appended and synced, and the commit answered once the in-sync set has it. From
   then on every master answers that the batch is committed.
5. The stagings are removed. The next start removes what is left.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
import trio

from reput_broker.remoting.request import Refusal
from reput_broker.staging.batches import (
    CommittedBatch,
    Decision,
    Intent,
    Publisher,
    StagedCopies,
    StagingFacts,
    StagingState,
    begin_marker,
    give_up_marker,
    is_intent,
    marker_of,
    read_intent,
    read_marker,
    records_from,
)
from reput_broker.staging.staging_file import PlacedBlock, StagingFile, remove
from reput_broker.store.base.errors import StoreDamaged
from reput_broker.store.base.file_io import is_no_space
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.tenure.core import Core
from reput_protocol.commands.base import read_members
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
_GIVE_UP: Final = "give-up"
_OF_EARLIER_VERSIONS: Final = "intent"
_REMEDY: Final = f"bring it back, or make a file staging/{_GIVE_UP} to start with the batch published in part"


class Commit(NamedTuple):
    """A requested commit."""

    query_id: str
    batch_id: int
    parts: Sequence[StagedPart]


class Committed(NamedTuple):
    """The result of a commit."""

    batch: CommittedBatch
    repeated: bool


class Committer:
    """Commits batches. Concurrent calls of `commit` are processed in order."""

    def __init__(self, core: Core, state: StagingState) -> None:
        self._store = store = core.store
        self._core = core
        self._publisher = Publisher(core)
        self._staging = state.staging
        self._batches = state.batches
        self._copies = StagedCopies(core, self._publisher.piece_max)
        self._lock = trio.Lock()
        self._dropped: list[StagingFile] = []
        self._closed_at = 0
        self._begun: tuple[Intent, int] | None = None
        self.decision = Decision(store)
        self._retry = trio.Event()

    # -- at a start --------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Read which batches are committed, before anything is served; `complete_begun` follows.

        Raises:
            StoreError, OSError: stagings, log or markers cannot be read. The batch stays decided.
        """
        self._begun = await self._read_markers()
        intent = None if self._begun is None else self._begun[0]
        staging = self._staging
        self._check_no_other_intent(staging.directory / _OF_EARLIER_VERSIONS)
        decided = () if intent is None else [facts.staging_id for facts in intent.stagings]
        await trio.to_thread.run_sync(staging.load, trio.current_time(), decided)
        done = [file for file in staging.all() if self._batches.is_committed(*file.key[:2])]
        self._dropped += staging.forget(done)
        await self.remove_dropped()
        if intent is None:
            self.decision.close()

    @property
    def begun(self) -> str | None:
        """The decided batch that `recover` has found, in words, until it is completed; None without one."""
        if self._begun is None:
            return None
        return f"batch {self._begun[0].batch_id} of query {self._begun[0].query_id}"

    async def complete_begun(self) -> None:
        """Complete the decided batch that `recover` has found, before the broker takes any change.

        Waits while the disk is full. If the store accepts no messages at all, the batch stays for the next start.

        Raises:
            StoreError, OSError: stagings or log cannot be read. The batch stays decided.
        """
        if self._begun is None:
            return
        intent, decided_at = self._begun
        with self.decision.about(intent.query_id, intent.batch_id):
            try:
                await self._complete_at_start(intent, decided_at)
            except StoreDamaged as error:
                give_up = self._staging.directory / _GIVE_UP
                if not await trio.to_thread.run_sync(give_up.exists):
                    raise self._for_a_start(error) from error
                await self._give_up(intent, give_up, str(error))
        self._begun = None

    async def _complete_at_start(self, intent: Intent, decided_at: int) -> None:
        started_at = time.monotonic()
        found = 0
        while True:
            try:
                if self.decision.intent is None:
                    await self._resume(intent, decided_at)
                    found = sum(self.decision.counts.values())
                await self._complete(intent)
            except Refusal as refusal:
                cause, is_full = refusal.__cause__, refusal.error is ErrorCode.DISK_FULL
                if isinstance(cause, StoreDamaged):  # waiting does not help
                    raise cause from None
                if isinstance(cause, OSError) and not is_full:
                    raise cause from None
                self._log_waiting(intent, refusal.text)
                if refusal.error is ErrorCode.READ_ONLY and self._store.read_only_reason is not None:
                    return
            except OSError as error:
                if not is_no_space(error):
                    raise
                self._log_waiting(intent, str(error))
            else:
                break
            await trio.sleep(_RETRY_INTERVAL_S)
        await self.remove_dropped()
        log.info(
            "sink_batch_completed",
            **_names(intent),
            messages=intent.messages,
            found=found,
            duration_s=round(time.monotonic() - started_at, 3),
        )

    def _log_waiting(self, intent: Intent, detail: str) -> None:
        log.error("sink_batch_waits", **_names(intent), detail=detail, hint="the broker retries")

    async def _resume(self, intent: Intent, decided_at: int) -> None:
        """Continue with the batch that a start found decided.

        Its stagings are those of this broker; another master's are restored from their copies.
        """
        try:
            files = self._files_of(intent)
            for file in files:
                await trio.to_thread.run_sync(file.verify)
        except StoreDamaged:
            if intent.copies is None:
                raise
            self._staging.forget(
                [file for file in self._staging.of(intent.query_id) if file.key.batch_id == intent.batch_id]
            )
            files = await self._copies.restore(intent, self._staging.directory)
            for file in files:
                self._staging.add(file)
        counts = await self._publisher.count_published(intent, files)
        if intent.copies is not None:
            await self._restore_topics(intent, decided_at)
        begins_at = decided_at if intent.copies is None else intent.copies.physical_offset
        self.decision.make(intent, counts, begins_at)

    async def _restore_topics(self, intent: Intent, decided_at: int) -> None:
        """Create the topics that this broker had not received from its master yet."""
        for members in intent.topics:
            settings = read_members(TopicConfig, members)
            if not self._store.is_deleted(settings.topic_name, decided_at):
                self._core.tables.topics.restore(settings)
        await self._core.tables.topic_saver.save()

    async def _give_up(self, intent: Intent, asked_by: Path, reason: str) -> None:
        await self._append_marker(intent.query_id, give_up_marker(intent), lambda _: self.decision.close())
        await trio.to_thread.run_sync(asked_by.unlink)
        log.error("sink_batch_given_up", **_names(intent), reason=reason, hint="it is published in part")

    def _check_no_other_intent(self, path: Path) -> None:
        if path.exists():
            raise StoreDamaged(
                path,
                0,
                "an earlier version of Reput has left a batch of a sink published in part",
                "start that version once, which completes the batch",
            )

    def _for_a_start(self, error: StoreDamaged) -> StoreDamaged:
        """For a damaged staging, add the remedy that its batch is decided."""
        if error.file.parent != self._staging.directory:
            return error
        return StoreDamaged(error.file, error.position, error.reason, _REMEDY)

    async def _read_markers(self) -> tuple[Intent, int] | None:
        """Read the markers that the table of batches lacks; return the batch that is decided and not closed, and the
        log offset of its marker.
        """
        end = self._store.max_offset_in_queue(SINK_TOPIC, _MARKER_QUEUE)
        if self._batches.next_marker > end:
            # A slave that led before it had the end of its master's log has that master's table.
            log.warning("sink_batches_read_again", markers=end, table=self._batches.next_marker)
            self._batches.forget_all()
        self._closed_at = self._store.max_physical_offset
        found: tuple[Intent, int] | None = None
        async for record in records_from(self._store, SINK_TOPIC, _MARKER_QUEUE, self._batches.next_marker):
            try:
                members: dict[str, Any] = json.loads(record.body)
                if is_intent(members):
                    intent = read_intent(members)
                    found = None if intent is None else (intent, record.physical_offset)
                else:
                    query_id, batch = read_marker(members)
                    self._batches.note(query_id, batch, record.queue_offset, record.physical_offset)
                    found = None
            except (ValueError, KeyError, TypeError):
                log.warning("sink_marker_strange", queue_offset=record.queue_offset, hint="not written by this broker")
        return found

    def _files_of(self, intent: Intent) -> list[StagingFile]:
        files = []
        for facts in intent.stagings:
            file = self._staging.get(facts.staging_id)
            if file is None or not file.ended:
                raise StoreDamaged(
                    self._staging.directory / StagingFile.name_of(intent.key_of(facts)),
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
            committed = await self._commit(wanted)
        await self.confirmed()
        return committed

    async def confirmed(self) -> None:
        """Wait until no failover can take back the batches of the table.

        Raises:
            Refusal: that takes too long.
        """
        await self._core.puts.progress.confirmed_to(self._closed_at)

    async def _commit(self, wanted: Commit) -> Committed:
        await self._complete_earlier(wanted)
        last = self._batches.last(wanted.query_id)
        if last is not None and wanted.batch_id <= last.batch_id:
            self._drop(wanted.query_id, last.batch_id)
            return Committed(last, repeated=True)
        self._check_writable()
        # The marker will name these stagings, so none of them may be removed from now on.
        with self.decision.about(wanted.query_id, wanted.batch_id):
            intent = await self._decide(wanted)
            try:
                return Committed(await self._complete(intent), repeated=False)
            except Refusal as refusal:
                self._retry.set()
                raise _decided(intent, refusal) from refusal

    async def _decide(self, wanted: Commit) -> Intent:
        """Read the whole batch and append the marker that decides it.

        Raises:
            Refusal: the batch is incomplete, unreadable, or its queues are closed; or the store takes nothing more.
        """
        files = self._checked(wanted)
        blocks: list[PlacedBlock] = []
        new: set[str] = set()
        try:
            for file in files:
                found = await trio.to_thread.run_sync(file.verify)
                blocks += found
                new |= {one.topic for one in found if file.new_topics is None or one.topic in file.new_topics}
        except StoreDamaged as error:
            raise Refusal(ErrorCode.INTERNAL, f"{error}; stage the batch again") from error
        for topic in sorted(new):
            if self._core.tables.topics.get(topic) is None:
                await self._core.topic_access.create_on_send(topic)
        self._check_queues(blocks)
        try:
            copies = None if self._store.confirm_offset is None else await self._copies.write(files)
        except OSError as error:
            raise Refusal(ErrorCode.INTERNAL, f"{error}; commit again") from error
        intent = Intent(
            wanted.query_id,
            wanted.batch_id,
            [_facts_of(file) for file in files],
            sum(file.messages for file in files),
            self._publisher.places(blocks),
            self._settings_of(blocks),
            copies,
        )

        await self._begin(intent)
        return intent

    def _settings_of(self, blocks: Sequence[PlacedBlock]) -> list[dict[str, Any]]:
        found = (self._core.tables.topics.get(topic) for topic in dict.fromkeys(block.topic for block in blocks))
        return [settings.to_members() for settings in found if settings is not None]

    def _check_writable(self) -> None:
        """Refuse to decide a batch that would have to wait."""
        store = self._store
        if store.read_only_reason is not None:
            raise Refusal(ErrorCode.READ_ONLY, f"{store.read_only_reason}; see the broker's log, then commit again")
        if store.disk_full_reason is not None:
            raise Refusal(ErrorCode.DISK_FULL, f"{store.disk_full_reason}; free disk space, then commit again")

    def _check_queues(self, blocks: Sequence[PlacedBlock]) -> None:
        """Refuse a batch that consumers could not read: a topic may have been deleted since the staging.

        Raises:
            Refusal: a queue accepts no messages any more.
        """
        for topic, queue_id in dict.fromkeys((block.topic, block.queue_id) for block in blocks):
            if not self._core.topic_access.may_write(topic, queue_id):
                gone = self._core.tables.topics.get(topic) is None
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
                    f"staging {part.staging_id} of batch {wanted.batch_id} does not exist: it was aborted, its "
                    "query was idle for longer than sink.staging_timeout, or another broker has become the master; "
                    "run the batch again",
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

    async def _complete(self, intent: Intent) -> CommittedBatch:
        """Publish the rest of the decided batch, and close it.

        Raises:
            Refusal: that is impossible now; the batch stays decided. Damage is the refusal's cause.
        """
        try:
            await self._publisher.publish(self._files_of(intent), self.decision.counts)
        except (OSError, StoreDamaged) as error:
            raise Refusal(ErrorCode.READ_ONLY, str(error)) from error
        batch = CommittedBatch(intent.batch_id, intent.messages, self._core.clock_ms())

        marker = await self._close(intent, batch)
        await self._core.puts.progress.flushed.reached(marker.end_offset)
        self._batches.note(intent.query_id, batch, marker.queue_offset, marker.physical_offset)
        self._drop(intent.query_id, intent.batch_id)
        return batch

    async def _begin(self, intent: Intent) -> None:
        def decided(marker: PutResult) -> None:
            copies = intent.copies
            begins_at = marker.physical_offset if copies is None else copies.physical_offset
            self.decision.make(intent, {}, begins_at)

        await self._append_marker(intent.query_id, begin_marker(intent), decided)

    async def _close(self, intent: Intent, batch: CommittedBatch) -> PutResult:
        def closed(marker: PutResult) -> None:
            self._closed_at = marker.end_offset
            self.decision.close()

        return await self._append_marker(intent.query_id, marker_of(intent.query_id, batch), closed)

    async def _append_marker(self, query_id: str, body: bytes, then: Callable[[PutResult], None]) -> PutResult:
        """Append a marker, and call `then` before any other task runs.

        Raises:
            Refusal: nothing was stored.
        """
        host = self._store.options.host
        record = Record(
            SINK_TOPIC,
            body,
            queue_id=_MARKER_QUEUE,
            born_timestamp_ms=self._core.clock_ms(),
            born_host=host,
            store_host=host,
            properties=encode_properties({KEYS: query_id}),
        )

        def put() -> PutResult:
            result = self._store.put_record(record)
            if result.status is PutStatus.PUT_OK:
                then(result)
            return result

        size = len(record.body) + len(record.properties) + 256
        return await self._core.puts.appender.append_or_refuse(size, put, SINK_TOPIC)

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
                            "sink_batch_waits", **_names(intent), detail=refusal.text, hint="the broker retries"
                        )
                    else:
                        log.info("sink_batch_completed", **_names(intent), messages=intent.messages)
                        await self.remove_dropped()


def _facts_of(file: StagingFile) -> StagingFacts:
    key = file.key
    return StagingFacts(key.staging_id, key.partition_id, file.born_host.hex(), file.size, file.messages, file.checksum)


def _names(intent: Intent) -> dict[str, object]:
    return {"query_id": intent.query_id, "batch_id": intent.batch_id}


def _decided(intent: Intent, refusal: Refusal) -> Refusal:
    return Refusal(
        refusal.error,
        f"batch {intent.batch_id} is decided, and will be published once this is over: {refusal.text}; do not write it "
        "again under another query or key",
    )
