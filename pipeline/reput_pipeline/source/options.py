"""The options of the source, checked together before anything is opened, and its columns with their types in Spark."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reput_client.arrow.queues import QueueKey
from reput_client.consume.column_names import KAFKA_COLUMNS, KAFKA_HEADERS, NATIVE_COLUMNS
from reput_client.security import TLS
from reput_client.transport.address import parse_addresses
from reput_pipeline.source.bounds import (
    EARLIEST,
    LATEST,
    QueryBound,
    QueueTable,
    parse_assign,
    parse_queue_table,
    parse_word_or_offsets,
)
from reput_pipeline.spark.option_reader import (
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    TLS_OPTIONS,
    OptionError,
    OptionReader,
    UserOption,
    options_for,
    read_tls,
)
from reput_protocol.errors import FilterSyntaxError
from reput_protocol.filter.tags import TagFilter
from reput_protocol.names import is_system_topic
from reput_protocol.quantities import parse_duration

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_LIVE_ONLY: Final = (
    "user",
    "secretFile",
    "groupId",
    "pullTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    *TLS_OPTIONS,
)
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a query: either `name_servers` or `path`, and one kind of subscription."""

    name_servers: str | None
    user: UserOption | None
    path: str | None
    topics: tuple[str, ...]
    pattern: str | None
    include_system_topics: bool
    assigned: tuple[QueueKey, ...]
    start: QueryBound
    end: QueryBound
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    min_partitions: int | None
    fail_on_data_loss: bool
    skip_damage: bool
    include_headers: bool
    sub_expression: str
    columns: str
    select: tuple[str, ...]
    group_id: str | None
    pull_timeout_s: float
    fetch_retries: int
    fetch_retry_interval_s: float
    tls: TLS | None

    @property
    def all_columns(self) -> dict[str, str]:
        """Name and Spark type of every column."""
        return columns_of(self.columns, include_headers=self.include_headers)

    @property
    def tag_filter(self) -> TagFilter:
        """The tag expression, parsed."""
        return TagFilter.parse(self.sub_expression)

    @property
    def where(self) -> str:
        """The broker or directory, for error texts."""
        return self.path if self.path is not None else str(self.name_servers)

    def is_wanted(self, topic: str, own_names: Collection[str] = ()) -> bool:
        """Return whether the subscription includes a topic.

        A pattern includes system topics only with `includeSystemTopics`; topics named as brokers or clusters
        (`own_names`) are system topics.
        """
        if self.pattern is None:
            return topic in self.named_topics
        if is_system_topic(topic, own_names) and not self.include_system_topics:
            return False
        return re.fullmatch(self.pattern, topic) is not None

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The topics named individually, which have to exist; none with a pattern."""
        return self.topics or tuple(dict.fromkeys(queue.topic for queue in self.assigned))


def parse_source_options(options: Mapping[str, str], *, streaming: bool | None = None) -> SourceOptions:
    """Parse the options of a query.

    Args:
        options: as passed by Spark.
        streaming: the kind of query; None: unknown yet, options of both are accepted.

    Raises:
        OptionError: an option is unknown, invalid, or contradicts another.
    """
    reader = OptionReader(options_for(SOURCE_OPTIONS, options, "source", SINK_OPTIONS))
    live = reader.exactly_one("nameServer", "path") == "nameServer"
    name_servers = reader.text("nameServer")
    if name_servers is not None:
        try:
            parse_addresses(name_servers)
        except ValueError as error:
            raise OptionError("nameServer", str(error)) from None
    if not live:
        reader.refuse(_LIVE_ONLY, "needs nameServer; a store directory has no broker to ask")
        if streaming:
            raise OptionError("path", "a store directory is read as a batch; a stream needs nameServer")
    if streaming:
        reader.refuse(_BATCH_ONLY, "a stream has no end; give it in a batch, or use the trigger AvailableNow")
    elif streaming is False:
        for name in _STREAM_ONLY:
            if name in reader:
                warnings.warn(f"option {name} has no effect in a batch", stacklevel=2)
    topics, pattern, assigned = _subscription(reader)
    if pattern is None:
        reader.refuse(("includeSystemTopics",), "needs subscribePattern; a topic that is named is read anyway")
    group_id = reader.text("groupId")
    shape = reader.choice("columns", ("native", "kafka"), "native")
    if "includeHeaders" in reader and shape != "kafka":
        raise OptionError("includeHeaders", "needs columns=kafka; the native columns have properties")
    include_headers = reader.flag("includeHeaders", False)
    most = reader.whole("maxOffsetsPerTrigger")
    least = reader.whole("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise OptionError("minOffsetsPerTrigger", f"is {least}, more than maxOffsetsPerTrigger, {most}")
    if least is None:
        reader.refuse(("maxTriggerDelay",), "needs minOffsetsPerTrigger; without it no batch is delayed")
    return SourceOptions(
        name_servers=name_servers,
        user=UserOption.of(reader),
        path=reader.text("path"),
        topics=topics,
        pattern=pattern,
        include_system_topics=reader.flag("includeSystemTopics", False),
        assigned=assigned,
        start=_start(reader, bool(streaming), streaming is False, group_id),
        end=_end(reader),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_s=_duration_s(reader, "maxTriggerDelay", 900.0),
        min_partitions=reader.whole("minPartitions"),
        fail_on_data_loss=reader.flag("failOnDataLoss", True),
        skip_damage=reader.choice("onDamage", ("error", "skip"), "error") == "skip",
        include_headers=include_headers,
        sub_expression=_sub_expression(reader),
        columns=shape,
        select=_select(reader, columns_of(shape, include_headers=include_headers)),
        group_id=group_id,
        pull_timeout_s=(reader.whole("pullTimeoutMs", 120_000) or 0) / 1000,
        fetch_retries=reader.whole("fetchOffset.numRetries", 3, least=0) or 0,
        fetch_retry_interval_s=(reader.whole("fetchOffset.retryIntervalMs", 10, least=0) or 0) / 1000,
        tls=read_tls(reader),
    )


def _subscription(reader: OptionReader) -> tuple[tuple[str, ...], str | None, tuple[QueueKey, ...]]:
    kind = reader.exactly_one("subscribe", "subscribePattern", "assign")
    text = reader.text(kind) or ""
    if kind == "assign":
        return (), None, parse_assign(text)
    if kind == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(kind, f"{text!r} is not a regular expression: {error}") from None
        return (), text, ()
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
    if not topics:
        raise OptionError(kind, f"{text!r} names no topic; write topics with commas between them")
    return topics, None, ()


def _start(reader: OptionReader, streaming: bool, batch: bool, group_id: str | None) -> QueryBound:
    words = ("earliest", "group") if batch else ("earliest", "latest", "group")
    word: int | None = LATEST if streaming else EARLIEST
    table: QueueTable = {}
    text = reader.text("startingOffsets")
    if text is not None:
        if text.lower() == "group" and group_id is None:
            raise OptionError("startingOffsets", "is 'group', but there is no groupId whose progress to start from")
        word, table = parse_word_or_offsets("startingOffsets", text, words)
    strategy = reader.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    if "startingTimestamp" not in reader and "startingOffsetsByTimestamp" not in reader:
        reader.refuse(("startingOffsetsByTimestampStrategy",), "needs startingTimestamp or startingOffsetsByTimestamp")
    return QueryBound(
        word=EARLIEST if word is None else word,
        offsets=table,
        timestamp_ms=reader.whole("startingTimestamp", least=0),
        timestamps_ms=_timestamps(reader, "startingOffsetsByTimestamp"),
        latest_if_none=strategy == "latest",
        option="startingOffsets",
    )


def _end(reader: OptionReader) -> QueryBound:
    table: QueueTable = {}
    text = reader.text("endingOffsets")
    if text is not None:
        _, table = parse_word_or_offsets("endingOffsets", text, ("latest",))
    return QueryBound(
        word=LATEST,
        offsets=table,
        timestamp_ms=reader.whole("endingTimestamp", least=0),
        timestamps_ms=_timestamps(reader, "endingOffsetsByTimestamp"),
        latest_if_none=True,
        option="endingOffsets",
    )


def _timestamps(reader: OptionReader, name: str) -> QueueTable:
    text = reader.text(name)
    if text is None:
        return {}
    table = parse_queue_table(name, text)
    for queue, when in table.items():
        if when < 0:
            raise OptionError(name, f"{queue}: {when} is not a time; times are milliseconds since 1970")
    return table


def _sub_expression(reader: OptionReader) -> str:
    expression = reader.text("subExpression") or "*"
    try:
        TagFilter.parse(expression)
    except FilterSyntaxError as error:
        raise OptionError("subExpression", str(error)) from None
    return expression


def _select(reader: OptionReader, columns: dict[str, str]) -> tuple[str, ...]:
    text = reader.text("select")
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in columns:
            raise OptionError("select", f"there is no column {name!r}; the columns are {', '.join(columns)}")
    if len(set(names)) < len(names):
        raise OptionError("select", "names a column twice")
    return names


def _duration_s(reader: OptionReader, name: str, default: float) -> float:
    text = reader.text(name)
    if text is None:
        return default
    try:
        return parse_duration(f"{text}ms" if text.strip().replace(".", "", 1).isdigit() else text.lower())
    except ValueError:
        raise OptionError(name, f"is {text!r}; it is a time such as 500ms, 30s, 15m or 1h") from None


class SchemaError(ValueError):
    """A column of a schema is unknown or of another type."""


def columns_of(shape: str, *, include_headers: bool = False) -> dict[str, str]:
    """Return name and Spark type of all columns; `shape` is `native` or `kafka`."""
    if shape == "native":
        return dict(NATIVE_COLUMNS)
    return {**KAFKA_COLUMNS, "headers": KAFKA_HEADERS} if include_headers else dict(KAFKA_COLUMNS)


def spark_schema(columns: dict[str, str], select: Iterable[str] = ()) -> StructType:
    """Return the Spark schema of `columns`, or of the `select`ed ones in their order; needs no session."""
    from pyspark.sql import types

    header = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    of_text: dict[str, types.DataType] = {
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "binary": types.BinaryType(),
        "timestamp": types.TimestampType(),
        "map<string,string>": types.MapType(types.StringType(), types.StringType()),
        KAFKA_HEADERS: types.ArrayType(header),
    }
    return types.StructType([types.StructField(name, of_text[columns[name]]) for name in select or columns])


def check_schema(schema: StructType, columns: dict[str, str]) -> None:
    """Check that every field of a schema is a column of the source, with its type.

    Raises:
        SchemaError: one is not; names the nearest column or the type.
    """
    for field in schema.fields:
        expected = columns.get(field.name)
        if expected is None:
            near = difflib.get_close_matches(field.name, columns, 1, 0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise SchemaError(f"the source has no column {field.name!r}; {hint}its columns are {', '.join(columns)}")
        actual = field.dataType.simpleString()
        if actual != expected:
            raise SchemaError(
                f"column {field.name!r} is of type {expected}, not {actual}; leave the schema out and cast the column"
            )
        if not field.nullable:
            raise SchemaError(f"column {field.name!r} is nullable; leave NOT NULL out")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark requires for `schema`: times are UTC whatever the session's time zone."""
    from pyspark.sql.pandas.types import to_arrow_schema

    converted: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    return converted
