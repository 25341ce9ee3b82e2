"""Records, decoded to columns, as the Arrow batches that Spark takes: the columns that were asked for, no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from reput_client.arrow_properties import BatchProperties, KeysAndTags, rows_with_tag
from reput_client.arrow_slices import gather_slices, numbers, with_replaced
from reput_pipeline.bodies import compressed_rows, decompress
from reput_protocol.filters import TagFilter
from reput_protocol.record_columns import IntArray, RecordColumns

BATCH_ROWS: Final = 8192
BATCH_BYTES: Final = 16 << 20
"""A batch has at most so many rows, and records of so many bytes, unless a single one is larger."""
BATCH_INFLATED_BYTES: Final = 64 << 20
"""Once the compressed bodies of a batch have become so many bytes, what follows makes another batch."""
LOG_BATCH_ROWS: Final = 32_768
"""So many, where all that one read of the log has brought makes a batch."""

_BODIES: Final = frozenset(("body", "value", "bodyCRC"))
_ALL_PROPERTIES: Final = frozenset(("properties", "headers"))
_US_PER_MS: Final = 1000

BadRow = Callable[[RecordColumns, int, str], None]
"""Told of a record whose content fails: the columns, the row, and why. It raises, or notes that the row is left out."""


class BatchMaker:
    """Makes batches of one schema.

    Args:
        schema: the Arrow schema that every batch has to have.
        tag_filter: which messages are wanted.
        on_bad_row: told of records that fail their checksums or cannot be decompressed.
    """

    def __init__(self, schema: pa.Schema, tag_filter: TagFilter, on_bad_row: BadRow) -> None:
        self.schema = schema
        self._tag_filter = tag_filter
        self._on_bad_row = on_bad_row
        self._has_bodies = any(name in _BODIES for name in schema.names)

    def make(self, columns: RecordColumns, broker: str) -> Iterator[pa.RecordBatch]:
        """Yield what is wanted of the records: one batch, or none, or several where compressed bodies become large.

        The records have sound lengths and ascend in their buffer. Checksums are verified here: of the bodies if the
        schema has them, of the whole record wherever there is one.
        """
        faults = dict(columns.crc_faults(bodies=self._has_bodies))
        if faults:
            for row, reason in faults.items():
                self._on_bad_row(columns, row, reason)
            columns = columns.take(np.setdiff1d(np.arange(len(columns)), list(faults)))
        batch = _Batch(columns, broker, self.schema, {})
        if not self._tag_filter.matches_all and len(columns):
            rows = rows_with_tag(batch.keys_and_tags.value_of("TAGS", pa.string()), self._tag_filter.tags)
            if len(rows) < len(columns):
                columns = columns.take(rows)
                batch = _Batch(columns, broker, self.schema, {})
        compressed = compressed_rows(columns).tolist() if self._has_bodies else []
        if compressed:
            yield from self._decompressed(columns, compressed, broker)
        elif len(columns):
            yield batch.record_batch()

    def _decompressed(
        self, columns: RecordColumns, compressed: list[int], broker: str
    ) -> Iterator[pa.RecordBatch]:
        bodies: dict[int, bytes] = {}
        bad: list[int] = []
        start = size = 0
        for row in compressed:
            try:
                body = decompress(bytes(columns.body(row)), int(columns.head["sys_flag"][row]))
            except ValueError as error:
                self._on_bad_row(columns, row, str(error))
                bad.append(row)
                continue
            bodies[row] = body
            size += len(body)
            if size >= BATCH_INFLATED_BYTES:
                yield self._part(columns, np.setdiff1d(np.arange(start, row + 1), bad), bodies, broker)
                bodies, bad, start, size = {}, [], row + 1, 0
        rest = np.setdiff1d(np.arange(start, len(columns)), bad)
        if len(rest):
            yield self._part(columns, rest, bodies, broker)

    def _part(
        self, columns: RecordColumns, rows: IntArray, bodies: dict[int, bytes], broker: str
    ) -> pa.RecordBatch:
        """Return a batch of some rows, with these bodies in place of the compressed ones."""
        places = np.searchsorted(rows, list(bodies)).tolist()
        decompressed = dict(zip(places, bodies.values(), strict=True))
        return _Batch(columns.take(rows), broker, self.schema, decompressed).record_batch()


class _Batch:
    """One batch while its columns are made."""

    def __init__(
        self, columns: RecordColumns, broker: str, schema: pa.Schema, decompressed: dict[int, bytes]
    ) -> None:
        self._columns = columns
        self._broker = broker
        self._schema = schema
        self._buffer = pa.py_buffer(columns.buffer)
        self._properties: BatchProperties | None = None
        self._keys_and_tags: BatchProperties | KeysAndTags | None = None
        self._decompressed = decompressed

    @property
    def properties(self) -> BatchProperties:
        """The properties, read once they are asked for."""
        if self._properties is None:
            self._properties = BatchProperties(self._columns, self._buffer)
        return self._properties

    @property
    def keys_and_tags(self) -> BatchProperties | KeysAndTags:
        """Two of the properties; without reading the others, unless they are asked for as well."""
        if self._keys_and_tags is None:
            every = not _ALL_PROPERTIES.isdisjoint(self._schema.names)
            self._keys_and_tags = self.properties if every else KeysAndTags(self._columns, self._buffer)
        return self._keys_and_tags

    def record_batch(self) -> pa.RecordBatch:
        """Return the batch."""
        arrays = [_COLUMNS[field.name](self, field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def topic(self, kind: pa.DataType) -> pa.Array:
        """Return the topics."""
        columns = self._columns
        start = columns.topic_position
        return gather_slices(self._buffer, start, start + columns.topic_size, kind)

    def broker_name(self, kind: pa.DataType) -> pa.Array:
        """Return the name of the broker, null where nobody knows it."""
        if not self._broker:  # a directory does not say whose it is
            return pa.nulls(len(self._columns), kind)
        return pa.repeat(pa.scalar(self._broker, kind), len(self._columns))

    def body(self, kind: pa.DataType) -> pa.Array:
        """Return the bodies, decompressed."""
        columns = self._columns
        start = columns.body_position
        bodies = gather_slices(self._buffer, start, start + columns.body_size, kind)
        if not self._decompressed:
            return bodies
        rows = np.fromiter(self._decompressed, np.int64, len(self._decompressed))
        return with_replaced(bodies, rows, pa.array(list(self._decompressed.values()), kind))

    def number(self, field: str, kind: pa.DataType) -> pa.Array:
        """Return a field of the records."""
        return numbers(self._columns.head[field].astype(f"i{kind.bit_width // 8}"), kind)

    def time(self, field: str, kind: pa.DataType) -> pa.Array:
        """Return a field of the records that holds milliseconds."""
        return numbers(self._columns.head[field].astype(np.int64) * _US_PER_MS, kind)

    def one(self, kind: pa.DataType) -> pa.Array:
        """Return the 1 in every row."""
        return pa.repeat(pa.scalar(1, kind), len(self._columns))


_COLUMNS: Final[dict[str, Callable[[_Batch, pa.DataType], pa.Array]]] = {
    "topic": _Batch.topic,
    "queueId": lambda batch, kind: batch.number("queue_id", kind),
    "queueOffset": lambda batch, kind: batch.number("queue_offset", kind),
    "brokerName": _Batch.broker_name,
    "keys": lambda batch, kind: batch.keys_and_tags.value_of("KEYS", kind),
    "tags": lambda batch, kind: batch.keys_and_tags.value_of("TAGS", kind),
    "body": _Batch.body,
    "properties": lambda batch, kind: batch.properties.map(kind),
    "flag": lambda batch, kind: batch.number("flag", kind),
    "bornTimestamp": lambda batch, kind: batch.time("born_timestamp_ms", kind),
    "storeTimestamp": lambda batch, kind: batch.time("store_timestamp_ms", kind),
    "physicalOffset": lambda batch, kind: batch.number("physical_offset", kind),
    "reconsumeTimes": lambda batch, kind: batch.number("reconsume_times", kind),
    "bodyCRC": lambda batch, kind: batch.number("body_crc", kind),
    "key": lambda batch, kind: batch.keys_and_tags.value_of("KEYS", kind),
    "value": _Batch.body,
    "partition": lambda batch, kind: batch.number("queue_id", kind),
    "offset": lambda batch, kind: batch.number("queue_offset", kind),
    "timestamp": lambda batch, kind: batch.time("store_timestamp_ms", kind),
    "timestampType": _Batch.one,
    "headers": lambda batch, kind: batch.properties.headers(kind),
}
