"""Copy topics, or a store directory, to a table: batch by batch, each in one commit with the progress.

The table alone holds the progress. A job that was killed continues there, so that each message is in the table once.
Files of a batch that was not committed belong to no version of the table; the formats' own means delete them.
"""

from __future__ import annotations

import math
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from threading import current_thread, main_thread
from time import monotonic, sleep
from types import FrameType
from typing import Final

import pyarrow as pa

from reput_client.arrow.directory import is_sequential, located, log_files
from reput_client.arrow.queues import QueueKey, QueueRange, TopicKey
from reput_client.consume.arrow_columns import arrow_schema
from reput_pipeline.archives.batches import catalog_of, gone, open_ranges
from reput_pipeline.lake.table import (
    AsBroker,
    LakeTable,
    LibraryMissing,
    Progress,
    ProgressMoved,
    TableChanged,
    TableError,
    TableOptions,
    check_source,
    sources_of,
)
from reput_pipeline.source.offline import OfflineStore, SegmentPartition
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.source.ranges import NOTHING_NARROWED, Catalog, limited, wanted_queues
from reput_pipeline.source.tasks import read_ranges, read_task

COMMIT_ATTEMPTS: Final = 10
"""Commits of a batch that other commits may reject, such as those that merge files."""
BATCH_BYTES: Final = 256 << 20
"""Bytes of columns with which a batch ends: about what the libraries may hold in memory at once."""
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
        """Topics that this job has committed: later the addresses of a broker may change, as those of a new master."""
        self._expected: dict[QueueKey, int | None] = {}
        self._message_bytes: float | None = None
        """Of a message of the last batch."""

    def next(self, most: int) -> tuple[int, bool]:
        """Commit the next batch, if there is anything new.

        Args:
            most: approximate number of messages; fewer if they are larger than `BATCH_BYTES` together.

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
        raise TableError(f"{self._table.where}: commits of others prevented this one {COMMIT_ATTEMPTS} times: {reason}")

    def _attempt(self, most: int) -> tuple[int, bool]:
        with catalog_of(self._options) as catalog:
            queues = wanted_queues(catalog, self._options)
            done = self._table.load(queues, catalog.generations)
            self._check(queues, done.ends)
            sources = sources_of(catalog, self._options, queues, self._as_broker)
            for key, place in sources.items():
                if key not in self._checked:
                    generation = catalog.generations.get(key)
                    check_source(
                        self._table.where,
                        done.sources,
                        key,
                        place,
                        is_same_topic=bool(generation) and generation == done.generations.get(key),
                        same_source=self._same_source,
                    )
            start, available = open_ranges(catalog, self._options, done.ends, done.generations)
            planned = limited(start, available, max(1, int(min(most, self._likely()))))
            ranges = [QueueRange(queue, start[queue], end) for queue, end in planned.items() if end > start[queue]]
            with closing(_messages(catalog, self._options, ranges, _placed(self._schema))) as messages:
                batch = _Batch(messages, self._schema, self._table)
            ends = planned if batch.is_complete else {**start, **batch.reached}
            changed = {queue: end for queue, end in ends.items() if done.ends.get(queue) != end}
            if not changed:
                return 0, False
            topics = {(queue.topic, queue.broker) for queue in changed}
            generations = {key: known for key, known in catalog.generations.items() if key in topics and known}
            # Sources are stored with messages of their topics only: a job that finds nothing new commits nothing.
            names = {queue.topic for queue in changed}
            moved = {key: place for key, place in sources.items() if key[0] in names and done.sources.get(key) != place}
            progress = Progress(changed, generations, moved)
            self._table.append(batch.reader(), progress, batch.bytes // max(1, batch.rows))
        # Not before: a commit that was rejected may have been by a job that reads from elsewhere.
        self._checked.update(key for key in sources if key[0] in names)
        self._expected.update(changed)
        self.lost = gone(done.ends, start)
        read = sum(ends[part.queue] - part.start for part in ranges)
        if read:
            self._message_bytes = batch.bytes / read
        self.rows += batch.rows
        self.batches += 1
        return batch.rows, ends != available

    def _likely(self) -> float:
        """Return how many messages a batch has by the last one, so that each queue contributes to the next one."""
        return BATCH_BYTES / self._message_bytes if self._message_bytes else math.inf

    def _check(self, queues: list[QueueKey], ends: Mapping[QueueKey, int]) -> None:
        for queue in queues:
            found = ends.get(queue)
            expected = self._expected.setdefault(queue, found)
            if expected != found:
                raise ProgressMoved(self._table.where, queue, expected, found)


_PLACE: Final = ("topic", "queueId", "queueOffset", "brokerName")
"""Columns that say which message a row is."""


def _message_at(messages: pa.RecordBatch, row: int) -> str:
    topic, queue_id, offset, broker = (messages.column(name)[row].as_py() for name in _PLACE)
    return f"message {offset} of queue {QueueKey(topic, broker or '', queue_id)}"


class _Batch:
    """The rows of a batch, in memory: a commit needs the progress before the libraries take the rows.

    Args:
        messages: with the columns of `_placed`, each queue in order.
        schema: of the rows.
        table: that is to take them.

    Attributes:
        rows: their number.
        bytes: of their columns.
        reached: the next message of each queue that has rows.
        is_complete: whether these are all messages; otherwise `BATCH_BYTES` were reached.

    Raises:
        RowRejected: the table cannot take a row.
        Exception: of `messages`.
    """

    def __init__(self, messages: Iterator[pa.RecordBatch], schema: pa.Schema, table: LakeTable) -> None:
        self.rows = 0
        self.bytes = 0
        self.reached: dict[QueueKey, int] = {}
        self.is_complete = True
        self._schema = schema
        self._parts: deque[pa.RecordBatch] = deque()
        for part in messages:
            places = pa.table(part.select(_PLACE)).group_by(
                ["topic", "brokerName", "queueId"],
                use_threads=False,  # a tenth of the CPU time
            )
            for row in places.aggregate([("queueOffset", "max")]).to_pylist():
                queue = QueueKey(row["topic"], row["brokerName"] or "", row["queueId"])
                self.reached[queue] = row["queueOffset_max"] + 1
            wanted = part.select(schema.names)
            table.check(wanted, partial(_message_at, part))
            self._parts.append(wanted)
            self.rows += wanted.num_rows
            self.bytes += wanted.nbytes
            if self.bytes >= BATCH_BYTES:
                self.is_complete = False
                break

    def reader(self) -> pa.RecordBatchReader:
        """Return the rows, to be read once: those that were read are not kept."""
        return pa.RecordBatchReader.from_batches(self._schema, self._taken())

    def _taken(self) -> Iterator[pa.RecordBatch]:
        while self._parts:
            yield self._parts.popleft()


def _placed(schema: pa.Schema) -> pa.Schema:
    """Return a schema with the columns that say which message a row is."""
    missing = [name for name in _PLACE if name not in schema.names]
    return pa.unify_schemas([schema, arrow_schema(missing)])


def _messages(
    catalog: Catalog, options: SourceOptions, ranges: list[QueueRange], schema: pa.Schema
) -> Generator[pa.RecordBatch]:
    """Yield the messages of ranges, of a directory in the order of its log if most of the log is wanted."""
    if not ranges:
        return
    if isinstance(catalog, OfflineStore):
        parts = [located(catalog, part) for part in ranges]
        if is_sequential(catalog, parts, all_tags=options.tag_filter.matches_all):
            in_log = SegmentPartition(log_files(catalog, parts), parts)
            yield from read_task(in_log, options, schema, NOTHING_NARROWED)
            return
    yield from read_ranges(ranges, catalog.generations, options, schema)


class Stopping:
    """Whether the job is to end: set by the first SIGTERM or SIGINT; a second one interrupts the batch."""

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Handle the signals while the block runs; in a thread, which gets none, do nothing."""
        if current_thread() is not main_thread():
            yield
            return
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
