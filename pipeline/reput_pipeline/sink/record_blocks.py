"""Encode Arrow columns to blocks of records, as PutMessage takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reput_pipeline.spark.errors import SinkError
from reput_protocol.kernel.put_blocks import Refusal, encode_rows, property_texts
from reput_protocol.property_rules import is_reserved, without_effect
from reput_protocol.record.message_id import UniqueIdGenerator
from reput_protocol.record.put_block import topic_of_records

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

    def _each(
        self, pick: Callable[[pa.Array], pa.Array], pick_numbers: Callable[[IntArray], IntArray]
    ) -> Columns:
        body, tags, keys, properties, flag = (
            None if column is None else pick(column)
            for column in (self.body, self.tags, self.keys, self.properties, self.flag)
        )
        born_ms, numbers = (
            None if column is None else pick_numbers(column) for column in (self.born_ms, self.numbers)
        )
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


def _are_without_effect(
    names: pa.Array, values: pa.Array, edges: IntArray, now_ms: int
) -> npt.NDArray[np.bool_]:
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
