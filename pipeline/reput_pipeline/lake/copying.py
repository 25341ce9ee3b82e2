"""Copy topics, or a store directory, to a table: batch by batch, each in one commit with the progress.

The table alone holds the progress. A job that was killed continues there, so that each message is in the table once.
Files of a batch that was not committed belong to no version of the table; the formats' own means delete them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic, sleep
from types import FrameType
from typing import Final

import pyarrow as pa

from reput_client.arrow.directory_plan import is_sequential, located, log_files
from reput_client.arrow.queues import QueueKey, QueueRange, TopicKey
from reput_pipeline.archives.plan import catalog_of, gone, open_ranges
from reput_pipeline.lake.sources import check_source, is_kept, sources_of
from reput_pipeline.lake.table import (
    AsBroker,
    LakeTable,
    LibraryMissing,
    Progress,
    ProgressMoved,
    TableChanged,
    TableError,
    TableOptions,
)
from reput_pipeline.source.live_plan import live_partition
from reput_pipeline.source.narrowing import NOTHING_NARROWED
from reput_pipeline.source.offline_plan import QueuePartition, SegmentPartition
from reput_pipeline.source.offline_store import OfflineStore
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.source.ranges import limited
from reput_pipeline.source.resolve import Catalog, wanted_queues
from reput_pipeline.source.tasks import read_task

COMMIT_ATTEMPTS: Final = 10
"""Commits of a batch that other commits may reject, such as those that merge files."""
BATCH_BYTES: Final = 256 << 20
"""Bytes of a batch's columns, about: of what the libraries may hold in memory at once."""
FIRST_BATCH: Final = 10_000
"""Messages of the first batch, whose size is not known yet."""
_WAIT_STEP_S: Final = 0.1


def open_table(table_format: str, options: TableOptions) -> LakeTable:
    """Open a table, or create it; `table_format` is one of `LIBRARIES`.

    Raises:
        LibraryMissing: the library of its format is not installed.
        TableUnreachable, SchemaMismatch: as the formats.
    """
    kind: Callable[[TableOptions], LakeTable]
    try:
        if table_format == "delta":
            from reput_pipeline.lake.delta import DeltaLake

            kind = DeltaLake
        else:
            from reput_pipeline.lake.iceberg import IcebergTable

            kind = IcebergTable
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] == "reput_pipeline":
            raise
        raise LibraryMissing(table_format) from missing
    return kind(options)


class Copying:
    """Copies batches to a table.

    Args:
        table: the target.
        options: of the source.
        schema: of the rows.
        as_broker: the broker whose directory is read; empty if it is not given, or for brokers.
        same_source: whether the table's topics are of this source, under another address.

    Attributes:
        rows: number of committed rows.
        batches: number of commits.
        lost: ranges of the last call of `next` that were gone before they were copied.
    """

    def __init__(
        self,
        table: LakeTable,
        options: SourceOptions,
        schema: pa.Schema,
        *,
        as_broker: str = "",
        same_source: bool = False,
    ) -> None:
        self.rows = 0
        self.batches = 0
        self.lost: list[QueueRange] = []
        self._table = AsBroker(table, as_broker) if as_broker else table
        self._options = options
        self._schema = schema
        self._as_broker = as_broker
        self._same_source = same_source
        self._checked: set[TopicKey] = set()
        """Topics whose source was checked: later the addresses of a broker may change, as those of a new master."""
        self._expected: dict[QueueKey, int | None] = {}
        self._message_bytes: float | None = None
        """Of a message of the last batch."""

    def next(self, most: int) -> tuple[int, bool]:
        """Commit the next batch, if there is anything new.

        Args:
            most: approximate number of messages; fewer if they are larger than `BATCH_BYTES` together, as estimated by
                the last batch.

        Returns:
            The number of its rows, and whether there are more messages already.

        Raises:
            ProgressMoved: another job writes the same queues to the table.
            OtherSource: the table has messages of another place in these topics.
            TableError: other commits reject this one again and again.
            Exception: as `open_ranges`, `read_task` and `LakeTable`.
        """
        self.lost = []
        for _ in range(COMMIT_ATTEMPTS):
            try:
                return self._attempt(most)
            except TableChanged as changed:
                reason = changed
        raise TableError(
            f"{self._table.where}: commits of others prevented this one {COMMIT_ATTEMPTS} times: {reason}"
        )

    def _attempt(self, most: int) -> tuple[int, bool]:
        with catalog_of(self._options) as catalog:
            queues = wanted_queues(catalog, self._options)
            done = self._table.load(queues, catalog.generations)
            self._check(queues, done.ends)
            sources = sources_of(catalog, self._options, queues, self._as_broker)
            for key, place in sources.items():
                if key not in self._checked:
                    check_source(self._table.where, done.sources, key, place, same_source=self._same_source)
                    self._checked.add(key)
            start, available = open_ranges(catalog, self._options, done.ends, done.generations)
            ends = limited(start, available, min(most, self._affordable()))
            changed = {queue: end for queue, end in ends.items() if done.ends.get(queue) != end}
            if not changed:
                return 0, False
            ranges = [
                QueueRange(queue, start[queue], end) for queue, end in changed.items() if end > start[queue]
            ]
            topics = {(queue.topic, queue.broker) for queue in changed}
            generations = {
                key: known for key, known in catalog.generations.items() if key in topics and known
            }
            moved = {
                key: place
                for key, place in sources.items()
                if key[0] in {topic for topic, _ in topics} and not is_kept(done.sources, key, place)
            }
            rows = _Rows(_messages(catalog, self._options, ranges, self._schema))
            try:
                self._table.append(
                    pa.RecordBatchReader.from_batches(self._schema, iter(rows)),
                    Progress(changed, generations, moved),
                )
            except Exception:
                if rows.error is not None:
                    raise rows.error from None  # the libraries pass on its text only
                raise
        self._expected.update(changed)
        self.lost = gone(done.ends, start)
        if ranges:
            self._message_bytes = rows.bytes / sum(part.size for part in ranges)
        self.rows += rows.count
        self.batches += 1
        return rows.count, ends != available

    def _affordable(self) -> int:
        if self._message_bytes is None:
            return FIRST_BATCH
        return max(1, int(BATCH_BYTES / max(self._message_bytes, 1.0)))

    def _check(self, queues: list[QueueKey], ends: Mapping[QueueKey, int]) -> None:
        for queue in queues:
            found = ends.get(queue)
            expected = self._expected.setdefault(queue, found)
            if expected != found:
                raise ProgressMoved(self._table.where, queue, expected, found)


class _Rows:
    """The batches of a reading: counts rows and bytes, and keeps its error."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.count = 0
        self.bytes = 0
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._batches:
                self.count += batch.num_rows
                self.bytes += batch.nbytes
                yield batch
        except Exception as error:
            self.error = error
            raise


def _messages(
    catalog: Catalog, options: SourceOptions, ranges: list[QueueRange], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ranges, of a directory in the order of its log if most of the log is wanted."""
    if not ranges:
        return iter(())
    if not isinstance(catalog, OfflineStore):
        return read_task(live_partition(ranges, catalog.generations), options, schema, NOTHING_NARROWED)
    parts = [located(catalog, part) for part in ranges]
    if is_sequential(catalog, parts, all_tags=options.tag_filter.matches_all):
        partition: QueuePartition | SegmentPartition = SegmentPartition(log_files(catalog, parts), parts)
    else:
        partition = QueuePartition(ranges)
    return read_task(partition, options, schema, NOTHING_NARROWED)


class Stopping:
    """Whether the job is to end: set by the first SIGTERM or SIGINT; a second one interrupts the batch."""

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Handle the signals while the block runs."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def wait(self, seconds: float) -> None:
        """Wait, at most until the job is to end."""
        until = monotonic() + seconds
        while not self.requested and (left := until - monotonic()) > 0:
            sleep(min(left, _WAIT_STEP_S))
