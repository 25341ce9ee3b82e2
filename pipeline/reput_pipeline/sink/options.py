"""The options of the sink and the columns that it takes, checked together before anything is written."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from reput_client.consume.column_names import KAFKA_COLUMNS, KAFKA_HEADERS, NATIVE_COLUMNS
from reput_client.security import TLS
from reput_client.transport.address import parse_addresses
from reput_pipeline.spark.errors import SinkError
from reput_pipeline.spark.option_reader import (
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    OptionError,
    OptionReader,
    UserOption,
    options_for,
    read_tls,
)
from reput_protocol.codes import AckLevel
from reput_protocol.errors import InvalidName
from reput_protocol.names import check_send_topic

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_KEY_BYTES_MAX: Final = 190
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
class SinkOptions:
    """Where and how a DataFrame is written."""

    name_servers: str
    user: UserOption | None
    topic: str | None
    exactly_once: bool
    idempotency_key: str | None
    ack: AckLevel
    maps_queues: bool
    """Whether a queue that a topic lacks stands for one that it has."""
    dead_letter_topic: str | None
    """Where rows go that cannot be messages; None: such a row is an error."""
    send_timeout_s: float
    commit_timeout_s: float
    tls: TLS | None


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse the options of a write.

    Raises:
        OptionError: an option is unknown, invalid, or contradicts another.
    """
    reader = OptionReader(options_for(SINK_OPTIONS, options, "sink", SOURCE_OPTIONS))
    name_servers = reader.text("nameServer")
    if name_servers is None:
        if any(name.lower() == "path" for name in options):
            raise OptionError("nameServer", "is missing; the sink writes to a broker, not into a directory")
        raise reader.missing("nameServer", "give the address of a broker, as host:port")
    try:
        parse_addresses(name_servers)
    except ValueError as error:
        raise OptionError("nameServer", str(error)) from None
    topic = _topic(reader, "topic")
    exactly_once = reader.choice("semantics", ("exactly-once", "at-least-once"), "exactly-once") == "exactly-once"
    if exactly_once:
        reader.refuse(("ack",), "needs semantics=at-least-once; an exactly-once commit is always flushed")
    return SinkOptions(
        name_servers=name_servers,
        user=UserOption.of(reader),
        topic=topic,
        exactly_once=exactly_once,
        idempotency_key=_idempotency_key(reader, exactly_once, streaming),
        ack=AckLevel(reader.choice("ack", (AckLevel.FLUSHED, AckLevel.PAGE_CACHE), AckLevel.FLUSHED)),
        maps_queues=reader.choice("queueMapping", ("exact", "modulo"), "exact") == "modulo",
        dead_letter_topic=_dead_letter_topic(reader, topic),
        send_timeout_s=(reader.whole("sendTimeoutMs", 120_000) or 0) / 1000,
        commit_timeout_s=(reader.whole("commitTimeoutMs", 600_000) or 0) / 1000,
        tls=read_tls(reader),
    )


def _topic(reader: OptionReader, name: str) -> str | None:
    topic = reader.text(name)
    if topic is not None:
        try:
            check_send_topic(topic)
        except InvalidName as error:
            raise OptionError(name, str(error)) from None
    return topic


def _dead_letter_topic(reader: OptionReader, topic: str | None) -> str | None:
    found = _topic(reader, "deadLetterTopic")
    if reader.choice("onBadRow", ("fail", "dead-letter"), "fail") == "fail":
        reader.refuse(("deadLetterTopic",), "needs onBadRow=dead-letter")
        return None
    if found is None:
        raise reader.missing("deadLetterTopic", "with onBadRow=dead-letter, name a topic for such rows")
    if found == topic:
        raise OptionError("deadLetterTopic", "is the option topic; name another one")
    return found


def _idempotency_key(reader: OptionReader, exactly_once: bool, streaming: bool) -> str | None:
    key = reader.text("idempotencyKey")
    if key is None:
        return None
    if streaming:
        raise OptionError(
            "idempotencyKey",
            "a stream is identified by its checkpoint; with a key, a new checkpoint's batches would be dropped",
        )
    if not exactly_once:
        raise OptionError("idempotencyKey", "needs semantics=exactly-once")
    quoted = quote(key, safe="")
    if len(quoted) > _KEY_BYTES_MAX:
        raise OptionError("idempotencyKey", f"takes {len(quoted)} bytes, but at most {_KEY_BYTES_MAX} are kept")
    return quoted


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
            raise SinkError(f"column {name!r} is of type {kind}, but the sink takes {' or '.join(allowed)}; cast it")
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
