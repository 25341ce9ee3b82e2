"""Publish staged records: append them to the log in pieces, so that other puts continue meanwhile.

A piece is a few records of one queue, appended under the put lock like a put, in less than a millisecond. After each,
the event loop runs once, and the publisher pauses for as long as the piece took if other clients have put. After every
few pieces a sync is requested, and the previous one awaited, so that syncs of other puts have little more than their
own bytes to write. `Pace` sets the size of pieces and syncs.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

import structlog
import trio

from reput_broker.put.progress import Position
from reput_broker.staging.intent import Intent, Queue, QueuePlace
from reput_broker.staging.queue_records import records_from
from reput_broker.staging.staging_file import RUN_BYTES, PlacedBlock, StagingFile, runs_of
from reput_broker.store.base.results import Block, PutResult, PutStatus, StoreStats
from reput_broker.tenure import Core
from reput_protocol.kernel.records import record_starts
from reput_protocol.record.put_block import BlockCheck
from reput_protocol.record.record import record_views

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
        self._store = core.store
        self._appender = core.puts.appender
        self._flushed = core.puts.progress.flushed
        self._topics = core.tables.topics
        self._clock_ms = core.clock_ms
        self.piece_max = max(1, core.store.options.commit_log_file_size // _FILE_PARTS)
        """How many bytes are put together at most."""

    def places(self, blocks: Sequence[PlacedBlock]) -> list[QueuePlace]:
        """Return the queues of an unpublished batch, each with its end."""
        queues = dict.fromkeys((block.topic, block.queue_id) for block in blocks)
        return [QueuePlace(*queue, self._store.max_offset_in_queue(*queue)) for queue in queues]

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
        quiet_s = (self._clock_ms() - self._store.last_put_ms) / 1000
        pace = Pace(self._store.stats, time.monotonic, self.piece_max, quiet_s)
        buffer = bytearray(RUN_BYTES)
        syncs = TrailingSyncs(self._flushed)
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
        store = self._store
        queue = (block.topic, block.queue_id)
        if self._topics.get(block.topic) is None:
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
        result = await self._appender.append_or_refuse(len(piece.data), put, block.topic)
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
            async with aclosing(records_from(self._store, *queue, place.look_from)) as records:
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
