"""The job `archive`: copy topics or a store directory to Parquet or a table, exactly once, batch by batch.

Names of Parquet files are a function of the data, and the archive holds the progress, so that a job continues where it
stopped and writes an interrupted batch again under the same names. A Delta or Iceberg table holds the progress itself
(`reput_pipeline.lake`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any, Final, TypeVar

import click
import pyarrow as pa
from click.core import ParameterSource

from reput_client.arrow.queues import QueueKey, QueueRange
from reput_client.arrow.urls import is_remote
from reput_client.consume.arrow_columns import arrow_schema
from reput_pipeline.archives.batches import (
    ArchiveTask,
    addresses_of,
    catalog_of,
    check_brokers,
    gone,
    gone_lines,
    next_tasks,
    open_ranges,
    summed,
    write_task,
)
from reput_pipeline.archives.directory import open_archive
from reput_pipeline.archives.layout import PARTITION_COLUMNS
from reput_pipeline.archives.manifests import Archive, ArchiveBatch, ArchiveKind
from reput_pipeline.jobs.directories import check_target
from reput_pipeline.jobs.messages import checked_source, source_arguments
from reput_pipeline.jobs.run import (
    IN_PROCESS,
    ArgumentError,
    JobRun,
    Outcome,
    failure_of,
    in_process_job,
    main,
    pairs_of,
)
from reput_pipeline.lake.copying import Copying, Stopping, open_table
from reput_pipeline.lake.table import (
    LIBRARIES,
    SAME_SOURCE,
    LakeTable,
    OtherPartitions,
    OtherSource,
    TableOptions,
    is_directory,
    is_same_source,
    place_of,
)
from reput_pipeline.source.options import SourceOptions
from reput_pipeline.source.ranges import Catalog, wanted_queues
from reput_pipeline.spark.errors import NotAnArchive, is_sparks_own
from reput_pipeline.spark.option_reader import OptionError
from reput_protocol.errors import ReputError
from reput_protocol.exit_codes import ExitCode
from reput_protocol.filter.tags import ALL
from reput_protocol.printable import counted

_CODECS = ("zstd", "snappy", "gzip", "lz4", "none")
TABLE_PARTITIONS = ("topic", "queueId", "tags")
"""Columns that can partition a table."""
T = TypeVar("T")
_AWAY_S: Final = 1.0
"""Shortest wait before a broker that is away is tried again."""
_TIDY_EVERY_S: Final = 3600.0


@in_process_job
@source_arguments
@click.option(
    "--to",
    "target",
    required=True,
    metavar="DIR",
    help="Directory or URL of the archive, of the Delta table, or of the Iceberg warehouse.",
)
@click.option(
    "--format",
    "table_format",
    type=click.Choice(["parquet", *LIBRARIES]),
    default="parquet",
    show_default=True,
    help="Parquet files, or a table, which is written without Spark.",
)
@click.option("--table", metavar="NAME", help="Iceberg: namespace and name.  [default: reput.messages]")
@click.option("--evolve", is_flag=True, help="Delta, Iceberg: add columns that the table lacks.")
@click.option(
    "--as-broker",
    metavar="NAME",
    help="Delta, Iceberg, with --path: the broker of the directory; a job with its --server then continues.",
)
@click.option(
    "--to-option",
    "to_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the object store, as for Delta tables; Iceberg: a property of the catalog; repeatable.",
)
@click.option(
    "--keep",
    "keep_hours",
    type=click.FloatRange(1),
    metavar="HOURS",
    help="Delta, Iceberg: tidy up at the end, with --follow each hour: delete versions older than this, and merge "
    "small files (Delta).  [default: leave that to others]",
)
@click.option(
    "--partition-by",
    default="",
    metavar="COLUMNS",
    help=f"Columns for directories below the topic: {', '.join(PARTITION_COLUMNS)}, separated by commas; of a Delta "
    f"table: {', '.join(TABLE_PARTITIONS)}.",
)
@click.option("--compression", type=click.Choice(_CODECS), default="zstd", show_default=True)
@click.option(
    "--follow", is_flag=True, help="Continue with new messages until interrupted.  [default: stop at the end]"
)
@click.option("--every", type=click.FloatRange(0), default=10.0, show_default=True, help="Seconds between batches.")
@click.option(
    "--same-source",
    is_flag=True,
    help="Confirm that the brokers or the directory are those of the archive or table, under another address.",
)
@click.option("--batches", type=click.IntRange(1), help="Stop after this many batches.")
@click.option(
    "--batch-messages", type=click.IntRange(1), default=2_000_000, show_default=True, help="Messages in a batch."
)
@click.option(
    "--file-messages", type=click.IntRange(1), default=1_000_000, show_default=True, help="Most messages in a file."
)
def command(
    run: JobRun,
    source: dict[str, str],
    target: str,
    table_format: str,
    table: str | None,
    evolve: bool,
    as_broker: str | None,
    to_options: tuple[str, ...],
    keep_hours: float | None,
    partition_by: str,
    compression: str,
    follow: bool,
    every: float,
    same_source: bool,
    batches: int | None,
    batch_messages: int,
    file_messages: int,
) -> Outcome:
    """Copy the messages of topics, or of a store directory, to Parquet files in DIR, or to a Delta or Iceberg table.

    DIR and --path may be URLs of object stores, such as s3://bucket/name.

    Start it again to continue where it stopped: no message is missing or there twice. spark.read.parquet(DIR) reads
    the archive between runs; `reput pipeline find` and the other jobs read complete batches also during a run.
    """
    options = checked_source(source)
    if follow and options.path is not None:
        raise ArgumentError("--follow", "a store directory does not grow; leave it out, or read from --server")
    if table_format != "parquet":
        _refuse("parquet", ("file_messages",))
        if run.master not in (None, IN_PROCESS):
            raise ArgumentError("--master", f"--format {table_format} needs no Spark; leave it out")
        if table is not None and (len(parts := table.split(".")) < 2 or not all(parts)):
            raise ArgumentError("--table", f"{table!r} is not of the form NAMESPACE.NAME")
        wanted = TableOptions(
            target,
            arrow_schema(options.select or options.all_columns),
            name=table or TableOptions.name,
            partition_by=_table_partitions(table_format, partition_by, options),
            compression=compression,
            evolve=evolve,
            settings=pairs_of(to_options, "--to-option"),
        )
        if table_format == "delta":
            _refuse("iceberg", ("table",))
        if as_broker is not None and options.path is None:
            raise ArgumentError("--as-broker", "is for --path; brokers have their names")
        if as_broker == "":
            raise ArgumentError("--as-broker", "is empty; name the broker of the directory, or leave it out")
        _check_topics(options, waits=follow)
        try:
            return _copy_to_table(
                run,
                open_table(table_format, wanted),
                wanted.schema,
                options,
                as_broker=as_broker or "",
                same_source=same_source,
                follow_s=every if follow else None,
                batches=batches,
                most=batch_messages,
                keep_s=None if keep_hours is None else keep_hours * 3600,
            )
        except OtherSource as error:
            raise ArgumentError("--to", str(error)) from None
        except OtherPartitions as error:
            raise ArgumentError("--partition-by", str(error)) from None
    _refuse("delta or iceberg", ("table", "evolve", "as_broker", "keep_hours"))
    for option, is_given in (("select", bool(options.select)), ("columns", options.columns != "native")):
        if is_given:
            raise OptionError(
                option, "is for --format delta or iceberg; a Parquet archive has all native columns, so leave it out"
            )
    columns = _partition_columns(partition_by)
    settings = pairs_of(to_options, "--to-option")
    if settings and not is_remote(target):
        raise ArgumentError("--to-option", "is for an archive at a URL; leave it out")
    archive = _opened(target, settings)
    _check_kind(archive, columns if partition_by else None)
    place = target if is_remote(target) else archive.where
    task = ArchiveTask(place, (), options, {}, columns, compression, settings)
    work = _Archiving(run, archive, task, waits=follow)
    with work.stopping.signals():
        checked = work.checked_source(every, same_source=same_source)
        if checked is not None:
            work.write(checked, every, batches=batches, most=batch_messages, file_messages=file_messages)
    if work.stopping.requested:
        run.note("interrupted; the archive is consistent, and the next run continues from there")
    return Outcome(
        {
            "archive": archive.where,
            "source": checked or options.where,
            **work.sums,
            "next_batch": archive.next_number(),
            "rows_in_archive": sum(manifest["rows"] for manifest in archive.manifests()),
        },
        ExitCode.INTERRUPTED if work.stopping.requested and not follow else ExitCode.DONE,
    )


def _copy_to_table(
    run: JobRun,
    table: LakeTable,
    schema: pa.Schema,
    options: SourceOptions,
    *,
    as_broker: str,
    same_source: bool,
    follow_s: float | None,
    batches: int | None,
    most: int,
    keep_s: float | None,
) -> Outcome:
    """Copy messages to a table until the end of the topics or, if they are followed, until a signal.

    Args:
        run: of the job.
        table: the table.
        schema: of the rows.
        options: of the source.
        as_broker: the broker whose directory is read; empty if it is not given, or for brokers.
        same_source: whether the table's topics are of this source, under another address.
        follow_s: seconds to wait for new messages; None: end when there are none.
        batches: most batches.
        most: approximate number of messages of a batch.
        keep_s: age of versions that are deleted; None: none are.

    Raises:
        Exception: as `Copying.next` and `LakeTable.tidy`.
    """
    copying = Copying(table, options, schema, as_broker=as_broker, same_source=same_source)
    stopping = Stopping()
    broker = _BrokerWait(run, waits=follow_s is not None)
    lost = 0
    tidied_at = monotonic()
    with stopping.signals():
        while not stopping.requested and (batches is None or copying.batches < batches):
            since = monotonic()
            found = broker.attempt(lambda: copying.next(most))
            if found is None:
                stopping.wait(broker.pause_s(follow_s or 0.0))
                continue
            rows, has_more = found
            for line in gone_lines(copying.lost):
                run.note(line)
            lost += sum(part.size for part in copying.lost)
            if rows:
                run.note(f"batch {copying.batches}: {counted(rows, 'message')}, {monotonic() - since:.1f} s")
            if has_more:
                continue
            if follow_s is None:
                break
            if keep_s is not None and monotonic() - tidied_at >= _TIDY_EVERY_S:
                run.note(table.tidy(keep_s))
                tidied_at = monotonic()
            stopping.wait(follow_s)
    if stopping.requested:
        run.note("interrupted; the table is consistent, and the next run continues from there")
    elif keep_s is not None:
        run.note(table.tidy(keep_s))
    figures: dict[str, Any] = {
        "table": table.where,
        "source": options.where,
        "batches": copying.batches,
        "rows": copying.rows,
        "lost": lost,
        **table.figures(),
    }
    is_cut_short = stopping.requested and follow_s is None
    return Outcome(figures, ExitCode.INTERRUPTED if is_cut_short else ExitCode.DONE)


class _BrokerWait:
    """A broker that is away: the job ends with the error or, with --follow, waits.

    It prints once that it waits, and once that the broker is back.

    Args:
        run: of the job.
        waits: whether the job waits.
    """

    def __init__(self, run: JobRun, *, waits: bool) -> None:
        self._run = run
        self._waits = waits
        self._is_away = False

    def attempt(self, ask: Callable[[], T]) -> T | None:
        """Return what `ask` returns; None if a broker is away and the job waits.

        Raises:
            Exception: as `ask`.
        """
        try:
            found = ask()
        except Exception as error:  # an error of a task arrives as one of Py4J or PySpark
            if not self._waits or not _is_broker_away(error):
                raise
            if not self._is_away:
                self._run.note(f"waits for the broker: {failure_of(error).text}")
            self._is_away = True
            return None
        if self._is_away:
            self._run.note("the broker is back")
        self._is_away = False
        return found

    def pause_s(self, every_s: float) -> float:
        """Return how long to wait before the next attempt, with so many seconds between batches."""
        return max(every_s, _AWAY_S) if self._is_away else every_s


def _is_broker_away(error: Exception) -> bool:
    """Return whether an error, of this process or a task, means that a broker is away or starting."""
    if isinstance(error, ReputError):
        return error.retryable
    return failure_of(error).code in (ExitCode.CANNOT_CONNECT, ExitCode.TIMEOUT)


def _check_topics(options: SourceOptions, *, waits: bool) -> None:
    """Check that the topics exist, before a table is created for them; if the job waits, not while the broker is away.

    Raises:
        NotAStore, ConnectFailed, NoSuchTopic: as `catalog_of` and `wanted_queues`.
    """
    try:
        with catalog_of(options) as catalog:
            wanted_queues(catalog, options)
    except ReputError as error:
        if not (waits and error.retryable):
            raise


def _opened(target: str, settings: dict[str, str]) -> Archive:
    try:
        return open_archive(target, settings)
    except NotAnArchive as error:
        raise ArgumentError("--to", str(error)) from None


def _refuse(table_format: str, names: tuple[str, ...]) -> None:
    """Reject arguments that only another format has."""
    context = click.get_current_context()
    for option in context.command.params:
        if option.name in names and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise ArgumentError(max(option.opts, key=len), f"is for --format {table_format}")


def _table_partitions(table_format: str, text: str, options: SourceOptions) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if names and table_format == "iceberg":
        raise ArgumentError("--partition-by", "create the Iceberg table with its partitions; rows are divided by them")
    for name in names:
        if name not in TABLE_PARTITIONS:
            raise ArgumentError("--partition-by", f"{name!r} is not one of {', '.join(TABLE_PARTITIONS)}")
        if name not in (options.select or options.all_columns):
            raise ArgumentError(
                "--partition-by", f"{name!r} is not a column of the table; select it with --option, or leave it out"
            )
    _check_twice(names)
    return names


def _partition_columns(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip() and name.strip() != "topic")
    for name in names:
        if name not in PARTITION_COLUMNS:
            raise ArgumentError(
                "--partition-by", f"{name!r} is not one of {', '.join(PARTITION_COLUMNS)}; the topic always comes first"
            )
    _check_twice(names)
    return names


def _check_twice(names: tuple[str, ...]) -> None:
    if len(set(names)) < len(names):
        raise ArgumentError("--partition-by", "names a column twice")


def _source_of(options: SourceOptions, catalog: Catalog) -> str:
    """Return an archive's `source`: elsewhere the same offsets are other messages."""
    if options.path is not None:
        return place_of(options.path)
    return ", ".join(f"{name} at {address}" for name, address in sorted(addresses_of(catalog).items()))


def _tags_of(options: SourceOptions) -> str:
    """Return the wanted tags, in a form in which equal filters are equal."""
    wanted = options.tag_filter
    return ALL if wanted.matches_all else " || ".join(sorted(wanted.tags))


def _tags_text(tags: str) -> str:
    return "all tags" if tags == ALL else f"--tag {tags!r}"


def _check_kind(archive: Archive, partition_by: tuple[str, ...] | None) -> None:
    found = archive.kind()
    if found is None:
        check_target(archive)
        return
    if found.kind != "archive":
        raise ArgumentError("--to", f"{archive.where} was made by the job {found.kind}, and cannot be continued")
    if partition_by is not None and found.partition_by != partition_by:
        there = ",".join(found.partition_by) or "nothing"
        raise ArgumentError(
            "--partition-by", f"{archive.where} is partitioned by {there}; leave it out, or name another --to"
        )


def _check_source(archive: Archive, source: str, *, same_source: bool) -> None:
    found = archive.kind()
    if found is None or is_same_source(found.source, source):
        return
    # A directory has no broker name: every queue would count as new.
    is_other = is_directory(found.source) != is_directory(source)
    if is_other or not same_source:
        other = OtherSource(archive.where, found.source, source, "" if is_other else SAME_SOURCE)
        raise ArgumentError("--to", str(other))


class _Archiving:
    """The batches of one run.

    Args:
        run: of the job.
        archive: the archive.
        task: one without ranges, with the columns that partition the archive if it is new.
        waits: whether to follow the topics, and to wait for a broker that is away, instead of raising.
    """

    def __init__(self, run: JobRun, archive: Archive, task: ArchiveTask, *, waits: bool) -> None:
        self.sums = {"batches": 0, **summed([]), "lost": 0}
        """Totals of batches, rows, files and bytes written, and of messages that were gone before that."""
        self.stopping = Stopping()
        self._run = run
        self._archive = archive
        self._task = task
        self._options = task.options
        self._waits = waits
        self._broker = _BrokerWait(run, waits=waits)

    def checked_source(self, every: float, *, same_source: bool) -> str | None:
        """Return the archive's source after all checks, before anything is written; None if the job is to end.

        Args:
            every: seconds between attempts to reach a broker that is away.
            same_source: as `_check_source`.
        """

        def check() -> str:
            with catalog_of(self._options) as catalog:
                source = _source_of(self._options, catalog)
                _check_source(self._archive, source, same_source=same_source)
                open_ranges(catalog, self._options, self._archive.ends(), self._archive.generations())
            return source

        while not self.stopping.requested:
            source = self._broker.attempt(check)
            if source is not None:
                return source
            self.stopping.wait(self._broker.pause_s(every))
        return None

    def write(self, source: str, every: float, *, batches: int | None, most: int, file_messages: int) -> None:
        """Write batches until there is nothing more, or, if the topics are followed, until a signal.

        Args:
            source: as of `checked_source`.
            every: seconds between batches.
            batches: most batches.
            most: approximate number of messages of a batch.
            file_messages: highest number of messages in a file.
        """
        with self._archive as archive:
            found = archive.kind()
            tags = _tags_of(self._options)
            kind = ArchiveKind("archive", source, self._task.partition_by, tags)
            if found is not None:
                kind = replace(kind, partition_by=found.partition_by)
                if found.tags is not None and found.tags != tags:
                    self._run.note(
                        f"the archive has the messages with {_tags_text(found.tags)} so far, and gets those with "
                        f"{_tags_text(tags)} from here on; what runs have left out is not archived later: for "
                        "that, name another --to"
                    )
            self._task = replace(self._task, partition_by=kind.partition_by)
            archive.begin(kind)
            parts = 2 * self._run.parallelism
            with self.stopping.signals():  # again, since a session of Spark that starts takes SIGINT over
                while not self.stopping.requested and (batches is None or self.sums["batches"] < batches):
                    try:
                        found_any = self._broker.attempt(lambda: self._next(most, file_messages, parts))
                    except Exception as error:
                        # A terminal or a supervisor sends the signal to Spark's processes, too.
                        if not (self.stopping.requested and is_sparks_own(error)):
                            raise
                        self._run.note(f"the batch was interrupted: {failure_of(error).text}")
                        break
                    if found_any:
                        self.sums["batches"] += 1
                    elif not self._waits:
                        break
                    if self._waits:
                        self.stopping.wait(self._broker.pause_s(every))

    def _next(self, most: int, file_messages: int, parts: int) -> bool:
        """Write the interrupted batch, or the next one; return whether there was one."""
        return self._clean_up() or self._batch(most, file_messages, parts)

    def _clean_up(self) -> bool:
        """Write an interrupted batch again and remove its other files; return whether there was one."""
        archive = self._archive
        batch = archive.unfinished()
        if batch is not None:
            self._run.note(f"batch {batch.number} was interrupted: it is written again")
            if archive.is_locked:  # their room may be needed
                self._remove_strays()
            with catalog_of(self._options) as catalog:
                self._write(batch, addresses_of(catalog))
        if not archive.is_locked and (batch is not None or archive.old_plans()):
            self._remove_strays()
        return batch is not None

    def _remove_strays(self) -> None:
        removed = self._archive.remove_strays()
        if removed:
            self._run.note(f"removed {counted(len(removed), 'file')} of batches that were not completed")

    def _batch(self, most: int, file_messages: int, parts: int) -> bool:
        """Write the next batch; return whether there was anything."""
        with catalog_of(self._options) as catalog:
            archive = self._archive
            done = archive.ends()
            start, end = open_ranges(catalog, self._options, done, archive.generations())
            tasks = next_tasks(start, end, most=most, file_messages=file_messages, parts=parts)
            planned = {part.queue for task in tasks for part in task}
            # The batch also records losses in queues of which it has no message.
            lost = [part for part in gone(done, start) if part.queue not in planned]
            if lost:
                tasks.append([QueueRange(part.queue, part.end, part.end) for part in lost])
            if not tasks:
                return False
            self._write(archive.plan(tasks, catalog.generations), addresses_of(catalog))
        return True

    def _write(self, batch: ArchiveBatch, addresses: dict[str, str]) -> None:
        since = monotonic()
        if self._options.path is None:
            check_brokers(batch, addresses)
        tasks = [
            replace(self._task, ranges=ranges, generations=batch.generations)
            for ranges in batch.tasks
            if any(part.size for part in ranges)
        ]
        files = self._run.each(f"batch {batch.number}", tasks, write_task)
        more: dict[str, Any] = {}
        rows = sum(file.rows for file in files)
        if rows < batch.size:
            more["left_out"] = batch.size - rows
        start: dict[QueueKey, int] = {}
        for part in batch.ranges:
            start[part.queue] = min(part.start, start.get(part.queue, part.start))
        lost = gone(self._archive.ends(), start)
        if lost:
            more["lost"] = sum(part.size for part in lost)
        self._archive.complete(batch, files, **more)
        for line in gone_lines(lost):
            self._run.note(line)
        for name, value in {**summed(files), "lost": more.get("lost", 0)}.items():
            self.sums[name] += value
        taken = monotonic() - since
        self._run.note(
            f"batch {batch.number}: {counted(rows, 'message')} in {counted(len(files), 'file')}, {taken:.1f} s"
        )


if __name__ == "__main__":
    main("archive")
