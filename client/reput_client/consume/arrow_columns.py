"""Columns of messages as Arrow arrays and record batches; needs pyarrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import pyarrow as pa

from reput_protocol.properties import KEYS, TAGS
from reput_protocol.record.columns import Places, RecordColumns


class ArrowRecords:
    """The columns of some records, each copied out of their buffer on request."""

    def __init__(self, records: RecordColumns) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def number(self, name: str, kind: pa.DataType, times: int = 1) -> pa.Array:
        """Return a column of numbers, each multiplied by `times`."""
        native = self._records.scaled(name, times, f"i{kind.bit_width // 8}")
        return pa.Array.from_buffers(kind, len(native), [None, pa.py_buffer(native)])

    def topic(self, kind: pa.DataType) -> pa.Array:
        """Return the topics."""
        return self._values(self._records.part("topic"), kind, is_text=True)

    def body(self, kind: pa.DataType, inflated: dict[int, bytes]) -> pa.Array:
        """Return the bodies, with `inflated` ones, by row, in place of compressed ones."""
        return self._values(self._records.part("body"), kind, replaced=inflated)

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


TIME: Final = pa.timestamp("ms", "UTC")
PROPERTIES: Final = pa.map_(pa.string(), pa.string())

Inflated: TypeAlias = Callable[[], dict[int, bytes]]
"""Returns the decompressed bodies of compressed messages, by row."""

COLUMNS: Final[dict[str, Callable[[ArrowRecords, Inflated], pa.Array]]] = {
    "queue_id": lambda records, _: records.number("queue_id", pa.int32()),
    "queue_offset": lambda records, _: records.number("queue_offset", pa.int64()),
    "physical_offset": lambda records, _: records.number("physical_offset", pa.int64()),
    "tag": lambda records, _: records.property(TAGS, pa.string()),
    "keys": lambda records, _: records.property(KEYS, pa.string()),
    "body": lambda records, inflated: records.body(pa.binary(), inflated()),
    "properties": lambda records, _: records.map(PROPERTIES),
    "flag": lambda records, _: records.number("flag", pa.int32()),
    "born_timestamp": lambda records, _: records.number("born_timestamp_ms", TIME),
    "store_timestamp": lambda records, _: records.number("store_timestamp_ms", TIME),
    "reconsume_times": lambda records, _: records.number("reconsume_times", pa.int32()),
}
"""How each column is made. `keys` are separated by blanks."""


def record_batch(
    records: RecordColumns, inflated: Inflated, names: tuple[str, ...] | None = None
) -> pa.RecordBatch:
    """Return an Arrow batch with the named columns, all of `COLUMNS` by default.

    Raises:
        ValueError: a name is not a column.
    """
    wanted = tuple(COLUMNS) if names is None else names
    unknown = [name for name in wanted if name not in COLUMNS]
    if unknown:
        raise ValueError(f"there is no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    arrow = ArrowRecords(records)
    return pa.RecordBatch.from_arrays([COLUMNS[name](arrow, inflated) for name in wanted], names=list(wanted))
