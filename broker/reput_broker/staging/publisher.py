"""Publish staged records: append them to the log in pieces, so that other puts continue meanwhile.

A piece is a few records of one queue, appended under the put lock like a put, in less than a millisecond. After each,
the event loop runs once, and the publisher pauses for as long as the piece took if other clients have put. After every
few pieces a sync is requested, and the previous one awaited, so that syncs of other puts have little more than their
own bytes to write. `Pace` sets the size of pieces and syncs.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import structlog
import trio

from reput_broker.put.progress import Position
from reput_broker.staging.batches import CopyPlace, Intent, Queue, QueuePlace, StagingFacts
from reput_broker.staging.staging_file import RUN_BYTES, PlacedBlock, StagingFile, runs_of
from reput_broker.store.base.block import Block
from reput_broker.store.base.errors import StoreDamaged
from reput_broker.store.base.file_io import make_directories
from reput_broker.store.base.results import GetStatus, PutResult, PutStatus, TransferLimits
from reput_broker.store.base.stats import StoreStats
from reput_broker.store.message_store import MessageStore
from reput_broker.tenure.core import Core
from reput_protocol.kernel.records import record_starts
from reput_protocol.names import STAGED_TOPIC
from reput_protocol.record.put_block import BlockCheck
from reput_protocol.record.record import Record
from reput_protocol.record.view import RecordView, record_views
from reput_protocol.store.unit import UNIT_BYTES

log = structlog.get_logger(__name__)

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


class Pace:
    """Watches other puts while a batch is published.

    Args:
        stats: count all puts.
        clock_s: monotonic seconds.
        most: upper bound for the bytes of a piece.
        quiet_s: how long there has been no other put.
    """

    def __init__(
        self, stats: StoreStats, clock_s: Callable[[], float], most: int, quiet_s: float = 0.0
    ) -> None:
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
    """Appends the blocks of stagings."""

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
                for block, data in zip(
                    run, await trio.to_thread.run_sync(file.read_run, run, buffer), strict=True
                ):
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
            log.warning(
                "sink_topic_gone", topic=block.topic, messages=piece.messages, hint="it has been deleted"
            )
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


async def records_from(
    store: MessageStore, topic: str, queue_id: int, offset: int
) -> AsyncGenerator[RecordView]:
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
