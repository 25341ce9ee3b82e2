"""The batch that is decided and its progress, with the marker that decides it; and the last committed batch of every
query, by which repeated commits are recognised.

The marker that decides a batch is appended to the topic of the markers before the first message of the batch. It names
the stagings in their order, and where each queue ended before: published messages of the batch follow there, in that
order. A broker that has one message of the batch, as a copy or after a crash, therefore has the marker, too, and
completes the batch.

The marker that closes a batch, in the topic `rmq_sys_reput_sink`, is durable before the commit is answered. The
table is read from a snapshot, `config/sinkBatches.json`, and the markers that follow it. The snapshot is written after
commits, and before files of the log are deleted, so it outlives retention.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
import trio

from reput_broker.put.progress import Position
from reput_broker.staging.staging_file import RUN_BYTES, PlacedBlock, StagingFile, StagingKey, StagingTable, runs_of
from reput_broker.store.base.errors import StoreDamaged
from reput_broker.store.base.file_io import make_directories
from reput_broker.store.base.results import Block, GetStatus, PutResult, PutStatus, StoreStats, TransferLimits
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.config_file import ConfigFile, ConfigFileSave, DataVersion
from reput_broker.tables.table_saver import TableSaver
from reput_broker.tenure.core import Core
from reput_protocol.kernel.records import record_starts
from reput_protocol.names import STAGED_TOPIC
from reput_protocol.record.put_block import BlockCheck
from reput_protocol.record.record import Record, RecordView, record_views
from reput_protocol.store.unit import UNIT_BYTES

log = structlog.get_logger(__name__)

_STAGINGS = "stagings"

Queue = tuple[str, int]
"""Topic and queue id."""
_FILE_PARTS: Final = 4
"""A piece takes at most this part of a log file, so that little of the file is left blank."""

SHARED_BYTES: Final = 64 * 1024
"""A piece while other clients put: half a millisecond, which producers hardly notice."""
ALONE_BYTES: Final = 256 * 1024
"""A piece while no other client puts; a new put waits for one of these at most."""
SHARED_SYNC_BYTES: Final = 1 << 20
ALONE_SYNC_BYTES: Final = 4 << 20
ALONE_AFTER_S: Final = 0.25
_MESSAGES: Final = 4096
_BYTES: Final = 1 << 20
_LIMITS: Final = TransferLimits(_BYTES, _MESSAGES, _BYTES, _MESSAGES, _MESSAGES * UNIT_BYTES)
_QUEUE: Final = 0
_READ_BYTES: Final = 4 << 20
_RECORD_BYTES: Final = 256
"""A record without its body, at most."""


class QueuePlace(NamedTuple):
    """A queue of a batch: all messages of the batch are at queue offset `look_from` or later."""

    topic: str
    queue_id: int
    look_from: int


class StagingFacts(NamedTuple):
    """A complete staging as the marker names it; `born_host` is in hexadecimal."""

    staging_id: str
    partition_id: int
    born_host: str
    size: int
    messages: int
    checksum: int


class CopyPlace(NamedTuple):
    """Where the copies of the staged blocks begin in the log."""

    queue_offset: int
    physical_offset: int


@dataclass(slots=True, frozen=True)
class Intent:
    """A decided batch."""

    query_id: str
    batch_id: int
    stagings: list[StagingFacts]
    messages: int
    queues: list[QueuePlace]
    topics: list[dict[str, Any]]
    """The settings of the topics, since another master may not know a new one."""
    copies: CopyPlace | None = None
    """None: the staged blocks are only in the stagings."""

    def key_of(self, staging: StagingFacts) -> StagingKey:
        """Return the key of one of the stagings."""
        return StagingKey(self.query_id, self.batch_id, staging.partition_id, staging.staging_id)


def begin_marker(intent: Intent) -> bytes:
    """Return the body of the marker that decides a batch."""
    return json.dumps(asdict(intent), separators=(",", ":")).encode()


def give_up_marker(intent: Intent) -> bytes:
    """Return the body of the marker after which a decided batch is not completed any more."""
    members = {"query_id": intent.query_id, "batch_id": intent.batch_id, _STAGINGS: None}
    return json.dumps(members, separators=(",", ":")).encode()


def is_intent(members: Mapping[str, Any]) -> bool:
    """Whether a marker decides a batch, or gives one up; other markers say that a batch is committed."""
    return _STAGINGS in members


def read_intent(members: Mapping[str, Any]) -> Intent | None:
    """Return the batch that a marker decides; None if it gives one up.

    Raises:
        KeyError, TypeError: it is not a valid marker.
    """
    if members[_STAGINGS] is None:
        return None
    copies = members["copies"]
    return Intent(
        members["query_id"],
        members["batch_id"],
        [StagingFacts(*facts) for facts in members[_STAGINGS]],
        members["messages"],
        [QueuePlace(*place) for place in members["queues"]],
        members["topics"],
        None if copies is None else CopyPlace(*copies),
    )


class Decision:
    """At most one batch at a time. Belongs to the event loop."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.intent: Intent | None = None
        self.counts: dict[Queue, int] = {}
        """How many of its messages are in the log, by queue."""
        self._in_work: tuple[str, int] | None = None
        self._begins_at: int | None = 0

    @property
    def begins_at(self) -> int | None:
        """Log offset from which on the log is needed to complete the batch; None without one.

        0 until a start has read the markers.
        """
        return self._begins_at

    def covers(self, query_id: str, batch_id: int) -> bool:
        """Whether a batch is decided or about to be, so that its stagings must stay."""
        intent = self.intent
        names = None if intent is None else (intent.query_id, intent.batch_id)
        return (query_id, batch_id) in (names, self._in_work)

    @contextmanager
    def about(self, query_id: str, batch_id: int) -> Iterator[None]:
        """Keep the stagings of a batch, and the log from here on, while it is checked and decided."""
        self._in_work = (query_id, batch_id)
        if self._begins_at is None:
            self._begins_at = self._store.max_physical_offset
        try:
            yield
        finally:
            self._in_work = None
            if self.intent is None:
                self._begins_at = None

    def make(self, intent: Intent, counts: dict[Queue, int], begins_at: int) -> None:
        """Decide a batch, of which `counts` messages are in the log.

        Args:
            begins_at: log offset of its marker, or of the copies before that.
        """
        self.intent, self.counts, self._begins_at = intent, counts, begins_at

    def close(self) -> None:
        """End the decision: the batch is published and its marker in the log; or there was none at a start."""
        self.intent, self.counts, self._begins_at = None, {}, None


class CommittedBatch(NamedTuple):
    """A committed batch of a query."""

    batch_id: int
    messages: int
    committed_ms: int


class CommittedBatches:
    """The table of last batches. One owner; only a save job's `write` runs in another thread.

    Args:
        path: `.../config/sinkBatches.json`; not read yet.
        clock_ms: the time of day.
    """

    def __init__(self, path: Path, clock_ms: Callable[[], int]) -> None:
        self.file = ConfigFile(path)
        self._clock_ms = clock_ms
        self._last: dict[str, CommittedBatch] = {}
        self._version = DataVersion()
        self.next_marker = 0
        """Queue offset of the first marker that is not in the table."""
        self.unsaved_from: int | None = None
        """Physical offset of the first marker that is not in the snapshot; None if all are."""
        self._unsaved = False

    def __len__(self) -> int:
        return len(self._last)

    def load(self) -> None:
        """Read the snapshot. Blocks.

        Raises:
            ConfigFileDamaged: neither the file nor its backup is usable.
            OSError: a file cannot be read.
        """
        members = self.file.load().members
        self._version = DataVersion.from_json(members.get("dataVersion"))
        self.next_marker = int(members.get("nextMarker", 0))
        for query_id, (batch_id, messages, committed_ms) in (members.get("lastBatches") or {}).items():
            self._last[query_id] = CommittedBatch(batch_id, messages, committed_ms)

    def last(self, query_id: str) -> CommittedBatch | None:
        """Return the last batch of a query; None if none is known."""
        return self._last.get(query_id)

    def is_committed(self, query_id: str, batch_id: int) -> bool:
        """Whether this batch of a query, or a later one, has been committed."""
        last = self._last.get(query_id)
        return last is not None and batch_id <= last.batch_id

    def forget_all(self) -> None:
        """Empty the table: it is not of this log."""
        self._last = {}
        self.next_marker = 0
        self._changed()

    def note(self, query_id: str, batch: CommittedBatch, queue_offset: int, physical_offset: int) -> None:
        """Add a batch from its marker, in the order of their queue."""
        self._last[query_id] = batch
        self.next_marker = queue_offset + 1
        if self.unsaved_from is None:
            self.unsaved_from = physical_offset
        self._changed()

    def forget_before(self, age_s: float) -> int:
        """Forget queries that have committed nothing for `age_s`; return how many."""
        since_ms = self._clock_ms() - int(age_s * 1000)
        old = [query_id for query_id, batch in self._last.items() if batch.committed_ms < since_ms]
        for query_id in old:
            del self._last[query_id]
        if old:
            self._changed()
        return len(old)

    @property
    def version(self) -> DataVersion:
        """How often the table changed, and when it last did."""
        return self._version

    def members(self) -> dict[str, Any]:
        """Return the snapshot as of now."""
        return self._snapshot()()

    def begin_save(self) -> ConfigFileSave | None:
        """Return a job that saves the table as it is now; None if the file has it."""
        if not self._unsaved:
            return None
        self._unsaved = False
        marked, self.unsaved_from = self.unsaved_from, None

        def failed() -> None:
            self._unsaved = True
            if marked is not None:
                self.unsaved_from = marked

        return ConfigFileSave(self.file, self._snapshot(), failed)

    def _snapshot(self) -> Callable[[], dict[str, Any]]:
        version, next_marker, last = self._version, self.next_marker, dict(self._last)
        return lambda: {
            "dataVersion": version.to_json(),
            "nextMarker": next_marker,
            "lastBatches": dict(sorted(last.items())),
        }

    def _changed(self) -> None:
        self._version = self._version.next(self._clock_ms())
        self._unsaved = True


def marker_of(query_id: str, batch: CommittedBatch) -> bytes:
    """Return the body of a committed batch's marker."""
    members = {
        "queryId": query_id,
        "batchId": batch.batch_id,
        "messages": batch.messages,
        "committedMs": batch.committed_ms,
    }
    return json.dumps(members, separators=(",", ":")).encode()


def read_marker(members: Mapping[str, Any]) -> tuple[str, CommittedBatch]:
    """Return a marker's query and batch. Raises KeyError: it is not a valid marker."""
    return members["queryId"], CommittedBatch(members["batchId"], members["messages"], members["committedMs"])


class StagingState:
    """The files, and the tables that hold their content. A master reads the stagings once it has the markers."""

    def __init__(
        self, data_dir: Path, clock_ms: Callable[[], int], on_saved: Callable[[str, Exception | None], None]
    ) -> None:
        directory = data_dir / "staging"
        self.staging = StagingTable(directory, trio.current_time)
        self.batches = CommittedBatches(data_dir / "config" / "sinkBatches.json", clock_ms)
        self.saver = TableSaver(self.batches, partial(on_saved, "sinkBatches"))


class Pace:
    """Watches other puts while a batch is published.

    Args:
        stats: count all puts.
        clock_s: monotonic seconds.
        most: upper bound for the bytes of a piece.
        quiet_s: how long there has been no other put.
    """

    def __init__(self, stats: StoreStats, clock_s: Callable[[], float], most: int, quiet_s: float = 0.0) -> None:
        self._stats = stats
        self._clock_s = clock_s
        self._most = most
        self._puts = stats.put_blocks
        self._others_at = clock_s() - max(0.0, quiet_s)

    @property
    def is_alone(self) -> bool:
        """Whether there has been no other put for a while."""
        return self._clock_s() - self._others_at > ALONE_AFTER_S

    @property
    def piece_bytes(self) -> int:
        """How large the next piece may be."""
        return min(ALONE_BYTES if self.is_alone else SHARED_BYTES, self._most)

    @property
    def sync_bytes(self) -> int:
        """How much is appended between syncs."""
        return ALONE_SYNC_BYTES if self.is_alone else SHARED_SYNC_BYTES

    def others_put(self, own: int) -> bool:
        """Whether there were other puts since the last call, other than `own` puts of the batch."""
        puts, self._puts = self._puts + own, self._stats.put_blocks
        if self._puts <= puts:
            return False
        self._others_at = self._clock_s()
        return True


class Piece(NamedTuple):
    """Records that are put together."""

    data: memoryview
    messages: int


class Pieces:
    """Takes pieces from a block one by one.

    Args:
        block: whole records back to back.
        skipped: how many of them to skip.
    """

    def __init__(self, block: bytearray | memoryview, skipped: int = 0) -> None:
        self._block = memoryview(block)
        self._starts = record_starts(block, 0, len(block))
        self._first = skipped

    def take(self, most: int) -> Piece | None:
        """Return the next records, of at most `most` bytes or a single one; None at the end."""
        starts, first, size = self._starts, self._first, len(self._block)
        if first >= len(starts):
            return None
        start = starts[first]
        if size - start <= most:
            stop, end = len(starts), size
        else:
            stop = max(first + 1, bisect_right(starts, start + most) - 1)
            end = starts[stop] if stop < len(starts) else size
        self._first = stop
        return Piece(self._block[start:end], stop - first)


class TrailingSyncs:
    """Requests a sync after every few bytes, and waits for the one before it."""

    def __init__(self, flushed: Position) -> None:
        self._flushed = flushed
        self._unsynced = self._asked = 0

    async def appended(self, end: int, size: int, sync_bytes: int) -> None:
        """Note an append of `size` bytes up to log offset `end`; sync once there are `sync_bytes`.

        Raises:
            Refusal: a sync has failed.
        """
        self._unsynced += size
        if self._unsynced >= sync_bytes:
            await self._flushed.reached(self._asked)
            self._flushed.want()
            self._asked, self._unsynced = end, 0


class Publisher:
    """Appends the blocks of stagings.

    A piece is a few records of one queue, appended under the put lock like a put, in less than a millisecond, so that
    other puts continue meanwhile. After each, the event loop runs once, and the publisher pauses for as long as the
    piece took if other clients have put. After every few pieces a sync is requested, and the previous one awaited, so
    that syncs of other puts have little more than their own bytes to write. `Pace` sets the size of pieces and syncs.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.piece_max = max(1, core.store.options.commit_log_file_size // _FILE_PARTS)
        """How many bytes are put together at most."""

    def places(self, blocks: Sequence[PlacedBlock]) -> list[QueuePlace]:
        """Return the queues of an unpublished batch, each with its end."""
        queues = dict.fromkeys((block.topic, block.queue_id) for block in blocks)
        return [QueuePlace(*queue, self._core.store.max_offset_in_queue(*queue)) for queue in queues]

    async def publish(self, files: Sequence[StagingFile], counts: dict[Queue, int]) -> None:
        """Append what is not in the log yet; the end is not synced.

        Args:
            files: the stagings of the batch, in its order.
            counts: how many messages of each queue are in the log; kept up to date, also if this raises.

        Raises:
            Refusal: the store accepts no more now.
            StoreDamaged: a staging has changed since the batch was decided.
        """
        left = dict(counts)
        quiet_s = (self._core.clock_ms() - self._core.store.last_put_ms) / 1000
        pace = Pace(self._core.store.stats, time.monotonic, self.piece_max, quiet_s)
        buffer = bytearray(RUN_BYTES)
        syncs = TrailingSyncs(self._core.puts.progress.flushed)
        for file in files:
            blocks = _not_published(await trio.to_thread.run_sync(file.blocks), left)
            skipped = {block.position: count for block, count in blocks}
            for run in runs_of([block for block, _ in blocks]):
                for block, data in zip(run, await trio.to_thread.run_sync(file.read_run, run, buffer), strict=True):
                    pieces = Pieces(data, skipped[block.position])
                    while (piece := pieces.take(pace.piece_bytes)) is not None:
                        result = await self._put(block, piece, file, counts, pace)
                        if result is not None:
                            await syncs.appended(result.end_offset, len(piece.data), pace.sync_bytes)

    async def _put(
        self, block: PlacedBlock, piece: Piece, file: StagingFile, counts: dict[Queue, int], pace: Pace
    ) -> PutResult | None:
        """Put a piece, changing its bytes in place, and let other tasks run; None if its topic has been deleted."""
        store = self._core.store
        queue = (block.topic, block.queue_id)
        if self._core.tables.topics.get(block.topic) is None:
            log.warning("sink_topic_gone", topic=block.topic, messages=piece.messages, hint="it has been deleted")
            counts[queue] = counts.get(queue, 0) + piece.messages
            return None
        # Staged records were checked at arrival, and their checksum now, so they are not checked
        # again. Only checksums over whole records, where present, are recomputed.
        check = None if file.may_be_sealed else BlockCheck(piece.messages)

        def put() -> PutResult:
            result = store.put_one(
                Block(piece.data, block.topic, block.queue_id, piece.messages, file.born_host, check)
            )
            if result.status is PutStatus.PUT_OK:  # here, because the wait that follows may be cancelled
                counts[queue] = counts.get(queue, 0) + piece.messages
            return result

        started_at = time.perf_counter()
        result = await self._core.puts.appender.append_or_refuse(len(piece.data), put, block.topic)
        took_s = time.perf_counter() - started_at
        await trio.lowlevel.checkpoint()
        if pace.others_put(own=1):
            await trio.sleep(took_s)
        return result

    async def count_published(self, intent: Intent, files: Sequence[StagingFile]) -> dict[Queue, int]:
        """Return how many messages of each queue are in the log, found by their unique ids.

        Messages of one queue are appended in the order of the stagings, so the published ones come first.

        Raises:
            StoreError: log or stagings cannot be read.
        """
        blocks: dict[Queue, list[tuple[StagingFile, PlacedBlock]]] = {}
        for file in files:
            for block in await trio.to_thread.run_sync(file.blocks):
                blocks.setdefault((block.topic, block.queue_id), []).append((file, block))
        counts: dict[Queue, int] = {}
        for place in intent.queues:
            queue = (place.topic, place.queue_id)
            wanted = _unique_ids(blocks.get(queue, ()))
            counts[queue] = 0
            expected = next(wanted, None)
            async with aclosing(records_from(self._core.store, *queue, place.look_from)) as records:
                async for record in records:
                    if expected is None:
                        break
                    if record.unique_key == expected:
                        counts[queue] += 1
                        expected = next(wanted, None)
        return counts


def _not_published(blocks: Sequence[PlacedBlock], left: dict[Queue, int]) -> list[tuple[PlacedBlock, int]]:
    """Return the blocks that are not completely in the log, with the number of their messages that are.

    `left`, updated here, is how many messages of each queue are in the log, from the first block on.
    """
    found = []
    for block in blocks:
        queue = (block.topic, block.queue_id)
        skipped = min(block.messages, left.get(queue, 0))
        left[queue] = left.get(queue, 0) - skipped
        if skipped < block.messages:
            found.append((block, skipped))
    return found


def _unique_ids(blocks: Sequence[tuple[StagingFile, PlacedBlock]]) -> Iterator[str | None]:
    """Yield the unique ids of staged records of one queue. Reads files."""
    for file, block in blocks:
        for view in record_views(file.read(block), check_crc=False):
            yield view.unique_key


async def records_from(store: MessageStore, topic: str, queue_id: int, offset: int) -> AsyncGenerator[RecordView]:
    """Yield all dispatched records of a queue from `offset` on, at a start.

    Raises:
        StoreError: they cannot be read.
    """
    while True:
        result = store.get_message(topic, queue_id, offset, _MESSAGES, _BYTES, None, limits=_LIMITS)
        data = b""
        if result.status is GetStatus.FOUND:
            with store.hold_extents(result.extents) as held:
                data = await trio.to_thread.run_sync(held.read)
        if result.next_begin_offset <= offset:
            return
        for record in record_views(data):
            yield record
        offset = result.next_begin_offset


class StagedCopies:
    """Copies staged blocks in the log, from which another master completes a batch, and restores stagings from them.

    Of a broker whose master is elected, the stagings of a batch are copied into the topic `rmq_sys_reput_staged` before
    the batch is decided. The log of a slave is a prefix of the master's: with a message of the batch it has the copies.

    Args:
        piece_max: upper bound for the bytes of a record.
    """

    def __init__(self, core: Core, piece_max: int) -> None:
        self._store = store = core.store
        self._appender = core.puts.appender
        self._flushed = core.puts.progress.flushed
        self._piece_max = min(piece_max, store.options.message_bytes_max)

    async def write(self, files: Sequence[StagingFile]) -> CopyPlace | None:
        """Append the blocks of stagings; return where they begin in the log, None if there are none.

        Raises:
            Refusal: the store accepts no more now.
            OSError: a staging cannot be read.
        """
        pace = Pace(self._store.stats, time.monotonic, self._piece_max)
        syncs = TrailingSyncs(self._flushed)
        begins: CopyPlace | None = None
        for file in files:
            for start in range(0, file.size, _READ_BYTES):
                data = memoryview(await trio.to_thread.run_sync(file.raw, start, _READ_BYTES))
                while data:
                    piece, data = data[: pace.piece_bytes], data[pace.piece_bytes :]
                    record = self._record(piece)
                    result = await self._appender.append_or_refuse(
                        len(piece) + _RECORD_BYTES, partial(self._store.put_record, record), STAGED_TOPIC
                    )
                    begins = begins or CopyPlace(result.queue_offset, result.physical_offset)
                    await trio.lowlevel.checkpoint()
                    pace.others_put(own=1)
                    await syncs.appended(result.end_offset, len(piece), pace.sync_bytes)
        return begins

    def _record(self, data: memoryview) -> Record:
        host = self._store.options.host
        return Record(
            STAGED_TOPIC,
            bytes(data),
            queue_id=_QUEUE,
            born_timestamp_ms=self._store.last_put_ms,
            born_host=host,
            store_host=host,
        )

    async def restore(self, intent: Intent, directory: Path) -> list[StagingFile]:
        """Write the stagings of a batch into `directory` again; return them, ended.

        Raises:
            StoreDamaged: the log does not hold all of their blocks.
            StoreError, OSError: the log cannot be read, or a file not be written.
        """
        place = intent.copies
        assert place is not None, "there are copies"
        await trio.to_thread.run_sync(make_directories, directory)
        rest, files = b"", []
        async with aclosing(records_from(self._store, STAGED_TOPIC, _QUEUE, place.queue_offset)) as records:
            for staging in intent.stagings:
                file = await trio.to_thread.run_sync(_create_again, directory, intent, staging)
                while file.size < staging.size:
                    if not rest:
                        record = await anext(records, None)
                        if record is None:
                            raise self._damaged(intent)
                        rest = bytes(record.body)
                    wanted = staging.size - file.size
                    await trio.to_thread.run_sync(file.append, rest[:wanted], [])
                    rest = rest[wanted:]
                files.append(await trio.to_thread.run_sync(self._ended, file.path, staging, intent))
        return files

    def _ended(self, path: Path, staging: StagingFacts, intent: Intent) -> StagingFile:
        file = StagingFile.load(path)
        if file is None or (file.messages, file.checksum) != (staging.messages, staging.checksum):
            raise self._damaged(intent)
        file.end()
        return file

    def _damaged(self, intent: Intent) -> StoreDamaged:
        return StoreDamaged(
            self._store.options.data_dir / "commitlog",
            -1 if intent.copies is None else intent.copies.physical_offset,
            f"it lacks staged blocks of batch {intent.batch_id} of query {intent.query_id}, which is decided",
            "check the disk",
        )


def _create_again(directory: Path, intent: Intent, staging: StagingFacts) -> StagingFile:
    key = intent.key_of(staging)
    (directory / StagingFile.name_of(key)).unlink(missing_ok=True)
    return StagingFile.create(directory, key, bytes.fromhex(staging.born_host))
