"""Read a topic, from its brokers or from a store directory, as a stream of Arrow record batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, NoReturn, TypeAlias

import pyarrow as pa

from reput_client.arrow.batches import LOG_BATCH_ROWS
from reput_client.arrow.directory import StoreDirectory, is_sequential, located, log_files
from reput_client.arrow.directory_reading import DirectoryReading
from reput_client.arrow.queues import Bounds, Generations, QueueKey, QueueRange
from reput_client.arrow.topic_reading import TopicReading
from reput_client.arrow.values import Decoder, OnBadValue, TypedColumns
from reput_client.blocking.bulk import Attempts, BulkReader
from reput_client.consume.arrow_columns import arrow_schema
from reput_client.errors import DamagedStore, DataLost
from reput_client.security import TLS, Credentials
from reput_protocol.errors import ErrorCode, TopicNotFound
from reput_protocol.filter.tags import ALL, TagFilter

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

Position: TypeAlias = Literal["earliest", "latest"] | datetime | Mapping[int, int] | Mapping[tuple[str, int], int]
"""A place in a topic: a word, the first message stored at or after a moment, or offsets by queue.

A queue is named by its number, or by the name of its broker and its number. A datetime without a time zone is local
time.
"""

TIMEOUT_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 5.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def read_arrow(
    source: str | os.PathLike[str],
    topic: str,
    *,
    columns: Sequence[str] | None = None,
    start: Position = "earliest",
    end: Position = "latest",
    queues: Iterable[int] | None = None,
    tags: str = ALL,
    decode: Decoder | None = None,
    value_type: pa.DataType | None = None,
    on_bad_value: OnBadValue = "raise",
    batch_rows: int = LOG_BATCH_ROWS,
    timeout_s: float = TIMEOUT_S,
    tls: TLS | None = None,
    credentials: Credentials | None = None,
    filesystem: FileSystem | None = None,
) -> pa.RecordBatchReader:
    """Return the messages `[start, end)` of a topic, each once, as a reader of record batches.

    Where the topic ends is decided now; messages that are stored later are not read. Each queue's messages are in
    order; those of several queues may be interleaved. Memory is that of some batches and does not grow with the topic.
    Only durable messages are read from brokers; no consumer group and no offset is changed. A directory is opened
    read-only: it may be a copy, or that of a running broker.

    Args:
        source: a broker of Reput or a name server, as `host:port` or several separated by commas; or a store directory
            of Reput or Apache RocketMQ: a path object, a text with a slash or of an existing directory, or a URL, such
            as `file:///dir` or `s3://bucket/dir`, of a file system that pyarrow knows.
        topic: its name.
        columns: names of columns as in Spark (docs/pipeline.md), in any order; by default all with RocketMQ's names.
            Columns left out are not decoded, and without `body` and `value` bodies are not verified.
        start: the first message of each queue; queues that a mapping does not name start at their first.
        end: where each queue ends, exclusive; queues that a mapping does not name end at their last message.
        queues: numbers of the queues to read; None: all.
        tags: `*`, or tags joined by `||`.
        decode: deserializes bodies, for the column `value`: a struct, or what else its schema says. By default
            `value` is in the place of `body`; both may be requested. None: `value` is Kafka's name of the body.
        value_type: the Arrow type of the values of `Json`, which has no other. A value that Arrow would coerce, such as
            1.5 to an integer, is not of the type.
        on_bad_value: what a body becomes that cannot be deserialized, or is not of the type: "raise" ends the reading
            with NotDeserialized; "null" makes its `value` null, and there is a column `error` with the reason, else
            null.
        batch_rows: most rows of a batch.
        timeout_s: seconds a request to a broker may take.
        tls, credentials: as of other clients; for brokers.
        filesystem: a file system of pyarrow, in which `source` is the path of a store directory.

    Returns:
        The reader. Where it fails, it raises DataLost if messages were deleted meanwhile, DamagedStore for a message
        that fails its checks, NotDeserialized for a body that is not of the form, RegistryUnavailable or
        RegistryRefused if `decode` has a registry that gives no schema, and the errors of requests. Its files and
        connections are closed once it is exhausted, or is not referred to any more.

    Raises:
        ValueError: no column is named, one is unknown or named twice, a queue or a position is not in the topic,
            `batch_rows` is below 1, or the values of `decode` have no column type.
        TopicNotFound: there is no such topic.
        NotAStore: the directory is not a store.
        BucketUnavailable, BucketRefused: the file system of a URL is away, or rejects a request; also by the reader.
        DataLost: an offset is not in its queue.
        ConnectFailed, RequestTimeout, BrokerError: a broker is away, or rejects a request.
    """
    typed = typed_columns(columns, decode, value_type, on_bad_value, batch_rows)
    schema = arrow_schema(columns) if typed is None else typed.schema
    read_schema = schema if typed is None else typed.read_schema
    wanted = _ReadRange(topic, start, end, None if queues is None else frozenset(queues))
    path = os.fspath(source) if filesystem is not None else _directory(source)
    if path is not None:
        batches = _read_directory(path, filesystem, wanted, TagFilter.parse(tags), read_schema)
    else:

        def connect() -> BulkReader:
            return BulkReader(
                os.fspath(source),
                timeout_s=timeout_s,
                connect_timeout_s=min(_CONNECT_TIMEOUT_S, timeout_s),
                tls=tls,
                credentials=credentials,
            )

        batches = _read_brokers(connect, os.fspath(source), wanted, TagFilter.parse(tags), read_schema)
    sliced = _sliced(batches, batch_rows)
    return pa.RecordBatchReader.from_batches(schema, sliced if typed is None else typed.batches(sliced))


def typed_columns(
    columns: Sequence[str] | None,
    decode: Decoder | None,
    value_type: pa.DataType | None,
    on_bad_value: OnBadValue,
    batch_rows: int,
) -> TypedColumns | None:
    """Check these arguments of `read_arrow`; return the typed columns, or None if nothing is decoded."""
    if columns is not None and not columns:
        raise ValueError("columns is empty, and batches without columns have no rows; name one, such as 'queueId'")
    names = list(columns or ())
    if len(set(names)) < len(names):
        raise ValueError(f"columns names a column twice: {', '.join(names)}")
    if batch_rows < 1:
        raise ValueError(f"batch_rows is {batch_rows}; a batch has at least one row")
    return None if decode is None else TypedColumns(columns, decode, value_type, on_bad_value)


def _directory(source: str | os.PathLike[str]) -> str | None:
    """Return the path of a store directory, or None for an address."""
    text = os.fspath(source)
    return text if not isinstance(source, str) or "/" in text or os.path.isdir(text) else None


def _sliced(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


class _Strict:
    """Raises for every message that cannot be read."""

    def lost(self, queue: object, reason: str) -> NoReturn:
        raise DataLost(queue, reason)

    def damaged(self, place: str, offset: int, reason: str) -> NoReturn:
        raise DamagedStore(place, offset, reason)


def _read_directory(
    path: str, filesystem: FileSystem | None, wanted: _ReadRange, tags: TagFilter, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    with StoreDirectory(path, filesystem) as store:
        if wanted.topic not in store.topics:
            raise _not_found(wanted.topic, store.path)
        queues = [queue for queue in store.queue_keys() if queue.topic == wanted.topic]
        ranges = wanted.ranges(store.bounds(queues), store.offset_at)
        parts = [located(store, part) for part in ranges]
        sequential = is_sequential(store, parts, all_tags=tags.matches_all)
        stretches = log_files(store, parts) if sequential else []

    def batches() -> Iterator[pa.RecordBatch]:
        with DirectoryReading(path, schema, _Strict(), tags, filesystem=filesystem) as reading:
            yield from reading.segments(stretches, parts) if sequential else reading.queues(ranges)

    return batches()


def _read_brokers(
    connect: Callable[[], BulkReader], where: str, wanted: _ReadRange, tags: TagFilter, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    attempts = Attempts()
    bounds: dict[QueueKey, Bounds] = {}
    generations: dict[tuple[str, str], str] = {}
    exists = False
    with connect() as reader:
        for broker in sorted(attempts(reader.cluster).broker_addr_table):
            table = attempts(reader.queue_bounds, [wanted.topic], broker)
            for topic, queues in table.topics.items():
                exists = True
                for queue_id, low, high in queues:
                    bounds[QueueKey(topic, broker, queue_id)] = Bounds(low, high)
            generations |= {(topic, broker): known for topic, known in table.generations.items()}
        if not exists:
            raise _not_found(wanted.topic, where)

        def offset_at(queue: QueueKey, when_ms: int) -> int:
            return attempts(reader.offset_by_time, queue.topic, queue.queue_id, when_ms, queue.broker)

        ranges = wanted.ranges(bounds, offset_at)
    return _fetched(connect, where, ranges, tags, generations, schema)


def _fetched(
    connect: Callable[[], BulkReader],
    where: str,
    ranges: list[QueueRange],
    tags: TagFilter,
    generations: Generations,
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Connect when the first batch is requested: a reader that is never read from needs no connection."""
    reading = TopicReading(
        connect(), schema, _Strict(), tags=tags.expression, generations=generations, attempts=Attempts(), where=where
    )
    yield from reading.batches(ranges)


def _not_found(topic: str, where: str) -> TopicNotFound:
    return TopicNotFound(ErrorCode.NO_TOPIC, f"topic {topic!r} does not exist in {where}")


@dataclass(frozen=True)
class _ReadRange:
    """Which messages to read."""

    topic: str
    start: Position
    end: Position
    queue_ids: frozenset[int] | None

    def ranges(self, bounds: Mapping[QueueKey, Bounds], offset_at: Callable[[QueueKey, int], int]) -> list[QueueRange]:
        """Return the ranges that are not empty, by broker and queue.

        Args:
            bounds: of all queues of the topic.
            offset_at: returns the offset of the first message stored at or after a time in ms.

        Raises:
            ValueError, DataLost: as `read_arrow`.
        """
        numbers = {queue.queue_id for queue in bounds}
        for queue_id in sorted(self.queue_ids or ()):
            if queue_id not in numbers:
                raise ValueError(f"topic {self.topic!r} has no queue {queue_id}; it has {_listed(numbers)}")
        chosen = sorted(queue for queue in bounds if self.queue_ids is None or queue.queue_id in self.queue_ids)
        starts = self._offsets("start", self.start, chosen, bounds, offset_at)
        ends = self._offsets("end", self.end, chosen, bounds, offset_at)
        return [QueueRange(queue, starts[queue], ends[queue]) for queue in chosen if starts[queue] < ends[queue]]

    def _offsets(
        self,
        name: str,
        position: Position,
        queues: Sequence[QueueKey],
        bounds: Mapping[QueueKey, Bounds],
        offset_at: Callable[[QueueKey, int], int],
    ) -> dict[QueueKey, int]:
        """Return the offset of a position in each queue."""
        if isinstance(position, datetime):
            when_ms = -((_EPOCH - position.astimezone(UTC)) // _MILLISECOND)  # rounded up
            return {
                queue: min(max(offset_at(queue, when_ms), bounds[queue].low), bounds[queue].high) for queue in queues
            }
        if isinstance(position, Mapping):
            unnamed: Position = "earliest" if name == "start" else "latest"
            offsets = self._offsets(name, unnamed, queues, bounds, offset_at)
            for key, offset in position.items():
                queue = self._named(name, key, queues)
                low, high = bounds[queue]
                if not low <= offset <= high:
                    raise DataLost(queue, f"{name} is {offset}, but its messages are [{low}, {high})")
                offsets[queue] = offset
            return offsets
        if position not in ("earliest", "latest"):
            raise ValueError(
                f"{name} is {position!r}; it is 'earliest', 'latest', a datetime, or offsets by queue as {{0: 17}}"
            )
        return {queue: bounds[queue].low if position == "earliest" else bounds[queue].high for queue in queues}

    def _named(self, name: str, key: int | tuple[str, int], queues: Sequence[QueueKey]) -> QueueKey:
        """Return the queue that a key of a mapping names."""
        broker, queue_id = key if isinstance(key, tuple) else (None, key)
        found = [queue for queue in queues if queue.queue_id == queue_id and broker in (None, queue.broker)]
        if not found:
            raise ValueError(
                f"{name} names queue {key!r}, which is not read; the queues of topic {self.topic!r} are "
                f"{', '.join(map(str, queues)) or 'none'}"
            )
        if len(found) > 1:
            brokers = ", ".join(repr(queue.broker) for queue in found)
            raise ValueError(
                f"{name} names queue {key!r}, which brokers {brokers} each have; name it by its broker too, such as "
                f"{(found[0].broker, queue_id)!r}"
            )
        return found[0]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"
