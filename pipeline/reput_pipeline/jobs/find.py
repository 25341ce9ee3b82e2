"""The job `find`: find messages by key, id or text, in brokers, a store directory or an archive.

In a store directory, keys and ids are looked up in a complete key index; everything else is a scan in the workers.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reput_client.consume.arrow_columns import arrow_schema
from reput_pipeline.archives.directory import ArchiveDirectory
from reput_pipeline.archives.layout import is_cut, partition_values
from reput_pipeline.jobs.messages import Messages, messages_arguments
from reput_pipeline.jobs.run import ArgumentError, JobRun, Outcome, in_process_job, main
from reput_pipeline.source.live import plan_batch
from reput_pipeline.source.offline import OfflineStore, plan
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.source.ranges import NOTHING_NARROWED, InputPartition, Narrowing
from reput_pipeline.source.tasks import read_task
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import printable_json
from reput_protocol.record.message_id import decode_offset_message_id

_SCHEMA = arrow_schema()
_TIMES_AS_NUMBERS = pa.schema(
    [field.with_type(pa.int64()) if pa.types.is_timestamp(field.type) else field for field in _SCHEMA]
)
"""In microseconds: a producer's clock may be wrong, and Python has no times after the year 9999."""


@dataclass(frozen=True)
class Conditions:
    """The conditions, all of which must hold."""

    key: str | None = None
    unique_id: str | None = None
    physical_offset: int | None = None
    """The parts of an offset message id."""
    text: str | None = None
    ignore_case: bool = False
    is_pattern: bool = False
    limit: int = 100

    def rows(self, table: pa.Table) -> pa.Table:
        """Return the matching rows of a table, in order."""
        mask = pa.repeat(pa.scalar(True), table.num_rows)
        if self.key is not None:
            padded = pc.binary_join_element_wise("", table["keys"], "", " ")
            mask = pc.and_(mask, pc.fill_null(pc.match_substring(padded, f" {self.key} "), False))
        if self.unique_id is not None or self.physical_offset is not None:
            by_id = pc.equal(table["physicalOffset"], -1 if self.physical_offset is None else self.physical_offset)
            if self.unique_id is not None:
                ids = pc.map_lookup(table["properties"], pa.scalar("UNIQ_KEY"), "first")
                by_id = pc.or_(by_id, pc.fill_null(pc.equal(ids, self.unique_id), False))
            mask = pc.and_(mask, pc.fill_null(by_id, False))
        if self.text is not None:
            match = pc.match_substring_regex if self.is_pattern else pc.match_substring
            # As text, so that a dot and a case are those of letters; bytes that are not UTF-8 are no letters.
            bodies = table["body"].cast(options=pc.CastOptions(pa.string(), allow_invalid_utf8=True))
            hits = match(bodies, self.text, ignore_case=self.ignore_case)
            mask = pc.and_(mask, pc.fill_null(hits, False))
        return table.filter(mask)


@dataclass(frozen=True)
class FindTask:
    """One task: a partition of the source, or a file of an archive."""

    wanted: Conditions
    options: SourceOptions
    narrowing: Narrowing
    partition: InputPartition | None
    file: str | None
    constants: Mapping[str, str | None]
    """The columns in the names of an archive file's directories."""


def find_task(task: FindTask) -> Iterator[dict[str, Any]]:
    """Yield matching messages, up to the limit."""
    left = task.wanted.limit
    for table in _tables(task):
        found = task.wanted.rows(table)
        for row in found.slice(0, left).cast(_TIMES_AS_NUMBERS).to_pylist():
            yield _message(row)
        left -= found.num_rows
        if left <= 0:
            return


def _tables(task: FindTask) -> Iterator[pa.Table]:
    if task.file is None:
        assert task.partition is not None, "a task has a partition or a file"
        for batch in read_task(task.partition, task.options, _SCHEMA, task.narrowing):
            yield pa.Table.from_batches([batch])
        return
    tags = task.options.tag_filter
    with pq.ParquetFile(task.file) as file:
        for batch in file.iter_batches(batch_size=16_384):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            for name, value in task.constants.items():
                columns[name] = pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)
            if is_cut(task.constants.get("tags") or ""):
                columns["tags"] = pc.map_lookup(columns["properties"], pa.scalar("TAGS"), "first")
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
    """Return a message as a JSON object with the columns' names; times in ms, a UTF-8 body as text."""
    body = row.pop("body") or b""
    properties = dict(row.pop("properties") or ())
    shown = {**row, "messageId": properties.get("UNIQ_KEY"), "properties": properties, "size": len(body)}
    for name in ("bornTimestamp", "storeTimestamp"):
        shown[name] = None if row[name] is None else row[name] // 1000
    try:
        shown["body"] = body.decode()
    except UnicodeDecodeError:
        shown["bodyBase64"] = base64.b64encode(body).decode()
    return shown


@in_process_job
@messages_arguments
@click.option("--key", metavar="KEY", help="Messages that have this key.")
@click.option("--id", "message_id", metavar="ID", help="The message with this unique id or offset message id.")
@click.option("--text", metavar="TEXT", help="Messages whose body contains this text.")
@click.option("--regex", metavar="PATTERN", help="Messages whose body contains a match of this pattern (RE2).")
@click.option("--ignore-case", is_flag=True, help="For --text and --regex.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Most messages to print.")
def command(
    run: JobRun,
    messages: Messages,
    key: str | None,
    message_id: str | None,
    text: str | None,
    regex: str | None,
    ignore_case: bool,
    limit: int,
) -> Outcome:
    """Find the messages that meet all conditions, and print each as one line of JSON.

    Exits with 5 if there is none.
    """
    wanted = _wanted(key, message_id, text, regex, ignore_case, limit)
    tasks = _tasks(messages, wanted)
    found = run.each("find", tasks, find_task, parts=1000)
    found.sort(key=lambda row: (row["storeTimestamp"] or 0, row["physicalOffset"] or 0))
    for row in found[:limit]:
        run.write(printable_json(row))
    return Outcome(
        {"source": messages.where, "found": min(len(found), limit), "limit_reached": len(found) >= limit},
        ExitCode.DONE if found else ExitCode.NOT_FOUND,
    )


def _wanted(
    key: str | None, message_id: str | None, text: str | None, regex: str | None, ignore_case: bool, limit: int
) -> Conditions:
    if key is None and message_id is None and text is None and regex is None:
        raise ArgumentError("--key", "is missing; give --key, --id, --text or --regex")
    if text is not None and regex is not None:
        raise ArgumentError("--regex", "contradicts --text; give one of them")
    for name, value in (("--key", key), ("--id", message_id)):
        if value is not None and (not value or " " in value):
            raise ArgumentError(name, f"{value!r} is not valid; it has no spaces, and at least one character")
    if ignore_case and text is None and regex is None:
        raise ArgumentError("--ignore-case", "needs --text or --regex")
    if regex is not None:
        try:
            pc.match_substring_regex(pa.scalar(""), regex)
        except pa.ArrowInvalid as error:
            raise ArgumentError("--regex", f"{regex!r} is not a regular expression of RE2: {error}") from None
    place = None
    if message_id is not None:
        try:
            place = decode_offset_message_id(message_id)[1]
        except ValueError:
            place = None
    pattern = text if text is not None else regex
    return Conditions(key, message_id, place, pattern, ignore_case, regex is not None, limit)


def _tasks(messages: Messages, wanted: Conditions) -> list[FindTask]:
    options = messages.options
    if messages.archive is not None:
        messages.check_topics()
        archive = ArchiveDirectory(messages.archive)
        return [
            FindTask(
                wanted,
                options,
                NOTHING_NARROWED,
                None,
                str(archive.root / file.path),
                {**partition_values(file.path), "topic": file.topic},
            )
            for file in archive.files()
            if options.is_wanted(file.topic)
        ]
    narrowing = NOTHING_NARROWED
    if options.path is None:
        partitions = plan_batch(options, narrowing)
    else:
        with OfflineStore(options.path) as store:
            token = wanted.key
            if token is None and (wanted.physical_offset is None or store.log.find(wanted.physical_offset) is None):
                token = wanted.unique_id  # an offset message id may have 32 digits, too
            if token is not None:
                narrowing = Narrowing(keys=frozenset([token]))
            partitions = plan(store, options, narrowing)
    return [FindTask(wanted, options, narrowing, partition, None, {}) for partition in partitions]


if __name__ == "__main__":
    main("find")
