"""Names of an archive's files: topic, partition values, queue and offsets, and nothing else.

So a batch that is written again adds no message twice. Directories are named as in Hive and Spark:
`topic=orders/tags=paid/broker-a-0-00000000000000000000-00000000000000001000.parquet`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final

from reput_client.arrow.queues import QueueRange

NULL_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_DIGITS: Final = 20
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 0x20)}
"""Characters that Spark escapes in names of partitions (ExternalCatalogUtils)."""
_NAME = re.compile(
    rf"(?:(?P<broker>.+)-)?(?P<queue>\d+)-(?P<start>\d{{{_DIGITS}}})-(?P<end>\d{{{_DIGITS}}})\.parquet"
)


def partition_name(column: str, value: str | None) -> str:
    """Return the name of a value's directory; an empty value counts as null, as in Spark."""
    if not value:
        return f"{column}={NULL_VALUE}"
    return f"{column}=" + "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in value)


def file_name(part: QueueRange) -> str:
    """Return the name of a file with the messages of a range."""
    broker = "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in part.queue.broker)
    front = f"{broker}-" if broker else ""
    return f"{front}{part.queue.queue_id}-{part.start:0{_DIGITS}d}-{part.end:0{_DIGITS}d}.parquet"


def file_path(part: QueueRange, values: Mapping[str, str | None]) -> PurePosixPath:
    """Return the path in an archive of a range's messages with these partition values."""
    path = PurePosixPath(partition_name("topic", part.queue.topic))
    for column, value in values.items():
        path /= partition_name(column, value)
    return path / file_name(part)


def is_data_file(name: str) -> bool:
    """Return whether a name has the form of `file_name`."""
    return _NAME.fullmatch(name) is not None
