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

from reput_pipeline.binary_columns import ByteArray, IntArray, fixed_binary, parts_of, sizes_of
from reput_pipeline.errors import SinkError
from reput_pipeline.record_texts import encode_texts
from reput_pipeline.unique_id_rows import UniqueIds
from reput_protocol.checksum import crc32
from reput_protocol.properties import PROPERTIES_BYTES_MAX
from reput_protocol.record_layout import HEAD_BYTES, topic_field

BLOCK_BYTES: Final = 256 * 1024
_HEAD: Final = np.dtype(
    {
        "names": ["size", "magic", "crc", "queue_id", "flag", "born", "body_size"],
        "formats": [">i4", ">u4", ">u4", ">i4", ">i4", ">i8", ">i4"],
        "offsets": [0, 4, 8, 12, 16, 40, 84],
        "itemsize": HEAD_BYTES,
    }
)
_COPIED_BODY_MAX: Final = 2048
_COPIED_AT_ONCE: Final = 512


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
    rows = len(columns.body)
    texts = encode_texts(rows, columns.tags, columns.keys, columns.properties, topic, ids)
    text_sizes = texts.sizes
    largest = int(text_sizes.max(initial=0))
    if largest > PROPERTIES_BYTES_MAX:
        raise SinkError(
            f"a message of topic {topic!r} has tag, keys and properties of {largest} bytes, but at most "
            f"{PROPERTIES_BYTES_MAX} fit; move the rest into the body"
        )
    body_sizes = sizes_of(columns.body)
    sizes = body_sizes + text_sizes + (HEAD_BYTES + len(topic_bytes) + 2)
    starts: IntArray = np.concatenate(([0], np.cumsum(sizes)))
    edges = _edges(starts)
    queues = [next_queue() for _ in edges[1:]]

    table = np.zeros(rows, _HEAD)
    table["size"] = sizes
    table["magic"] = magic & 0xFFFF_FFFF
    table["crc"] = _checksums(columns.body)
    table["queue_id"] = np.repeat(queues, np.diff(edges))
    if columns.flag is not None:
        table["flag"] = columns.flag.fill_null(0).to_numpy(zero_copy_only=False)
    table["born"] = now_ms if columns.born_ms is None else columns.born_ms
    table["body_size"] = body_sizes
    middle: ByteArray = np.empty((rows, len(topic_bytes) + 2 + texts.heads.shape[1]), np.uint8)
    sizes_at = len(topic_bytes)
    middle[:, :sizes_at] = np.frombuffer(topic_bytes, np.uint8)
    middle[:, sizes_at] = text_sizes >> 8
    middle[:, sizes_at + 1] = text_sizes & 0xFF
    middle[:, sizes_at + 2 :] = texts.heads
    heads: ByteArray = table.view(np.uint8).reshape(rows, HEAD_BYTES)
    parts = [pa.scalar(part, pa.binary()) if isinstance(part, bytes) else part for part in texts.parts]
    joined = pc.binary_join_element_wise(fixed_binary(heads), columns.body, fixed_binary(middle), *parts, b"")
    data, _ = parts_of(joined)
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


def _checksums(bodies: pa.Array) -> npt.NDArray[np.uint32]:
    rows = len(bodies)
    sums: npt.NDArray[np.uint32] = np.empty(rows, np.uint32)
    data, starts = parts_of(bodies)
    if len(data) > rows * _COPIED_BODY_MAX:
        edges: Sequence[int] = starts.tolist()
        sums[:] = [crc32(data[start:end]) for start, end in pairwise(edges)]
    else:
        # Small ones are copied in less time than it takes to make a view of each; few at a time, so that the copies
        # stay in the processor's cache.
        for first in range(0, rows, _COPIED_AT_ONCE):
            some = bodies.slice(first, _COPIED_AT_ONCE)
            sums[first : first + len(some)] = np.fromiter(map(crc32, some.to_pylist()), np.uint32, len(some))
    sums &= np.uint32(0x7FFF_FFFF)
    return sums
