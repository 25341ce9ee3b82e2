"""Columns of messages as Arrow arrays and record batches; needs pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Final, TypeAlias

import pyarrow as pa

from reput_client.consume.column_names import KAFKA_COLUMNS, KAFKA_HEADERS, NATIVE_COLUMNS
from reput_protocol.properties import KEYS, TAGS
from reput_protocol.record.columns import Places, RecordColumns

ARROW_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    KAFKA_HEADERS: pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
"""The Arrow type of a column by its Spark type."""
_TYPES: Final = {**NATIVE_COLUMNS, **KAFKA_COLUMNS, "headers": KAFKA_HEADERS}
_US_PER_MS: Final = 1000

Inflated: TypeAlias = Callable[[], dict[int, bytes]]
"""Returns the decompressed bodies of compressed messages, by row."""


def arrow_schema(names: Iterable[str] | None = None) -> pa.Schema:
    """Return the schema of the named columns, native or of Spark's Kafka source; by default of all native ones.

    Raises:
        ValueError: a name is not a column.
    """
    wanted = list(NATIVE_COLUMNS if names is None else names)
    for name in wanted:
        if name not in _TYPES:
            near = get_close_matches(name, _TYPES, 1, 0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"there is no column {name!r}; {hint}the columns are {', '.join(_TYPES)}")
    return pa.schema([pa.field(name, ARROW_TYPES[_TYPES[name]]) for name in wanted])


class ArrowRecords:
    """The columns of some records, each copied out of their buffer on request.

    Args:
        records: the records.
        inflated: called if bodies are requested.
        broker: name of their broker; empty if it is unknown.
    """

    def __init__(self, records: RecordColumns, inflated: Inflated = dict, broker: str = "") -> None:
        self._records = records
        self._inflated = inflated
        self._broker = broker

    def record_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return a batch with the columns of a schema."""
        arrays = [_MAKERS[field.name](self, field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def __len__(self) -> int:
        return len(self._records)

    def number(self, name: str, kind: pa.DataType, times: int = 1) -> pa.Array:
        """Return a column of numbers, each multiplied by `times`."""
        native = self._records.scaled(name, times, f"i{kind.bit_width // 8}")
        return pa.Array.from_buffers(kind, len(native), [None, pa.py_buffer(native)])

    def topic(self, kind: pa.DataType) -> pa.Array:
        """Return the topics."""
        return self._values(self._records.part("topic"), kind, is_text=True)

    def time(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return a column of times in microseconds, of a field in milliseconds."""
        return self.number(name, kind, times=_US_PER_MS)

    def body(self, kind: pa.DataType) -> pa.Array:
        """Return the bodies, decompressed."""
        return self._values(self._records.part("body"), kind, replaced=self._inflated())

    def broker_name(self, kind: pa.DataType) -> pa.Array:
        """Return the name of the broker, null where it is unknown."""
        if not self._broker:
            return pa.nulls(len(self), kind)
        return self.constant(self._broker, kind)

    def constant(self, value: object, kind: pa.DataType) -> pa.Array:
        """Return a value in every row."""
        return pa.repeat(pa.scalar(value, kind), len(self))

    def property(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return one property, null for messages without it."""
        return self._values(self._records.property(name), kind, is_text=True, is_nullable=True)

    def map(self, kind: pa.MapType) -> pa.Array:
        """Return all properties, including the broker's, as maps."""
        bounds, names, values = self._properties(pa.string())
        return pa.MapArray.from_arrays(bounds, names, values, kind)

    def headers(self, kind: pa.ListType) -> pa.Array:
        """Return all properties as lists of structures of `key` and `value`."""
        bounds, names, values = self._properties(pa.binary())
        pairs = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
        return pa.ListArray.from_arrays(bounds, pairs, type=kind)

    def _properties(self, kind: pa.DataType) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Return where each message's properties begin, and all names and values."""
        firsts, name_ends, names, value_ends, values = self._records.property_columns()
        bounds = pa.Array.from_buffers(pa.int32(), len(firsts), [None, pa.py_buffer(firsts)])
        texts = (
            pa.Array.from_buffers(of, len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])
            for of, ends, data in ((pa.string(), name_ends, names), (kind, value_ends, values))
        )
        return bounds, *texts

    def _values(
        self,
        places: Places,
        kind: pa.DataType,
        *,
        is_text: bool = False,
        is_nullable: bool = False,
        replaced: dict[int, bytes] | None = None,
    ) -> pa.Array:
        bounds, data, present, missing = self._records.gather(places, is_text=is_text, replaced=replaced)
        nulls = pa.py_buffer(present) if is_nullable and missing else None
        buffers = [nulls, pa.py_buffer(bounds), pa.py_buffer(data)]
        return pa.Array.from_buffers(kind, len(bounds) - 1, buffers, missing if is_nullable else 0)


_MAKERS: Final[dict[str, Callable[[ArrowRecords, pa.DataType], pa.Array]]] = {
    "topic": ArrowRecords.topic,
    "queueId": lambda records, kind: records.number("queue_id", kind),
    "queueOffset": lambda records, kind: records.number("queue_offset", kind),
    "brokerName": ArrowRecords.broker_name,
    "keys": lambda records, kind: records.property(KEYS, kind),
    "tags": lambda records, kind: records.property(TAGS, kind),
    "body": ArrowRecords.body,
    "properties": ArrowRecords.map,
    "flag": lambda records, kind: records.number("flag", kind),
    "bornTimestamp": lambda records, kind: records.time("born_timestamp_ms", kind),
    "storeTimestamp": lambda records, kind: records.time("store_timestamp_ms", kind),
    "physicalOffset": lambda records, kind: records.number("physical_offset", kind),
    "reconsumeTimes": lambda records, kind: records.number("reconsume_times", kind),
    "bodyCRC": lambda records, kind: records.number("body_crc", kind),
    "key": lambda records, kind: records.property(KEYS, kind),
    "value": ArrowRecords.body,
    "partition": lambda records, kind: records.number("queue_id", kind),
    "offset": lambda records, kind: records.number("queue_offset", kind),
    "timestamp": lambda records, kind: records.time("store_timestamp_ms", kind),
    "timestampType": lambda records, kind: records.constant(1, kind),
    "headers": ArrowRecords.headers,
}
assert _MAKERS.keys() == _TYPES.keys()
