"""Write messages as a Parquet file, using pyarrow if it is installed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from reput_broker.tools.dump import common_fields
from reput_protocol.record.record import Record

_ROWS_PER_GROUP = 65_536
_ROWS_AT_ONCE = 8192
_COMMON = ("topic", "queue_id", "queue_offset", "message_id", "tag", "keys")


class ParquetMissing(RuntimeError):
    """pyarrow is not installed."""


def write_parquet(path: Path, records: Iterable[Record]) -> int:
    """Write one row per message; return how many. The file gets its name when it is complete.

    Raises:
        ParquetMissing: pyarrow is not installed; nothing was written.
        OSError: the file could not be written.
    """
    pa, pq = _pyarrow()
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("queue_id", pa.int32()),
            ("queue_offset", pa.int64()),
            ("physical_offset", pa.int64()),
            ("message_id", pa.string()),
            ("tag", pa.string()),
            ("keys", pa.list_(pa.string())),
            ("properties", pa.map_(pa.string(), pa.string())),
            ("store_timestamp", pa.timestamp("ms", tz="UTC")),
            ("born_timestamp", pa.timestamp("ms", tz="UTC")),
            ("sys_flag", pa.int32()),
            ("reconsume_times", pa.int32()),
            ("body", pa.binary()),
        ]
    )
    temporary = path.with_name(path.name + ".tmp")
    count = 0
    source = iter(records)
    try:
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            while rows := [_row(record) for record in islice(source, _ROWS_AT_ONCE)]:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema), row_group_size=_ROWS_PER_GROUP)
                count += len(rows)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # type: ignore[import-not-found, unused-ignore]
        import pyarrow.parquet as pq  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise ParquetMissing("Parquet needs pyarrow, which is not installed") from error
    return pa, pq


def require_parquet() -> None:
    """Raise ParquetMissing unless pyarrow is installed."""
    _pyarrow()


def _row(record: Record) -> dict[str, Any]:
    fields = common_fields(record)
    return {
        **{name: fields[name] for name in _COMMON},
        "physical_offset": record.physical_offset,
        "properties": list(fields["properties"].items()),
        "store_timestamp": record.store_timestamp_ms,
        "born_timestamp": record.born_timestamp_ms,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "body": record.body,
    }
