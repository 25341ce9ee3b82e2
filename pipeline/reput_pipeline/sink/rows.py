"""Turn Arrow batches into messages, grouped by topic and queue, and rows that cannot be messages into dead letters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reput_pipeline.sink.record_blocks import Columns, IntArray
from reput_pipeline.sink.schema import SinkColumns
from reput_pipeline.spark.errors import SinkError
from reput_protocol.errors import InvalidName
from reput_protocol.names import check_send_topic
from reput_protocol.printable import printable

ANY_QUEUE: Final = -1
_SLICE_BYTES: Final = 32 << 20


class Messages(NamedTuple):
    """Messages for one topic and queue, or for `ANY_QUEUE`."""

    topic: str
    queue_id: int
    columns: Columns
    deliver_at: pa.Array | None
    """Delivery times in ms, null: at once; None without the column."""


class RowReader:
    """Reads batches of one schema.

    Args:
        columns: the names of the columns.
        topic: the option `topic`, for all messages.
    """

    def __init__(self, columns: SinkColumns, topic: str | None) -> None:
        self._columns = columns
        self._topic = topic
        self.next_row = 0
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
    found = np.asarray(rows.filter(is_set)) * max(1, len(keys.dictionary)) + np.asarray(
        keys.indices.fill_null(0)
    )
    values, counts = np.unique(found, return_counts=True)
    if len(values) == len(found):
        return
    row, key = divmod(int(values[np.flatnonzero(counts > 1)[0]]), len(keys.dictionary))
    raise SinkError(
        f"{columns.name_of(row)} has more than one header {keys.dictionary[key].as_py()!r}; a message has one property "
        "of a name: keep one of them, or join their values"
    )


def _milliseconds(times: pa.Array) -> pa.Array:
    return (
        pc.floor_temporal(times, unit="millisecond").cast(pa.timestamp("ms", times.type.tz)).cast(pa.int64())
    )


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
            return SinkError(
                f"{columns.name_of(row)} has a header {header['key']!r} with a value that is not UTF-8"
            )
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


class BadRows:
    """Separates the rows of batches.

    Args:
        columns: the names of the columns.
        check: raises `SinkError` if a row of a batch cannot be a message; its second argument is the number of the
            first row.
    """

    def __init__(self, columns: SinkColumns, check: Callable[[pa.RecordBatch, int], None]) -> None:
        self._columns = columns
        self._check = check
        self._kept: list[tuple[pa.RecordBatch, SinkError]] = []

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
        columns = [
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
            for column in row.columns
        ]
        (values,) = pa.RecordBatch.from_arrays(columns, names=row.schema.names).to_pylist()
    return values


def _shown(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
