"""Arrow columns to blocks of records, as PutMessage takes them: the way back of the columnar decoder.

A record is head, body, topic and properties. Heads are rows of a NumPy table, properties and the whole are joined by
Arrow, and what comes out is one buffer of records back to back with their places. Nothing is done per message but the
checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reput_pipeline.errors import SinkError
from reput_protocol.checksum import crc32
from reput_protocol.properties import (
    CRC32,
    KEYS,
    PROPERTIES_BYTES_MAX,
    TAGS,
    UNIQ_KEY,
    reserved_property,
)
from reput_protocol.record_layout import HEAD_BYTES, topic_field

IntArray = npt.NDArray[np.int64]
ByteArray = npt.NDArray[np.uint8]

BLOCK_BYTES: Final = 256 * 1024
_HEAD: Final = np.dtype(
    {
        "names": ["size", "magic", "crc", "queue_id", "flag", "born", "body_size"],
        "formats": [">i4", ">u4", ">u4", ">i4", ">i4", ">i8", ">i4"],
        "offsets": [0, 4, 8, 12, 16, 40, 84],
        "itemsize": HEAD_BYTES,
    }
)
_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_COUNTER_DIGITS: Final = 12
_SHIFTS: Final = np.arange(_COUNTER_DIGITS - 1, -1, -1, dtype=np.int64) * 4
_NAME_END: Final = 1
_VALUE_END: Final = 2


class Columns(NamedTuple):
    """The columns of messages of one topic, all of one length; None where nobody gives one."""

    body: pa.Array
    """binary, without nulls."""
    tags: pa.Array | None = None
    """string; null and empty are no tag."""
    keys: pa.Array | None = None
    """string, several keys with blanks between them; null and empty are none."""
    properties: pa.MapArray | None = None
    """map of string to string."""
    flag: pa.Array | None = None
    born_ms: IntArray | None = None

    def take(self, rows: IntArray) -> Columns:
        """Return some of the messages."""
        some = pa.array(rows)
        return self._each(
            lambda column: column.take(some), None if self.born_ms is None else self.born_ms[rows]
        )

    def slice(self, start: int, stop: int) -> Columns:
        """Return a range of the messages."""
        born_ms = None if self.born_ms is None else self.born_ms[start:stop]
        return self._each(lambda column: column.slice(start, stop - start), born_ms)

    def _each(self, pick: Callable[[pa.Array], pa.Array], born_ms: IntArray | None) -> Columns:
        body, tags, keys, properties, flag = (
            None if column is None else pick(column)
            for column in (self.body, self.tags, self.keys, self.properties, self.flag)
        )
        return Columns(body, tags, keys, properties, flag, born_ms)


class Block(NamedTuple):
    """Records of one queue, back to back."""

    queue_id: int
    messages: int
    data: memoryview


class UniqueIds:
    """Unique ids in RocketMQ's form, many at a time: 20 digits of who makes them, 12 that count on from the time."""

    def __init__(self, identity: bytes, now_ms: int) -> None:
        """Take 10 bytes that nobody else has, and the time."""
        assert len(identity) == 10, "address, process and a random number"
        self._prefix: ByteArray = np.frombuffer(identity.hex().upper().encode(), np.uint8)
        self._next = (now_ms & 0xFFFF_FFFF) << 16

    def take(self, count: int) -> pa.Array:
        """Return so many ids as a binary column."""
        numbers = np.arange(self._next, self._next + count, dtype=np.int64)
        self._next += count
        digits: ByteArray = np.empty((count, len(self._prefix) + _COUNTER_DIGITS), np.uint8)
        digits[:, : len(self._prefix)] = self._prefix
        digits[:, len(self._prefix) :] = _HEX[(numbers[:, None] >> _SHIFTS) & 15]
        return _fixed(digits)


def encode_records(
    columns: Columns, topic: str, next_queue: Callable[[], int], ids: UniqueIds, now_ms: int
) -> Iterator[Block]:
    """Yield the messages as blocks of about 256 KiB, a record at least in each.

    Args:
        columns: the messages.
        topic: of all of them.
        next_queue: says to which queue the next block goes.
        ids: gives unique ids to those that bring none.
        now_ms: when those were born that do not say.

    Raises:
        SinkError: a message cannot be a record; it says which property or size is at fault.
    """
    magic, topic_bytes = topic_field(topic.encode())
    texts = _texts(columns, topic, ids)
    text_sizes = _sizes(texts)
    largest = int(text_sizes.max(initial=0))
    if largest > PROPERTIES_BYTES_MAX:
        raise SinkError(
            f"a message of topic {topic!r} has tag, keys and properties of {largest} bytes, but at most "
            f"{PROPERTIES_BYTES_MAX} fit; move the rest into the body"
        )
    body_sizes = _sizes(columns.body)
    sizes = body_sizes + text_sizes + (HEAD_BYTES + len(topic_bytes) + 2)
    starts: IntArray = np.concatenate(([0], np.cumsum(sizes)))
    edges = _edges(starts)
    queues = [next_queue() for _ in edges[1:]]

    rows = len(columns.body)
    table = np.zeros(rows, _HEAD)
    table["size"] = sizes
    table["magic"] = magic & 0xFFFF_FFFF
    table["crc"] = _checksums(columns.body)
    table["queue_id"] = np.repeat(queues, np.diff(edges))
    if columns.flag is not None:
        table["flag"] = columns.flag.fill_null(0).to_numpy(zero_copy_only=False)
    table["born"] = now_ms if columns.born_ms is None else columns.born_ms
    table["body_size"] = body_sizes
    middle: ByteArray = np.empty((rows, len(topic_bytes) + 2), np.uint8)
    middle[:, :-2] = np.frombuffer(topic_bytes, np.uint8)
    middle[:, -2] = text_sizes >> 8
    middle[:, -1] = text_sizes & 0xFF
    heads: ByteArray = table.view(np.uint8).reshape(rows, HEAD_BYTES)
    joined = pc.binary_join_element_wise(_fixed(heads), columns.body, _fixed(middle), texts, b"")
    data, _ = _parts(joined)
    for queue_id, first, stop in zip(queues, edges, edges[1:], strict=False):
        yield Block(queue_id, stop - first, data[int(starts[first]) : int(starts[stop])])


def _edges(starts: IntArray) -> list[int]:
    """Return the rows at which blocks begin, and where the last one ends."""
    edges = [0]
    while edges[-1] < len(starts) - 1:
        first = edges[-1]
        limit = int(starts[first]) + BLOCK_BYTES
        edges.append(max(first + 1, int(np.searchsorted(starts, limit, "right")) - 1))
    return edges


def _texts(columns: Columns, topic: str, ids: UniqueIds) -> pa.Array:
    """Return the properties text of each message, as binary."""
    rows = len(columns.body)
    units = 0
    parts: list[pa.Array] = []
    own_ids: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
    rest: pa.Array | None = None
    if columns.properties is not None:
        rest, own_ids, count = _map_texts(columns, topic)
        units += count
    fresh = _unit(UNIQ_KEY, ids.take(rows))
    if own_ids.any():
        fresh = pc.if_else(pa.array(own_ids), pa.scalar(None, pa.binary()), fresh)
    parts.append(fresh)
    units += rows - int(own_ids.sum())
    for name, column in ((TAGS, columns.tags), (KEYS, columns.keys)):
        if column is not None:
            values = column.cast(pa.binary())
            values = pc.if_else(pc.equal(pc.binary_length(values), 0), pa.scalar(None, pa.binary()), values)
            parts.append(_unit(name, values))
            units += rows - values.null_count
    if rest is not None:
        parts.append(rest)
    texts = pc.binary_join_element_wise(*parts, b"", null_handling="skip")
    _check_separators(texts, units, topic)
    return texts


def _unit(name: str, values: pa.Array) -> pa.Array:
    """Return `name 0x01 value 0x02` for each value, null for a null."""
    end = pa.scalar(b"\x02", pa.binary())
    start = pa.scalar(name.encode() + b"\x01", pa.binary())
    return pc.binary_join_element_wise(start, values, end, b"")


def _map_texts(columns: Columns, topic: str) -> tuple[pa.Array, npt.NDArray[np.bool_], int]:
    """Return the texts of the map column, which rows have a unique id in it, and how many units there are."""
    properties = columns.properties
    assert properties is not None, "asked for where there is one"
    rows = len(properties)
    offsets: IntArray = np.asarray(properties.offsets.to_numpy(), np.int64)
    offsets = offsets[: rows + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    names = properties.keys.slice(first, last - first)
    values = properties.items.slice(first, last - first)
    row: IntArray = np.repeat(np.arange(rows), np.diff(offsets))
    if properties.null_count:  # a null map may have entries beneath it
        beneath = pa.array(np.asarray(properties.is_null())[row])
        values = pc.if_else(beneath, pa.scalar(None, values.type), values)
    _check_names(names, topic)
    dropped = [CRC32]
    if columns.tags is not None:
        dropped.append(TAGS)
    if columns.keys is not None:
        dropped.append(KEYS)
    kept = pc.and_(pc.is_valid(values), pc.invert(pc.is_in(names, value_set=pa.array(dropped, names.type))))
    if pc.any(pc.and_(kept, pc.equal(pc.binary_length(values), 0))).as_py():
        raise SinkError(
            f"a message of topic {topic!r} has a property without a value; leave it out, or make it null"
        )
    ids = pc.and_(kept, pc.equal(names, UNIQ_KEY))
    own: npt.NDArray[np.bool_] = np.zeros(rows, np.bool_)
    own[row[np.asarray(ids)]] = True
    name_end, value_end = pa.scalar(b"\x01", pa.binary()), pa.scalar(b"\x02", pa.binary())
    texts = pc.binary_join_element_wise(
        names.cast(pa.binary()), name_end, values.cast(pa.binary()), value_end, b""
    )
    texts = pc.if_else(kept, texts, pa.scalar(b"", pa.binary()))
    lists = pa.ListArray.from_arrays(pa.array(offsets - first, pa.int32()), texts)
    return pc.binary_join(lists, b""), own, int(pc.sum(kept).as_py() or 0)


def _check_names(names: pa.Array, topic: str) -> None:
    for name in pc.unique(names).to_pylist():
        if not name:
            raise SinkError(f"a message of topic {topic!r} has a property with an empty name; give it one")
        if name != CRC32 and reserved_property(f"{name}\x01x\x02".encode()) is not None:
            raise SinkError(
                f"a message of topic {topic!r} has the property {name!r}, which only the broker may set; leave it out"
            )


def _check_separators(texts: pa.Array, units: int, topic: str) -> None:
    """Refuse texts in which a tag, key or property holds one of the separators, 0x01 and 0x02."""
    data, _ = _parts(texts)
    raw: ByteArray = np.frombuffer(data, np.uint8)
    if int((raw == _NAME_END).sum()) != units or int((raw == _VALUE_END).sum()) != units:
        raise SinkError(
            f"a message of topic {topic!r} has a tag, key or property with one of the characters U+0001 and U+0002, "
            "which separate properties; leave them out"
        )


def _checksums(bodies: pa.Array) -> npt.NDArray[np.uint32]:
    data, starts = _parts(bodies)
    edges: Sequence[int] = starts.tolist()
    sums = [crc32(data[start:end]) & 0x7FFF_FFFF for start, end in pairwise(edges)]
    return np.array(sums, np.uint32)


def _sizes(values: pa.Array) -> IntArray:
    return np.diff(_parts(values)[1])


def _parts(values: pa.Array) -> tuple[memoryview, IntArray]:
    """Return the bytes of a binary column, of which no value is null, and where each value starts and the last ends."""
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


def _fixed(rows: ByteArray) -> pa.Array:
    """Return rows of bytes of one size as a binary column."""
    count, size = rows.shape
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)[: count + 1]
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    )
