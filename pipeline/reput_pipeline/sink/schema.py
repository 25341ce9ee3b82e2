"""The columns that the sink takes, checked before anything is written."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reput_client.consume.column_names import KAFKA_COLUMNS, KAFKA_HEADERS, NATIVE_COLUMNS
from reput_pipeline.spark.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TEXT: Final = ("string", "binary")
SINK_COLUMNS: Final = {
    "body": _TEXT,
    "value": _TEXT,
    "topic": ("string",),
    "keys": _TEXT,
    "key": _TEXT,
    "tags": ("string",),
    "queueId": ("int",),
    "partition": ("int",),
    "properties": ("map<string,string>",),
    "headers": (KAFKA_HEADERS,),
    "deliverAt": ("timestamp",),
    "flag": ("int",),
    "bornTimestamp": ("timestamp",),
}
"""Every column of the sink and the Spark types that it may have."""
_EITHER: Final = (("body", "value"), ("keys", "key"), ("queueId", "partition"), ("properties", "headers"))
_SET_BY_BROKER: Final = (set(NATIVE_COLUMNS) | set(KAFKA_COLUMNS)) - set(SINK_COLUMNS)
"""Columns of the source that the sink ignores, so that what was read can be written."""


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The names of the columns in the DataFrame; None: no column."""

    body: str
    topic: str | None
    keys: str | None
    tags: str | None
    queue_id: str | None
    properties: str | None
    deliver_at: str | None
    flag: str | None
    born: str | None


def sink_columns(schema: StructType, topic: str | None) -> SinkColumns:
    """Return the columns that are written.

    Args:
        schema: of the DataFrame.
        topic: the option, which takes precedence over the column.

    Raises:
        SinkError: a column is unknown, missing, or of another type.
    """
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if len(types) < len(schema.fields):
        raise SinkError("two columns have one name; rename one of them")
    for name, kind in types.items():
        if name in _SET_BY_BROKER:
            continue
        allowed = SINK_COLUMNS.get(name)
        if allowed is None:
            near = difflib.get_close_matches(name, SINK_COLUMNS, 1, 0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise SinkError(
                f"the sink has no column {name!r}; {hint}its columns are {', '.join(SINK_COLUMNS)}; drop the others"
            )
        if kind not in allowed:
            raise SinkError(
                f"column {name!r} is of type {kind}, but the sink takes {' or '.join(allowed)}; cast it"
            )
    found: dict[str, str | None] = {}
    for native, other in _EITHER:
        if native in types and other in types:
            raise SinkError(f"columns {native!r} and {other!r} mean the same; drop one of them")
        found[native] = native if native in types else other if other in types else None
    body = found["body"]
    if body is None:
        raise SinkError("there is no column 'body' (or 'value'); give the messages one")
    if topic is None and "topic" not in types:
        raise SinkError("there is neither the option topic nor a column 'topic'; say where the messages go")

    def if_present(name: str) -> str | None:
        return name if name in types else None

    return SinkColumns(
        body=body,
        topic=None if topic is not None else "topic",
        keys=found["keys"],
        tags=if_present("tags"),
        queue_id=found["queueId"],
        properties=found["properties"],
        deliver_at=if_present("deliverAt"),
        flag=if_present("flag"),
        born=if_present("bornTimestamp"),
    )
