"""Columns of messages as an Arrow batch; needs pyarrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from reput_client.arrow_properties import BatchProperties
from reput_client.arrow_slices import gather_slices, numbers, with_replaced
from reput_protocol.properties import KEYS, TAGS
from reput_protocol.record_columns import RecordColumns

TIME: Final = pa.timestamp("ms", "UTC")
PROPERTIES: Final = pa.map_(pa.string(), pa.string())


class _Batch:
    """What the columns of one batch share."""

    def __init__(self, records: RecordColumns, inflated: Callable[[], dict[int, bytes]]) -> None:
        self.records = records
        self.inflated = inflated
        self.buffer = pa.py_buffer(records.buffer)
        self._properties: BatchProperties | None = None

    @property
    def properties(self) -> BatchProperties:
        """The properties, looked at on first use."""
        if self._properties is None:
            self._properties = BatchProperties(self.records, self.buffer)
        return self._properties

    def body(self) -> pa.Array:
        """The bodies, decompressed."""
        start = self.records.body_position
        bodies = gather_slices(self.buffer, start, start + self.records.body_size, pa.binary())
        inflated = self.inflated()
        if not inflated:
            return bodies
        rows = np.fromiter(inflated, np.int64, len(inflated))
        return with_replaced(bodies, rows, pa.array(list(inflated.values()), pa.binary()))

    def number(self, field: str, kind: pa.DataType) -> pa.Array:
        """A field of the records' heads."""
        return numbers(self.records.head[field].astype(f"i{kind.bit_width // 8}"), kind)


COLUMNS: Final[dict[str, Callable[[_Batch], pa.Array]]] = {
    "queue_id": lambda batch: batch.number("queue_id", pa.int32()),
    "queue_offset": lambda batch: batch.number("queue_offset", pa.int64()),
    "physical_offset": lambda batch: batch.number("physical_offset", pa.int64()),
    "tag": lambda batch: batch.properties.value_of(TAGS, pa.string()),
    "keys": lambda batch: batch.properties.value_of(KEYS, pa.string()),
    "body": _Batch.body,
    "properties": lambda batch: batch.properties.map(PROPERTIES),
    "flag": lambda batch: batch.number("flag", pa.int32()),
    "born_timestamp": lambda batch: batch.number("born_timestamp_ms", TIME),
    "store_timestamp": lambda batch: batch.number("store_timestamp_ms", TIME),
    "reconsume_times": lambda batch: batch.number("reconsume_times", pa.int32()),
}
"""How each column is made; `keys` are several with blanks between them, `properties` all of a message's."""


def record_batch(
    records: RecordColumns, inflated: Callable[[], dict[int, bytes]], names: tuple[str, ...] | None = None
) -> pa.RecordBatch:
    """Return an Arrow batch with the named columns, all of `COLUMNS` by default; `inflated` has bodies by row.

    Raises:
        ValueError: there is no such column.
    """
    wanted = tuple(COLUMNS) if names is None else names
    unknown = [name for name in wanted if name not in COLUMNS]
    if unknown:
        raise ValueError(f"there is no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    batch = _Batch(records, inflated)
    return pa.RecordBatch.from_arrays([COLUMNS[name](batch) for name in wanted], names=list(wanted))
