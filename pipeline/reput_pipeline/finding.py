"""Look messages up in the workers: by key, id or text. Only what is found leaves them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition

from reput_pipeline.archives.columns import ARROW_TYPES
from reput_pipeline.narrowing import Narrowing
from reput_pipeline.options import SourceOptions
from reput_pipeline.schema import NATIVE_COLUMNS
from reput_pipeline.tasks import read_task

_SCHEMA = pa.schema([pa.field(name, ARROW_TYPES[kind]) for name, kind in NATIVE_COLUMNS.items()])


@dataclass(frozen=True)
class Wanted:
    """What messages to find: all that is given has to hold."""

    key: str | None = None
    unique_id: str | None = None
    physical_offset: int | None = None
    """What an offset message id says."""
    text: bytes | None = None
    ignore_case: bool = False
    is_pattern: bool = False
    limit: int = 100

    def rows(self, table: pa.Table) -> pa.Table:
        """Return the rows of a table that are wanted, in their order."""
        mask = pa.repeat(pa.scalar(True), table.num_rows)
        if self.key is not None:
            padded = pc.binary_join_element_wise("", table["keys"], "", " ")
            mask = pc.and_(mask, pc.fill_null(pc.match_substring(padded, f" {self.key} "), False))
        if self.unique_id is not None or self.physical_offset is not None:
            by_id = pc.equal(
                table["physicalOffset"], -1 if self.physical_offset is None else self.physical_offset
            )
            if self.unique_id is not None:
                ids = pc.map_lookup(table["properties"], pa.scalar("UNIQ_KEY"), "first")
                by_id = pc.or_(by_id, pc.fill_null(pc.equal(ids, self.unique_id), False))
            mask = pc.and_(mask, pc.fill_null(by_id, False))
        if self.text is not None:
            match = pc.match_substring_regex if self.is_pattern else pc.match_substring
            hits = match(table["body"], self.text, ignore_case=self.ignore_case)
            mask = pc.and_(mask, pc.fill_null(hits, False))
        return table.filter(mask)


@dataclass(frozen=True)
class FindTask:
    """Where one task looks: a part of a source, or a file of an archive."""

    wanted: Wanted
    options: SourceOptions
    narrowing: Narrowing
    partition: InputPartition | None
    file: str | None
    constants: Mapping[str, str | None]
    """Of a file of an archive: the columns that its directories tell."""


def find_task(task: FindTask) -> Iterator[dict[str, Any]]:
    """Yield the messages that are wanted, at most as many as the limit says."""
    left = task.wanted.limit
    for table in _tables(task):
        found = task.wanted.rows(table)
        for row in found.slice(0, left).to_pylist():
            yield _message(row)
        left -= found.num_rows
        if left <= 0:
            return


def _tables(task: FindTask) -> Iterator[pa.Table]:
    if task.file is None:
        assert task.partition is not None, "a task looks somewhere"
        for batch in read_task(task.partition, task.options, _SCHEMA, task.narrowing):
            yield pa.Table.from_batches([batch])
        return
    tags = task.options.tag_filter
    with pq.ParquetFile(task.file) as file:
        for batch in file.iter_batches(batch_size=16_384):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            for name, value in task.constants.items():
                columns[name] = pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)
            table = pa.table([columns[field.name].cast(field.type) for field in _SCHEMA], schema=_SCHEMA)
            if not tags.matches_all:
                table = table.filter(pc.is_in(table["tags"], pa.array(sorted(tags.tags), pa.string())))
            low, high = task.options.start.timestamp_ms, task.options.end.timestamp_ms
            at = pc.divide(table["storeTimestamp"].cast(pa.int64()), 1000)
            for bound, test in ((low, pc.greater_equal), (high, pc.less)):
                if bound is not None:
                    table, at = table.filter(test(at, bound)), at.filter(test(at, bound))
            yield table


def _message(row: dict[str, Any]) -> dict[str, Any]:
    """Return a message as a JSON object: names as the columns, times in ms, the body as text if it is any."""
    body = row.pop("body") or b""
    properties = dict(row.pop("properties") or ())
    shown = {**row, "messageId": properties.get("UNIQ_KEY"), "properties": properties, "size": len(body)}
    for name in ("bornTimestamp", "storeTimestamp"):
        shown[name] = None if row[name] is None else round(row[name].timestamp() * 1000)
    try:
        shown["body"] = body.decode()
    except UnicodeDecodeError:
        shown["bodyBase64"] = base64.b64encode(body).decode()
    return shown
