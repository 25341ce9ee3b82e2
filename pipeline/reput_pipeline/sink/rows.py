"""Turn Arrow batches into messages, grouped by topic and queue, and rows that cannot be messages into dead letters.

Messages become blocks of records, as PutMessage takes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reput_pipeline.sink.options import SinkColumns
from reput_pipeline.spark.errors import SinkError
from reput_protocol.errors import InvalidName
from reput_protocol.kernel.put_blocks import Refusal, encode_rows, property_texts
from reput_protocol.names import check_send_topic
from reput_protocol.printable import printable
from reput_protocol.property_rules import is_reserved, without_effect
from reput_protocol.record.message_id import UniqueIdGenerator
from reput_protocol.record.put_block import topic_of_records

ANY_QUEUE: Final = -1
_SLICE_BYTES: Final = 32 << 20
IntArray = npt.NDArray[np.int64]


def parts_of(values: pa.Array) -> tuple[memoryview, IntArray]:
    """Return the bytes of a binary column without nulls, and its offsets: each value's start and the last end."""
    _, offsets, data = values.buffers()
    rows = len(values)
    edges = (
        np.frombuffer(offsets, np.int32, rows + 1, values.offset * 4).astype(np.int64)
        if rows
        else np.zeros(1, np.int64)
    )
    if data is None:
        return memoryview(b""), edges - edges[0]
    return memoryview(data)[int(edges[0]) : int(edges[-1])].cast("B"), edges - edges[0]


BLOCK_BYTES: Final = 512 * 1024
"""Half of it costs the broker a quarter more CPU time; twice as much delays the sends of others."""
_NO_EDGES: Final = np.empty(0, np.int64)
_NOTHING: Final = (b"", _NO_EDGES)


class Columns(NamedTuple):
    """Columns of messages of one topic, of equal length; None: no column."""

    body: pa.Array
    """binary, without nulls."""
    tags: pa.Array | None = None
    """string; null or empty is no tag."""
    keys: pa.Array | None = None
    """string, keys separated by spaces; null or empty is no key."""
    properties: pa.MapArray | None = None
    """map of string to string; null and empty values are left out; a column takes precedence over its tag or keys."""
    flag: pa.Array | None = None
    born_ms: IntArray | None = None
    numbers: IntArray | None = None
    """The rows' numbers in their partition, for errors."""

    def take(self, rows: IntArray) -> Columns:
        """Return some of the messages."""
        some = pa.array(rows)
        return self._each(lambda column: column.take(some), lambda column: column[rows])

    def slice(self, start: int, stop: int) -> Columns:
        """Return a range of the messages."""
        return self._each(lambda column: column.slice(start, stop - start), lambda column: column[start:stop])

    def _each(self, pick: Callable[[pa.Array], pa.Array], pick_numbers: Callable[[IntArray], IntArray]) -> Columns:
        body, tags, keys, properties, flag = (
            None if column is None else pick(column)
            for column in (self.body, self.tags, self.keys, self.properties, self.flag)
        )
        born_ms, numbers = (None if column is None else pick_numbers(column) for column in (self.born_ms, self.numbers))
        return Columns(body, tags, keys, properties, flag, born_ms, numbers)

    def name_of(self, row: int) -> str:
        """Return the words for a message in an error: its row and keys."""
        keys = None if self.keys is None else self.keys[row].as_py()
        number = row if self.numbers is None else int(self.numbers[row])
        return f"row {number} of the partition ({f'keys {keys!r}' if keys else 'without keys'})"


class RecordBlock(NamedTuple):
    """Records of one queue, back to back."""

    queue_id: int
    messages: int
    data: bytearray


def encode_records(
    columns: Columns, topic: str, next_queue: Callable[[], int], ids: UniqueIdGenerator, now_ms: int
) -> Iterator[RecordBlock]:
    """Yield the messages as blocks of about 512 KiB, at least a record each.

    Args:
        columns: the messages.
        topic: of all messages.
        next_queue: returns the queue of the next block.
        ids: makes unique ids for messages without one.
        now_ms: born time of messages without one.

    Raises:
        SinkError: a message cannot be encoded.
    """
    magic, topic_bytes = topic_of_records(topic)
    rows = len(columns.body)
    flags = np.zeros(1, np.int64)
    if columns.flag is not None:
        flags = columns.flag.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    born_ms = np.array([now_ms]) if columns.born_ms is None else columns.born_ms
    bodies, body_edges = parts_of(columns.body)
    try:
        of_columns = (*_strings(columns.tags), *_strings(columns.keys))
        try:
            texts, text_edges = property_texts(rows, *of_columns, *_entries(columns.properties))
        except Refusal:
            # Perhaps for what the broker has set of which a message was read. It is looked for here, as it is rare.
            texts, text_edges = property_texts(rows, *of_columns, *_entries(columns.properties, now_ms))
        row = 0
        while row < rows:
            queue_id, first = next_queue(), row
            data, row = encode_rows(
                bodies,
                body_edges,
                texts,
                text_edges,
                flags,
                born_ms,
                first,
                BLOCK_BYTES,
                magic,
                topic_bytes,
                queue_id,
                ids,
            )
            yield RecordBlock(queue_id, row - first, data)
    except Refusal as refusal:
        raise SinkError(f"{columns.name_of(refusal.index)}, for topic {topic!r}, {refusal.reason}") from None


def _strings(column: pa.Array | None) -> tuple[memoryview | bytes, IntArray]:
    """Return bytes and offsets of a text column, as `parts_of`; null is empty."""
    if column is None:
        return _NOTHING
    return parts_of((column.fill_null("") if column.null_count else column).cast(pa.binary()))


def _entries(properties: pa.MapArray | None, now_ms: int | None = None) -> tuple[Any, ...]:
    """Return names and values of all properties, a mask of those that are written, and the offsets of each message's.

    Args:
        properties: of the messages; those without a value are not written.
        now_ms: leaves out those that are `without_effect`, too; None: they are written.
    """
    if properties is None:
        return *_NOTHING, *_NOTHING, np.empty(0, np.uint8), _NO_EDGES
    rows = len(properties)
    edges: IntArray = np.asarray(properties.offsets.to_numpy(), np.int64)[: rows + 1]
    first, last = int(edges[0]), int(edges[-1])
    names = properties.keys.slice(first, last - first)
    values = properties.items.slice(first, last - first)
    if properties.null_count:  # a null map may still have entries
        beneath = np.repeat(np.asarray(properties.is_null()), np.diff(edges))
        values = pc.if_else(pa.array(beneath), pa.scalar(None, values.type), values)
    data, value_edges = _strings(values)
    is_set = np.diff(value_edges) > 0  # null is empty, too
    if now_ms is not None:
        is_set &= ~_are_without_effect(names, values, edges - first, now_ms)
    return *_strings(names), data, value_edges, is_set.view(np.uint8), edges - first


def _are_without_effect(names: pa.Array, values: pa.Array, edges: IntArray, now_ms: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the properties that are `without_effect`; `edges` are the offsets of each message's."""
    found = np.zeros(len(names), np.bool_)
    reserved = [name for name in names.unique().drop_null().to_pylist() if is_reserved(name)]
    at = np.flatnonzero(np.asarray(pc.is_in(names, pa.array(reserved, names.type))))
    for row in np.unique(np.searchsorted(edges, at, "right") - 1).tolist():
        part = slice(int(edges[row]), int(edges[row + 1]))
        pairs = zip(names[part].to_pylist(), values[part].to_pylist(), strict=True)
        dropped = without_effect({name: value for name, value in pairs if value}, now_ms)
        found[part] = [name in dropped for name in names[part].to_pylist()]
    return found


class Messages(NamedTuple):
    """Messages for one topic and queue, or for `ANY_QUEUE`."""

    topic: str
    queue_id: int
    columns: Columns
    deliver_at: pa.Array | None
    """Delivery times in ms, null: at once; None without the column."""


@dataclass(eq=False, repr=False)
class RowReader:
    """Reads batches of one schema.

    Args:
        columns: the names of the columns.
        topic: the option `topic`, for all messages.
    """

    _columns: SinkColumns
    _topic: str | None
    next_row: int = field(default=0, init=False)
    """The number of the next row in its partition."""

    def messages(self, batch: pa.RecordBatch) -> Iterator[Messages]:
        """Yield the messages of a batch by topic and queue, in the order of rows.

        Raises:
            SinkError: a row has no body, or an invalid value.
        """
        for some in _slices(batch, self._columns.body):
            yield from self._groups(some)

    def _groups(self, batch: pa.RecordBatch) -> Iterator[Messages]:
        names = self._columns
        columns = self._make(batch)
        self.next_row += batch.num_rows
        deliver_at = None
        if names.deliver_at is not None:
            deliver_at = _milliseconds(batch.column(names.deliver_at))
        if names.topic is None and names.queue_id is None:
            yield Messages(str(self._topic), ANY_QUEUE, columns, deliver_at)
            return
        rows = batch.num_rows
        topics = [str(self._topic)]
        topic_of: IntArray = np.zeros(rows, np.int64)
        if names.topic is not None:
            encoded = batch.column(names.topic).dictionary_encode()
            topics = encoded.dictionary.to_pylist()
            topic_of = np.asarray(encoded.indices, np.int64)
            for number, topic in enumerate(topics):
                try:
                    check_send_topic(topic)
                except InvalidName as error:
                    row = int(np.flatnonzero(topic_of == number)[0])
                    raise SinkError(f"{columns.name_of(row)}: column 'topic': {error}") from None
        queue_of: IntArray = np.full(rows, ANY_QUEUE, np.int64)
        if names.queue_id is not None:
            column = batch.column(names.queue_id)
            queue_of = np.asarray(column.fill_null(ANY_QUEUE), np.int64)
            below = np.flatnonzero(np.asarray(pc.less(column, 0).fill_null(False)))
            if len(below):
                raise SinkError(
                    f"{columns.name_of(int(below[0]))}: column {names.queue_id!r} has a number below 0; leave it null "
                    "for any queue"
                )
        order = np.lexsort((queue_of, topic_of))
        changes = np.flatnonzero(np.diff(topic_of[order]) | np.diff(queue_of[order])) + 1
        for group in np.split(order, changes):
            yield Messages(
                topics[int(topic_of[group[0]])],
                int(queue_of[group[0]]),
                columns if len(group) == rows else columns.take(group),
                None if deliver_at is None else deliver_at.take(pa.array(group)),
            )

    def _check_nulls(self, batch: pa.RecordBatch, columns: Columns) -> None:
        names = self._columns
        topics = None if names.topic is None else batch.column(names.topic)
        if topics is not None and topics.null_count:
            raise SinkError(
                f"{columns.name_of(_first_null(topics))} has no topic; give it one, or set the option topic"
            )
        if columns.body.null_count:
            row = _first_null(columns.body)
            topic = self._topic if topics is None else topics[row].as_py()
            raise SinkError(
                f"{columns.name_of(row)}, for topic {topic!r}, has a null {names.body!r}; a message has a body, "
                "which may be empty: drop the row, or make it ''"
            )

    def _make(self, batch: pa.RecordBatch) -> Columns:
        names = self._columns

        def column(name: str | None, kind: pa.DataType) -> pa.Array | None:
            if name is None:
                return None
            found = batch.column(name)
            try:
                return found if found.type == kind else found.cast(kind)
            except pa.ArrowInvalid as error:
                row = next(row for row, value in enumerate(found.to_pylist()) if not _is_text(value))
                raise SinkError(
                    f"row {self.next_row + row} of the partition: column {name!r} is not UTF-8: {error}"
                ) from None

        columns = Columns(
            body=column(names.body, pa.binary()),
            tags=column(names.tags, pa.string()),
            keys=column(names.keys, pa.string()),
            flag=column(names.flag, pa.int32()),
            numbers=np.arange(self.next_row, self.next_row + batch.num_rows),
        )
        self._check_nulls(batch, columns)
        if names.born is not None:
            columns = columns._replace(born_ms=_born(batch.column(names.born), names.born, columns))
        if names.properties is None:
            return columns
        properties = batch.column(names.properties)
        if not pa.types.is_map(properties.type):
            _check_distinct(properties, columns)
            properties = _map_of(properties, columns)
        return columns._replace(properties=properties)


def _born(times: pa.Array, name: str, columns: Columns) -> IntArray:
    if times.null_count:
        raise SinkError(
            f"{columns.name_of(_first_null(times))} has a null {name!r}; leave the column out for the time of writing"
        )
    return np.asarray(_milliseconds(times), np.int64)


def _first_null(column: pa.Array) -> int:
    return int(np.flatnonzero(np.asarray(column.is_null()))[0])


def _check_distinct(headers: pa.ListArray, columns: Columns) -> None:
    """Check that no message has two headers of one key: readers would return only the last of them."""
    every = headers.flatten()
    rows = pc.list_parent_indices(headers)
    is_set = pc.greater(pc.binary_length(every.field("value")), 0).fill_null(False)  # as they are written
    keys = every.field("key").filter(is_set).dictionary_encode()
    found = np.asarray(rows.filter(is_set)) * max(1, len(keys.dictionary)) + np.asarray(keys.indices.fill_null(0))
    values, counts = np.unique(found, return_counts=True)
    if len(values) == len(found):
        return
    row, key = divmod(int(values[np.flatnonzero(counts > 1)[0]]), len(keys.dictionary))
    raise SinkError(
        f"{columns.name_of(row)} has more than one header {keys.dictionary[key].as_py()!r}; a message has one property "
        "of a name: keep one of them, or join their values"
    )


def _milliseconds(times: pa.Array) -> pa.Array:
    return pc.floor_temporal(times, unit="millisecond").cast(pa.timestamp("ms", times.type.tz)).cast(pa.int64())


def _map_of(headers: pa.ListArray, columns: Columns) -> pa.MapArray:
    """Return headers, structs of key and value, as a map."""
    offsets = np.asarray(headers.offsets, np.int64)
    first = int(offsets[0])
    # Of these rows only, which may be some of a batch: a header of another one is no reason to reject them.
    entries = headers.values.slice(first, int(offsets[-1]) - first)
    keys = entries.field("key")
    try:
        values = entries.field("value").cast(pa.string())
    except pa.ArrowInvalid:
        values = None
    if keys.null_count or values is None:
        raise _bad_header(headers, columns)
    is_null = np.append(np.asarray(headers.is_null()), False)
    return pa.MapArray.from_arrays(pa.array(offsets - first, pa.int32(), mask=is_null), keys, values)


def _bad_header(headers: pa.ListArray, columns: Columns) -> SinkError:
    """Return the error for the first header without a key, or with a value that is not UTF-8."""
    rows = pc.list_parent_indices(headers).to_pylist()
    for row, header in zip(rows, headers.flatten().to_pylist(), strict=True):
        if header is None or header["key"] is None:
            return SinkError(f"{columns.name_of(row)} has a header without a key; give it one")
        if not _is_text(header["value"]):
            return SinkError(f"{columns.name_of(row)} has a header {header['key']!r} with a value that is not UTF-8")
    raise AssertionError("one of them is bad")


def _is_text(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _slices(batch: pa.RecordBatch, body: str) -> Iterator[pa.RecordBatch]:
    """Yield a batch in parts well below 2 GiB, the limit of Arrow's 32-bit offsets."""
    sizes = np.asarray(pc.binary_length(batch.column(body)).fill_null(0), np.int64)
    if int(sizes.sum()) <= _SLICE_BYTES:
        if batch.num_rows:
            yield batch
        return
    ends = np.cumsum(sizes)
    first = 0
    while first < batch.num_rows:
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + _SLICE_BYTES, "right")))
        yield batch.slice(first, stop - first)
        first = stop


REASON: Final = "BAD_ROW_REASON"
COLUMNS: Final = "BAD_ROW_COLUMNS"
"""Properties of a dead letter: the error, and the row's other columns as JSON."""
_REASON_MAX: Final = 2000
_COLUMNS_MAX: Final = 8000
"""Characters, at most three bytes each, so that both fit into a message's properties."""


@dataclass(eq=False, repr=False)
class BadRows:
    """Separates the rows of batches.

    Args:
        columns: the names of the columns.
        check: raises `SinkError` if a row of a batch cannot be a message; its second argument is the number of the
            first row.
    """

    _columns: SinkColumns
    _check: Callable[[pa.RecordBatch, int], None]
    _kept: list[tuple[pa.RecordBatch, SinkError]] = field(default_factory=list, init=False)

    def sift(self, batch: pa.RecordBatch, first: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the parts of a batch that are messages, each with the number of its first row; keep the other rows."""
        if not batch.num_rows:
            return
        try:
            self._check(batch, first)
        except SinkError as error:
            if batch.num_rows == 1:
                self._kept.append((batch, error))
                return
            half = batch.num_rows // 2
            yield from self.sift(batch.slice(0, half), first)
            yield from self.sift(batch.slice(half), first + half)
        else:
            yield batch, first

    def take(self, body_max: int) -> Columns | None:
        """Return the kept rows as messages, and forget them; None without any. A longer body is cut to `body_max`."""
        kept, self._kept = self._kept, []
        if not kept:
            return None
        rows = [_in_python(row) for row, _ in kept]
        bodies = [row.pop(self._columns.body) or b"" for row in rows]
        texts = [body.encode() if isinstance(body, str) else body for body in bodies]
        return Columns(
            body=pa.array([text[:body_max] for text in texts], pa.binary()),
            properties=pa.array(
                [
                    [
                        (REASON, printable(str(error))[:_REASON_MAX]),
                        (COLUMNS, json.dumps(row, default=_shown)[:_COLUMNS_MAX]),
                    ]
                    for row, (_, error) in zip(rows, kept, strict=True)
                ],
                pa.map_(pa.string(), pa.string()),
            ),
        )


def _in_python(row: pa.RecordBatch) -> dict[str, Any]:
    """Return the values of a row; times are numbers of microseconds if one of them is after the year 9999."""
    values: dict[str, Any]
    try:
        (values,) = row.to_pylist()
    except OverflowError:
        columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in row.columns]
        (values,) = pa.RecordBatch.from_arrays(columns, names=row.schema.names).to_pylist()
    return values


def _shown(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
