"""A topic or a store directory as a lazy source of Polars."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from reput_client.arrow.batches import LOG_BATCH_ROWS
from reput_client.arrow.read import TIMEOUT_S, Position, read_arrow, typed_columns
from reput_client.arrow.values import Decoder, OnBadValue
from reput_client.consume.arrow_columns import arrow_schema
from reput_client.security import TLS, Credentials
from reput_protocol.filter.tags import ALL

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_FOR_LENGTH: Final = ("queueId",)
"""What a query without columns reads, such as that of row numbers: frames and batches without columns have no rows."""


def scan_polars(
    source: str | os.PathLike[str],
    topic: str,
    *,
    columns: Sequence[str] | None = None,
    start: Position = "earliest",
    end: Position = "latest",
    queues: Iterable[int] | None = None,
    tags: str = ALL,
    decode: Decoder | None = None,
    value_type: pa.DataType | None = None,
    on_bad_value: OnBadValue = "raise",
    batch_rows: int = LOG_BATCH_ROWS,
    timeout_s: float = TIMEOUT_S,
    tls: TLS | None = None,
    credentials: Credentials | None = None,
    filesystem: FileSystem | None = None,
) -> pl.LazyFrame:
    """Return a topic as a lazy frame, by default with all columns of RocketMQ's names.

    Nothing is opened now: each query, on `collect`, reads the topic as `read_arrow` does, up to where it ends then. A
    query decodes only the columns that it uses, filters each batch as it is read, and ends once it has as many rows as
    it needs (`head`). `start`, `end`, `queues` and `tags` are what spares reading messages. `properties` is a map, or
    in versions of Polars without maps a list of structures of `key` and `value`. A query raises what `read_arrow` and
    its reader raise.

    Args:
        source, topic, columns, start, end, queues, tags: as of `read_arrow`.
        decode, value_type, on_bad_value, batch_rows, timeout_s, tls, credentials, filesystem: as of `read_arrow`. A
            query without `value` and `error` decodes nothing.

    Raises:
        ValueError: no column is named, one is unknown or named twice, `batch_rows` is below 1, or the values of
            `decode` have no column type.
        RegistryUnavailable, RegistryRefused, SchemaNotFound: of `decode`, if it asks its registry for its schema.
    """
    typed = typed_columns(columns, decode, value_type, on_bad_value, batch_rows)
    arrow = arrow_schema(columns) if typed is None else typed.schema
    schema = pl.DataFrame(arrow.empty_table()).schema
    numbers = None if queues is None else list(queues)

    def batches(
        needed: list[str] | None, predicate: pl.Expr | None, rows: int | None, rows_of_polars: int | None
    ) -> Iterator[pl.DataFrame]:
        reader = read_arrow(
            source,
            topic,
            columns=arrow.names if needed is None else needed or _FOR_LENGTH,
            start=start,
            end=end,
            queues=numbers,
            tags=tags,
            decode=decode,
            value_type=value_type,
            on_bad_value=on_bad_value,
            batch_rows=min(rows_of_polars or batch_rows, batch_rows),
            timeout_s=timeout_s,
            tls=tls,
            credentials=credentials,
            filesystem=filesystem,
        )
        left = rows
        for batch in reader:
            found = pl.DataFrame(batch)
            if predicate is not None:
                found = found.filter(predicate)
            if left is not None:
                found = found.head(left)
                left -= len(found)
            yield found if needed != [] else found.drop(_FOR_LENGTH)
            if left == 0:
                return

    return register_io_source(
        batches, schema=schema, explain_name="Reput", explain_detail=f"{topic} of {os.fspath(source)}"
    )
