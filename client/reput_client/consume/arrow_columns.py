"""Columns of messages as an Arrow batch; needs pyarrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import pyarrow as pa

from reput_client.consume.arrow_records import ArrowRecords
from reput_protocol.properties import KEYS, TAGS
from reput_protocol.record_columns import RecordColumns

TIME: Final = pa.timestamp("ms", "UTC")
PROPERTIES: Final = pa.map_(pa.string(), pa.string())

Inflated: TypeAlias = Callable[[], dict[int, bytes]]
"""Returns the compressed bodies by row, decompressed."""

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
"""How each column is made; `keys` are several with blanks between them, `properties` all of a message's."""


def record_batch(
    records: RecordColumns, inflated: Inflated, names: tuple[str, ...] | None = None
) -> pa.RecordBatch:
    """Return an Arrow batch with the named columns, all of `COLUMNS` by default.

    Raises:
        ValueError: there is no such column.
    """
    wanted = tuple(COLUMNS) if names is None else names
    unknown = [name for name in wanted if name not in COLUMNS]
    if unknown:
        raise ValueError(f"there is no column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    arrow = ArrowRecords(records)
    return pa.RecordBatch.from_arrays([COLUMNS[name](arrow, inflated) for name in wanted], names=list(wanted))
