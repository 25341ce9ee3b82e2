"""STAGE_RECORDS, END_STAGING, COMMIT_STAGED, ABORT_STAGED and QUERY_STAGED, all our own (docs/protocol.md), and what
serves them.

Staged records are checked like a put, so a commit need not check them again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple

import structlog
import trio

from reput_broker.put.appender import malformed
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves
from reput_broker.staging.batches import StagingState
from reput_broker.staging.committer import Commit, Committer
from reput_broker.staging.staging_file import STAGING_ID, StagingFile, StagingKey, SyncAhead, remove
from reput_broker.store.base.errors import DiskFull
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.config_file import DataVersion, encode
from reput_broker.tables.table_saver import SaveSoon
from reput_broker.tenure.core import Core
from reput_protocol.buffers import Buffer
from reput_protocol.codes import RequestCode
from reput_protocol.commands import stage as commands
from reput_protocol.errors import ErrorCode, RecordMalformed, ReputError
from reput_protocol.kernel.records import COLUMNS, scan_records
from reput_protocol.printable import counted
from reput_protocol.record.layout import BLANK_BYTES
from reput_protocol.record.put_block import BLOCK_BYTES_MAX, BlockLimits, check_put_block

log = structlog.get_logger(__name__)


class CheckedBlocks(NamedTuple):
    """The valid blocks of a request."""

    blocks: list[commands.StagedBlock]
    sealed: bool
    """Whether a record holds a checksum over itself."""


def queues_of(checked: CheckedBlocks) -> set[tuple[str, int]]:
    """Return the topics and queues of blocks."""
    return {(block.topic, block.queue_id) for block in checked.blocks}


def check_staged(body: Buffer, limits: BlockLimits, record_max: int) -> CheckedBlocks:
    """Check the blocks of a request, which must hold nothing else.

    Raises:
        RecordMalformed: a block or record is invalid, or larger than `record_max` bytes.
    """
    blocks = list(commands.staged_blocks(body))
    sealed = False
    for block in blocks:
        data = memoryview(body)[block.start : block.end]
        check = check_put_block(data, topic=block.topic, queue_id=block.queue_id, count=block.messages, limits=limits)
        sealed = sealed or bool(check.sealed)
        _check_records(data, record_max)
    return CheckedBlocks(blocks, sealed)


def _check_records(data: memoryview, record_max: int) -> None:
    """Refuse records that are too large for a file of the log or have no unique id.

    A start recognises published records by their unique ids.
    """
    table, *_ = scan_records(data, 0, len(data))
    width = len(COLUMNS)
    sizes, id_sizes = table[COLUMNS.index("size") :: width], table[COLUMNS.index("unique_id_size") :: width]
    for index, (size, id_size) in enumerate(zip(sizes, id_sizes, strict=True)):
        if size > record_max:
            reason = (
                f"the record has {size} bytes, but a file of the log holds {record_max} (store.commit_log_file_size)"
            )
        elif not id_size:
            reason = "it has no unique id; give each record a property UNIQ_KEY"
        else:
            continue
        raise RecordMalformed(index, table[width * index], reason)


QUERY_ID_MAX: Final = 200
_FILES_AT_ONCE: Final = 2
_COMMITS_WAITING_MAX: Final = 256
_EXPIRY_INTERVAL_MAX_S: Final = 60.0


class _Waiting(NamedTuple):
    request: Request
    commit: Commit


class StagingFeature(Processor):
    """Stages records, and commits or drops them, over an open storage."""

    def __init__(self, core: Core, state: StagingState) -> None:
        self._store = store = core.store
        self._topic_access = core.topic_access
        self._counters = core.counters
        self._requesters = core.groups.requesters
        self._config = core.config.sink
        self._staging = state.staging
        self._batches = state.batches
        self._saver = state.saver
        self._save_soon = SaveSoon(self._saver, "sinkBatches")
        self._committer = Committer(core, state)
        self._limits = BlockLimits(
            body_bytes_max=store.options.message_bytes_max,
            block_bytes_max=max(BLOCK_BYTES_MAX, store.options.message_bytes_max),
        )
        self._record_max = store.options.commit_log_file_size - BLANK_BYTES
        self._files = trio.CapacityLimiter(_FILES_AT_ONCE)
        self._ahead = SyncAhead()
        self._locks: dict[str, trio.Lock] = {}
        self._commits, self._wanted = trio.open_memory_channel[_Waiting](_COMMITS_WAITING_MAX)

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the background tasks."""
        return (self._run_commits, self._expire_idle, self._ahead.run, self._committer.run, self._save_soon.run)

    async def recover(self) -> None:
        """Read which batches are committed; see `Committer.recover`."""
        await self._committer.recover()
        self._save_soon.changed()

    @property
    def begun(self) -> str | None:
        """The decided batch that has to be completed first, in words; None without one."""
        return self._committer.begun

    async def complete_begun(self) -> None:
        """Complete that batch; see `Committer.complete_begun`."""
        await self._committer.complete_begun()
        self._save_soon.changed()

    def needed_from(self) -> int | None:
        """Return the log offset from which on the log is needed to complete a decided batch; None without one."""
        return self._committer.decision.begins_at

    async def before_delete(self) -> None:
        """Save the table of batches before log files are deleted, so that no deleted marker is missing in it.

        Raises:
            OSError, ReputError: something cannot be saved, and a file before the last one may hold
                what is missing.
        """
        try:
            await self._saver.save()
        except OSError as error:
            unsaved_from = self._batches.unsaved_from
            if unsaved_from is not None and unsaved_from < last_file_start(self._store):
                raise
            log.warning("table_not_saved", table="sinkBatches", detail=str(error), hint="free disk space")

    # -- batches -----------------------------------------------------------------------------------------------

    @serves(RequestCode.GET_SINK_BATCHES)
    def all_batches(self, _request: Request) -> Response:
        """Answer with the members of `config/sinkBatches.json`, as of now."""
        return Response(0, body=encode(self._batches.members()))

    def batches_version(self) -> DataVersion:
        """Return how often the table of batches changed."""
        return self._batches.version

    # -- staging -----------------------------------------------------------------------------------------------

    @serves(RequestCode.STAGE_RECORDS)
    async def stage(self, request: Request) -> Response:
        """Store staged blocks; the same blocks at the same position may be sent again."""
        header = commands.StageRecordsHeader.from_ext(request.ext)
        key = _key(header.query_id, header.batch_id, header.partition_id, header.staging_id)
        size = len(request.body)
        if await self._is_committed(key.query_id, key.batch_id):
            return _staged(request, header.position + size, kept=False)
        self._staging.touch(key.query_id)
        body = memoryview(request.body)
        async with self._lock(key.staging_id):
            file = self._staging.get(key.staging_id)
            done = self._done(file, key, header.position, size)
            if done == size and file is not None:
                return _staged(request, header.position + size)
            if self._staging.bytes + size - done > self._config.staging_size_max:
                raise Refusal(
                    ErrorCode.QUOTA,
                    f"{self._staging.bytes} bytes are staged, and at most {self._config.staging_size_max} may be "
                    "(sink.staging_size_max); stage again once other batches are committed",
                )
            if self._store.disk_full_reason is not None:
                raise Refusal(ErrorCode.DISK_FULL, f"{self._store.disk_full_reason}; free disk space, then stage again")
            try:
                await self._take(file, key, body[done:], request)
            except FileNotFoundError as error:
                raise Refusal(
                    ErrorCode.NOT_FOUND, f"staging {key.staging_id} has just been dropped; run the batch again"
                ) from error
            except (OSError, DiskFull) as error:
                raise Refusal(ErrorCode.DISK_FULL, f"{error}; nothing of this was staged") from error
            return _staged(request, header.position + size)

    def _done(self, file: StagingFile | None, key: StagingKey, position: int, size: int) -> int:
        """Return how many bytes of a repeated request are staged already.

        Raises:
            Refusal: it does not continue the staging.
        """
        has = 0 if file is None else file.size
        if file is not None and (file.key != key or (file.ended and position + size > has)):
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"staging {key.staging_id} belongs to another attempt, or was ended; use a new id for every attempt",
            )
        if not position <= has <= position + size and not position + size <= has:
            raise Refusal(
                ErrorCode.NOT_FOUND,
                f"staging {key.staging_id} has {has} bytes, but this request starts at {position}: the bytes between "
                "are lost; stage everything again under a new id",
            )
        return min(size, has - position)

    async def _take(self, file: StagingFile | None, key: StagingKey, body: memoryview, request: Request) -> None:
        """Check the blocks of a request like a put, and store them if their topics accept messages.

        If the staging already has blocks for all of these queues, one thread does everything.

        Raises:
            Refusal: a block is invalid, its queue closed, or the user may not send to its topic.
            OSError, DiskFull: they cannot be stored.
        """
        known = set()
        if file is not None:
            known = {
                queue
                for queue in file.queues
                if self._topic_access.may_write(*queue) and request.may("write", queue[0])
            }

        def check() -> CheckedBlocks:
            checked = check_staged(body, self._limits, self._record_max)
            if file is not None and known.issuperset(queues_of(checked)):
                file.append(body, checked.blocks, sealed=checked.sealed)
            return checked

        try:
            for block in commands.staged_blocks(body):
                self._requesters.sent(request.client, body[block.start : block.end])
            checked = await trio.to_thread.run_sync(check, limiter=self._files)
        except RecordMalformed as error:
            raise malformed(error, self._counters) from error
        if not checked.blocks:
            raise Refusal(ErrorCode.MALFORMED, "there is no block to stage; send at least one")
        if file is None or not known.issuperset(queues_of(checked)):
            for topic, _ in queues_of(checked):
                request.check("write", topic)
            new = {
                topic for topic, queue_id in queues_of(checked) if self._topic_access.writable(topic, queue_id) is None
            }
            for topic, queue_id in queues_of(checked):
                if topic in new:  # the commit creates it
                    self._topic_access.check_new(topic, queue_id)
            if file is None:
                file = await trio.to_thread.run_sync(
                    self._staging.create, key, request.client.born_host, limiter=self._files
                )
                self._staging.add(file)
            if file.new_topics is not None:
                file.new_topics |= new
            append = partial(file.append, body, checked.blocks, sealed=checked.sealed)
            await trio.to_thread.run_sync(append, limiter=self._files)
        self._staging.grown(file, len(body))
        self._ahead.grown(file)

    @serves(RequestCode.END_STAGING)
    async def end(self, request: Request) -> Response:
        """End a complete staging; answered once it is flushed."""
        header = commands.EndStagingHeader.from_ext(request.ext)
        if await self._is_committed(header.query_id, header.batch_id):
            return _staged(request, header.position, kept=False)
        async with self._lock(header.staging_id):
            file = self._staging.get(header.staging_id)
            if file is None or (file.key.query_id, file.key.batch_id) != (header.query_id, header.batch_id):
                raise Refusal(ErrorCode.NOT_FOUND, f"staging {header.staging_id} does not exist; stage all of it again")
            has = file.size, file.messages, file.checksum
            if has != (header.position, header.messages, header.checksum):
                raise Refusal(
                    ErrorCode.INVALID_ARGUMENT,
                    f"staging {header.staging_id} has {has[0]} bytes, {counted(has[1], 'message')} and checksum "
                    f"{has[2]}, not {header.position}, {header.messages} and {header.checksum}; stage all of it again "
                    "under a new id",
                )
            if not file.ended:
                try:
                    await trio.to_thread.run_sync(file.end, limiter=self._files)
                except (OSError, ReputError) as error:
                    raise Refusal(ErrorCode.DISK_FULL, f"{error}; end it again, or stage again") from error
            self._staging.touch(header.query_id)
            return _staged(request, header.position)

    async def _is_committed(self, query_id: str, batch_id: int) -> bool:
        """Whether a batch is committed, on every broker that may become the master.

        Raises:
            Refusal: that is not known yet.
        """
        if not self._batches.is_committed(query_id, batch_id):
            return False
        await self._committer.confirmed()
        return True

    # -- batches -----------------------------------------------------------------------------------------------

    @serves(RequestCode.COMMIT_STAGED)
    def commit(self, request: Request) -> None:
        """Queue a batch to be committed, which continues if the client disconnects; it may ask again."""
        header = commands.CommitStagedHeader.from_ext(request.ext)
        _key(header.query_id, header.batch_id, 0)
        parts = commands.CommitStagedBody.from_json(request.body).parts
        self._staging.touch(header.query_id)
        try:
            self._commits.send_nowait(_Waiting(request, Commit(header.query_id, header.batch_id, parts)))
        except trio.WouldBlock:
            raise Refusal(ErrorCode.BUSY, "too many batches wait to be committed; commit again shortly") from None

    async def _run_commits(self) -> None:
        """Commit batches until cancelled."""
        async for request, commit in self._wanted:
            request.reply(await self._committed(request, commit))
            await self._committer.remove_dropped()

    async def _committed(self, request: Request, commit: Commit) -> Response:
        try:
            done = await self._committer.commit(commit)
        except Refusal as refusal:
            return refusal.response()
        except (OSError, ReputError) as error:
            log.error("sink_commit_failed", query_id=commit.query_id, batch_id=commit.batch_id, detail=str(error))
            return Refusal(ErrorCode.INTERNAL, f"{error}; see the broker's log").response()
        self._save_soon.changed()
        result = commands.CommitStagedResult(done.batch.batch_id, done.batch.messages, done.repeated)
        return Response(0, result.to_ext(request.header_type))

    @serves(RequestCode.ABORT_STAGED)
    async def abort(self, request: Request) -> Response:
        """Drop what is staged for a batch, unless the batch is being published."""
        header = commands.AbortStagedHeader.from_ext(request.ext)
        if not self._committer.decision.covers(header.query_id, header.batch_id):
            await self._remove(
                [file for file in self._staging.of(header.query_id) if file.key.batch_id == header.batch_id]
            )
        return self._known(request, header.query_id)

    @serves(RequestCode.QUERY_STAGED)
    async def query(self, request: Request) -> Response:
        """Answer a query's stagings and last batch, or the totals."""
        await self._committer.confirmed()
        return self._known(request, commands.QueryStagedHeader.from_ext(request.ext).query_id)

    def _known(self, request: Request, query_id: str | None) -> Response:
        if query_id is None:
            count, size, last_batch_id = len(self._staging), self._staging.bytes, -1
        else:
            files = self._staging.of(query_id)
            last = self._batches.last(query_id)
            count, size = len(files), sum(file.size for file in files)
            last_batch_id = -1 if last is None else last.batch_id
        result = commands.QueryStagedResult(
            count, size, last_batch_id, self._topic_access.new_topic_queues, self._limits.body_bytes_max
        )
        return Response(0, result.to_ext(request.header_type))

    # -- expiry ------------------------------------------------------------------------------------------------

    async def _expire_idle(self) -> None:
        """Drop stagings of idle queries, and forget old queries, until cancelled."""
        while True:
            await trio.sleep(min(_EXPIRY_INTERVAL_MAX_S, self._config.staging_timeout / 4))
            idle = [
                file
                for file in self._staging.idle(self._config.staging_timeout)
                if not self._committer.decision.covers(file.key.query_id, file.key.batch_id)
            ]
            if idle:
                await self._remove(idle)
                log.warning(
                    "staging_timed_out",
                    stagings=len(idle),
                    queries=sorted({file.key.query_id for file in idle})[:5],
                    hint="their sinks were idle for longer than sink.staging_timeout",
                )
            if self._batches.forget_before(self._config.batch_ids_kept):
                self._save_soon.changed()

    async def _remove(self, files: list[StagingFile]) -> None:
        for staging_id in [file.key.staging_id for file in files]:
            self._locks.pop(staging_id, None)
        try:
            await trio.to_thread.run_sync(remove, self._staging.forget(files))
        except OSError as error:
            log.warning("staging_not_removed", detail=str(error), hint="the next start finds it, and it times out")

    def _lock(self, staging_id: str) -> trio.Lock:
        if len(self._locks) > 2 * len(self._staging) + _COMMITS_WAITING_MAX:
            self._locks = {
                name: lock for name, lock in self._locks.items() if lock.locked() or self._staging.get(name) is not None
            }
        return self._locks.setdefault(staging_id, trio.Lock())


def _key(query_id: str, batch_id: int, partition_id: int, staging_id: str | None = None) -> StagingKey:
    """Check and return the key of a staging or of a commit.

    Raises:
        Refusal: a part of it is invalid.
    """
    if not 0 < len(query_id) <= QUERY_ID_MAX or not query_id.isprintable() or " " in query_id:
        raise Refusal(
            ErrorCode.INVALID_ARGUMENT,
            f"a query id has 1 to {QUERY_ID_MAX} printable characters and no blank; {query_id[:80]!r} does not",
        )
    if batch_id < 0:
        raise Refusal(ErrorCode.INVALID_ARGUMENT, f"batch id {batch_id}; batch ids begin at 0")
    if staging_id is not None and not STAGING_ID.fullmatch(staging_id):
        raise Refusal(
            ErrorCode.INVALID_ARGUMENT,
            f"a staging id has 8 to 64 letters, digits, - or _; {staging_id[:80]!r} does not",
        )
    return StagingKey(query_id, batch_id, partition_id, staging_id or "")


def _staged(request: Request, position: int, *, kept: bool = True) -> Response:
    return Response(0, commands.StageRecordsResult(position, kept).to_ext(request.header_type))


def last_file_start(store: MessageStore) -> int:
    """Return where the last file of the log begins, which is never deleted."""
    end = store.max_physical_offset
    return end - end % store.options.commit_log_file_size
