"""Names of an archive's files: topic, partition values, queue and offsets, and nothing else.

So a batch that is written again adds no message twice. Directories are named as in Hive and Spark:
`topic=orders/tags=paid/broker-a-0-00000000000000000000-00000000000000001000.parquet`. A value that is too long for a
name is cut and ends in `%~` and a hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote

from reput_client.arrow.queues import QueueKey, QueueRange

NULL_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_DIGITS: Final = 20
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(0x20)}
"""Characters that Spark escapes in names of partitions (ExternalCatalogUtils), and NUL, which no name may have."""
_NAME_BYTES_MAX: Final = 255
"""Of common file systems."""
_CUT: Final = "%~"
"""Before the hash of a value that is cut; in other values % is escaped."""
_HASH_DIGITS: Final = 32
_NAME = re.compile(
    rf"(?:(?P<broker>.+)-)?(?P<queue>\d+)-(?P<start>\d{{{_DIGITS}}})-(?P<end>\d{{{_DIGITS}}})\.parquet"
)


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
