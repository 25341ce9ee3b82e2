"""The batches of an archive: each queue from its archived end on, in tasks that read their ranges and write Parquet.

Tasks run in the workers; the JVM gets only the list of files.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reput_client.arrow.queues import Generations, QueueKey, QueueRange, is_remade
from reput_pipeline.archives.directory import open_archive
from reput_pipeline.archives.layout import file_path, file_schema, read_schema, split
from reput_pipeline.archives.manifests import Archive, ArchiveBatch, ArchiveFile
from reput_pipeline.source.live import LiveCluster
from reput_pipeline.source.offline import OfflineStore
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.source.ranges import Catalog, check_named, first_offsets, limited, pack, resolve, wanted_queues
from reput_pipeline.source.tasks import read_ranges
from reput_pipeline.spark.errors import BrokerGone, DataLost, NotArchived, RemadeTopic
from reput_protocol.errors import ReputError
from reput_protocol.printable import counted

_TASK_MESSAGES_MIN = 10_000
_GONE_LINES_MAX = 20
_BUFFER_BYTES: Final = 16 << 20
"""Bytes of a row group: larger ones compress better, smaller ones need less memory."""
_FILES_MAX: Final = 1000
_FILES_MIN: Final = 16
_FILES_RESERVED: Final = 600
"""Descriptors for all but the files of an archive: 256 each for the files of a store directory that the plan and the
task keep open, the rest for connections and libraries."""

_Values = tuple[str | None, ...]
"""A combination of partition values."""


@contextmanager
def catalog_of(options: SourceOptions) -> Iterator[Catalog]:
    """Open the broker or directory of the options.

    Raises:
        NotAStore, ConnectFailed: it cannot be opened.
    """
    if options.path is not None:
        with OfflineStore(options.path) as store:
            yield store
    else:
        with LiveCluster(options) as cluster:
            yield cluster


def addresses_of(catalog: Catalog) -> dict[str, str]:
    """Return the brokers' addresses by name; none for a store directory."""
    return dict(catalog.addresses) if isinstance(catalog, LiveCluster) else {}


def check_brokers(batch: ArchiveBatch, addresses: Mapping[str, str]) -> None:
    """Check that the cluster has all brokers of a batch.

    Raises:
        BrokerGone: one is missing.
    """
    for part in batch.ranges:
        if part.queue.broker not in addresses:
            raise BrokerGone(part, sorted(addresses))


def open_ranges(
    catalog: Catalog, options: SourceOptions, done: Mapping[QueueKey, int], known: Generations
) -> tuple[dict[QueueKey, int], dict[QueueKey, int]]:
    """Return where the archive continues in each queue, and where the queue ends now.

    New queues start where the options say. With `failOnDataLoss=false` the archive continues after deleted messages,
    which `gone` returns.

    Args:
        catalog: the broker or directory.
        options: of the source.
        done: the archived ends of queues.
        known: the generations of their topics.

    Raises:
        NoSuchTopic, DataLost, OptionError: as `batch_ranges`; also if messages were deleted before they were
            archived, or a queue is not the one that was archived.
    """
    queues = wanted_queues(catalog, options)
    check_named(options.start, queues)
    check_named(options.end, queues)
    bounds = catalog.bounds(queues)
    new = first_offsets(catalog, options, [queue for queue in queues if queue not in done], bounds)
    start: dict[QueueKey, int] = {}
    end: dict[QueueKey, int] = {}
    for queue in queues:
        low, high = bounds[queue]
        at = done.get(queue)
        if at is None:
            at = new[queue]
        elif is_remade(queue, known, catalog.generations):
            raise RemadeTopic(queue, at)
        elif at > high:
            raise DataLost(
                queue, f"{counted(at, 'message')} of it archived, but it ends at {high}: its topic was created again"
            )
        elif at < low and options.fail_on_data_loss:
            raise DataLost(queue, f"messages {at} to {low - 1} are gone and not in the archive")
        start[queue] = max(at, low)
        end[queue] = max(start[queue], resolve(catalog, options, options.end, queue, bounds[queue]))
    return start, end


def next_tasks(
    start: Mapping[QueueKey, int], end: Mapping[QueueKey, int], *, most: int, file_messages: int, parts: int
) -> list[list[QueueRange]]:
    """Return the ranges of each task of the next batch; empty if there is nothing to archive.

    Args:
        start: where each queue continues.
        end: where each queue ends.
        most: approximate number of messages of the batch.
        file_messages: highest number of messages in a file.
        parts: number of tasks that run at once.
    """
    ends = limited(start, end, most)
    ranges = [QueueRange(queue, start[queue], ends[queue]) for queue in sorted(start)]
    total = sum(part.size for part in ranges)
    tasks = pack(ranges, min(parts, max(1, total // _TASK_MESSAGES_MIN)))
    return [[piece for part in task for piece in _pieces(part, file_messages)] for task in tasks]


def gone(done: Mapping[QueueKey, int], start: Mapping[QueueKey, int]) -> list[QueueRange]:
    """Return the messages that were deleted before they were archived: those between archived ends and new starts."""
    return [QueueRange(queue, done[queue], at) for queue, at in sorted(start.items()) if done.get(queue, at) < at]


def gone_lines(lost: Sequence[QueueRange]) -> list[str]:
    """Return a line for each range of `gone`, and one for those that are too many."""
    lines = [
        f"queue {part.queue}: messages {part.start} to {part.end - 1} are gone and not in the archive"
        for part in lost[:_GONE_LINES_MAX]
    ]
    rest = lost[_GONE_LINES_MAX:]
    if rest:
        messages = counted(sum(part.size for part in rest), "message")
        lines.append(f"{counted(len(rest), 'other queue')}: {messages} are gone and not in the archive")
    return lines


def _pieces(part: QueueRange, size: int) -> Sequence[QueueRange]:
    return [QueueRange(part.queue, start, min(start + size, part.end)) for start in range(part.start, part.end, size)]


@dataclass(frozen=True)
class ArchiveTask:
    """The work of one task; it is pickled."""

    place: str
    """The directory or URL of the archive."""
    ranges: tuple[QueueRange, ...]
    options: SourceOptions
    """Of the brokers, by name; empty for a store directory."""
    generations: Generations
    """Of the ranges' topics when the batch was planned."""
    partition_by: tuple[str, ...]
    compression: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the object store."""


def write_task(task: ArchiveTask) -> Iterator[ArchiveFile]:
    """Write the files of a task and yield their descriptions.

    Each range is read once, and once more for each `_files_max()` files that it needs besides: a file has one name and
    all messages of its range, so it cannot be closed and continued.

    Raises:
        NotArchived: a file cannot be written; names the queue and the messages.
    """
    archive = open_archive(task.place, task.settings)
    for part in task.ranges:
        written: set[_Values] = set()
        has_more = True
        while has_more:
            files = _RangeFiles(archive, task, part, written)
            try:
                for batch in read_ranges([part], task.generations, task.options, read_schema()):
                    files.add(batch)
                yield from files.finish()
            except (OSError, ValueError, pa.ArrowException) as error:
                if isinstance(error, ReputError):
                    raise  # which has named its place
                raise NotArchived(part, files.at, error) from error
            finally:
                files.discard()
            has_more = files.has_more
            written |= files.values


def _files_max() -> int:
    """Return how many files a task may have open at once, by the limit of its process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _FILES_MAX
    return max(_FILES_MIN, min(limit - _FILES_RESERVED, _FILES_MAX))


class _RangeFiles:
    """The files of one range, one for each combination of partition values, and no more than may be open at once.

    Args:
        archive: where they are written.
        task: of the range.
        part: the range.
        written: combinations whose files are there; their messages are left out.
    """

    def __init__(self, archive: Archive, task: ArchiveTask, part: QueueRange, written: Set[_Values]) -> None:
        self._archive = archive
        self._task = task
        self._part = part
        self._written = written
        self._files: dict[_Values, _OneFile] = {}
        self._files_max = _files_max()
        self._buffered = 0
        self.at = part.start
        """The offset of the first message of those that were added last."""
        self.has_more = False
        """Whether there are combinations for which no more files could be opened."""

    @property
    def values(self) -> Set[_Values]:
        """The combinations of the files."""
        return self._files.keys()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add messages, in order."""
        for values, rows in split(batch, self._task.partition_by):
            if values in self._written:
                continue
            self.at = rows.column("queueOffset")[0].as_py()
            file = self._files.get(values)
            if file is None:
                if len(self._files) >= self._files_max:
                    self.has_more = True
                    continue
                named = dict(zip(self._task.partition_by, values, strict=True))
                path = file_path(self._part, named)
                schema = file_schema(self._task.partition_by)
                file = self._files[values] = _OneFile(self._archive, path, schema, self._task.compression)
            file.add(rows)
            self._buffered += rows.nbytes
        if self._buffered >= _BUFFER_BYTES:
            for file in self._files.values():
                file.write_group()
            self._buffered = 0

    def finish(self) -> Iterator[ArchiveFile]:
        """Publish all files, durably, and yield them."""
        for file in self._files.values():
            yield file.publish(self._part.queue.topic)
        self._archive.sync([file.path for file in self._files.values()])

    def discard(self) -> None:
        """Remove unfinished files."""
        for file in self._files.values():
            file.discard()


class _OneFile:
    """A Parquet file that is published when it is complete."""

    def __init__(self, archive: Archive, path: PurePosixPath, schema: pa.Schema, compression: str) -> None:
        self.path = path
        self._file = archive.new_file(path)
        self._schema = schema
        self._writer = pq.ParquetWriter(
            self._file.content,
            schema,
            compression=compression,
            # A dictionary pays only for repeated texts.
            use_dictionary=[name for name in ("brokerName", "tags") if name in schema.names],
            write_statistics=[name for name in ("queueOffset", "storeTimestamp", "keys") if name in schema.names],
            store_schema=False,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._first_ms: int | None = None
        self._last_ms: int | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        times = pc.min_max(batch.column("storeTimestamp").cast(pa.int64())).as_py()
        if times["min"] is not None:
            low, high = times["min"] // 1000, times["max"] // 1000
            self._first_ms = low if self._first_ms is None else min(low, self._first_ms)
            self._last_ms = high if self._last_ms is None else max(high, self._last_ms)

    def write_group(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self._waiting = []
            del table
            # Otherwise Arrow's allocator keeps this memory and allocates more.
            pa.default_memory_pool().release_unused()

    def publish(self, topic: str) -> ArchiveFile:
        self.write_group()
        self._writer.close()
        size = self._file.publish()
        return ArchiveFile(self.path.as_posix(), topic, self._rows, size, self._first_ms, self._last_ms)

    def discard(self) -> None:
        try:
            self._writer.close()  # or it would write to the file when it is forgotten
        finally:
            self._file.discard()


def summed(files: list[ArchiveFile]) -> dict[str, Any]:
    """Return the totals of rows and bytes of files."""
    return {"rows": sum(file.rows for file in files), "files": len(files), "bytes": sum(file.bytes for file in files)}
