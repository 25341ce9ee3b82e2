"""The layout of an archive: the names of files, of topic, partition values, queue and offsets alone, and their columns.

So a batch that is written again adds no message twice. Directories are named as in Hive and Spark:
`topic=orders/tags=paid/broker-a-0-00000000000000000000-00000000000000001000.parquet`. A value that is too long for a
name is cut and ends in `%~` and a hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from reput_client.arrow.queues import QueueKey, QueueRange
from reput_client.consume.arrow_columns import arrow_schema
from reput_client.consume.column_names import NATIVE_COLUMNS

NULL_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_DIGITS: Final = 20
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(0x20)}
"""Characters that Spark escapes in names of partitions (ExternalCatalogUtils), and NUL, which no name may have."""
_NAME_BYTES_MAX: Final = 255
"""Of common file systems."""
_CUT: Final = "%~"
"""Before the hash of a value that is cut; in other values % is escaped."""
_HASH_DIGITS: Final = 32
_NAME = re.compile(rf"(?:(?P<broker>.+)-)?(?P<queue>\d+)-(?P<start>\d{{{_DIGITS}}})-(?P<end>\d{{{_DIGITS}}})\.parquet")
PARTITION_COLUMNS: Final = {"queueId": "int", "tags": "string", "date": "string", "hour": "string"}
"""Columns that can partition an archive besides the topic; `date` and `hour` are UTC."""
_FORMATS: Final = {"date": "%Y-%m-%d", "hour": "%H"}


def partition_name(column: str, value: str | None) -> str:
    """Return the name of a value's directory; an empty value counts as null, as in Spark."""
    name = f"{column}={_escaped(value) if value else NULL_VALUE}"
    if not value or len(name.encode()) <= _NAME_BYTES_MAX:
        return name
    ending = _CUT + hashlib.sha256(value.encode()).hexdigest()[:_HASH_DIGITS]
    room = _NAME_BYTES_MAX - len(f"{column}={ending}")
    letters = [_escaped(letter) for letter in value[:room]]
    sizes = accumulate(len(letter.encode()) for letter in letters)
    front = "".join(letter for letter, size in zip(letters, sizes, strict=True) if size <= room)
    return f"{column}={front}{ending}"


def partition_values(path: str) -> dict[str, str | None]:
    """Return the partition columns of a file's path, as `partition_name` has named them; some values may be cut."""
    pairs = [part.split("=", 1) for part in PurePosixPath(path).parent.parts]
    return {name: None if value == NULL_VALUE else unquote(value) for name, value in pairs}


def is_cut(value: str) -> bool:
    """Return whether a value of `partition_values`, or a path, may be that of a value that is cut."""
    return _CUT in value


def _escaped(text: str) -> str:
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in text)


def file_name(part: QueueRange) -> str:
    """Return the name of a file with the messages of a range."""
    return f"{file_prefix(part.queue)}{part.start:0{_DIGITS}d}-{part.end:0{_DIGITS}d}.parquet"


def file_prefix(queue: QueueKey) -> str:
    """Return what the names of all files of a queue begin with."""
    broker = _escaped(queue.broker)
    return f"{broker}-{queue.queue_id}-" if broker else f"{queue.queue_id}-"


def prefix_and_start(name: str) -> tuple[str, int] | None:
    """Return the prefix of a data file's name, and the first offset of its range; None for other files."""
    found = _NAME.fullmatch(name)
    return None if found is None else (name[: found.start("start")], int(found["start"]))


def file_path(part: QueueRange, values: Mapping[str, str | None]) -> PurePosixPath:
    """Return the path in an archive of a range's messages with these partition values."""
    path = PurePosixPath(partition_name("topic", part.queue.topic))
    for column, value in values.items():
        path /= partition_name(column, value)
    return path / file_name(part)


def is_data_file(name: str) -> bool:
    """Return whether a name has the form of `file_name`."""
    return _NAME.fullmatch(name) is not None


def read_schema() -> pa.Schema:
    """Return the Arrow schema of messages read for an archive: the native columns without the topic."""
    return arrow_schema(name for name in NATIVE_COLUMNS if name != "topic")


def file_schema(partition_by: Sequence[str]) -> pa.Schema:
    """Return the schema of a file: the columns that are not in the names of directories."""
    return pa.schema([field for field in read_schema() if field.name not in partition_by])


def spark_schema(partition_by: Sequence[str]) -> str:
    """Return the DDL of an archive: the native columns, and `date` and `hour` if it has them."""
    extra = {name: PARTITION_COLUMNS[name] for name in partition_by if name not in NATIVE_COLUMNS}
    return ", ".join(f"`{name}` {kind}" for name, kind in {**NATIVE_COLUMNS, **extra}.items())


def split(
    batch: pa.RecordBatch, partition_by: Sequence[str]
) -> list[tuple[tuple[str | None, ...], pa.Table | pa.RecordBatch]]:
    """Group the rows of a batch by its partition columns, in order and without these columns."""
    if not partition_by:
        return [((), batch)]
    keys = [_values(batch, name) for name in partition_by]
    columns = [name for name in batch.schema.names if name not in partition_by]
    rest = batch.select(columns)
    table = pa.table([*keys, pa.array(range(batch.num_rows), pa.int64())], [*partition_by, "row"])
    groups = table.group_by(list(partition_by)).aggregate([("row", "list")]).to_pylist()
    return [
        (tuple(group[name] for name in partition_by), rest.take(pa.array(group["row_list"], pa.int64())))
        for group in groups
    ]


def _values(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name in _FORMATS:
        return pc.strftime(batch.column("storeTimestamp"), format=_FORMATS[name])
    column = batch.column(name).cast(pa.string())
    # Null, "" and the null marker share a directory (`partition_name`), with one file for a range.
    return pc.if_else(pc.is_in(column, pa.array(["", NULL_VALUE])), None, column)
