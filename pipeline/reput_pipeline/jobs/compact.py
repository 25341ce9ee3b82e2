"""The job `compact`: copy the latest message of every key of an archive, or one of each unique id, to a new one."""

from __future__ import annotations

import os
import shutil
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reput_broker.store.base.file_io import sync_directory
from reput_pipeline.archives.directory import ArchiveDirectory
from reput_pipeline.archives.layout import file_schema
from reput_pipeline.archives.manifests import ArchiveFile, ArchiveKind
from reput_pipeline.archives.read import read_archive
from reput_pipeline.jobs.directories import ARCHIVE_PLACE, check_target
from reput_pipeline.jobs.run import ArgumentError, JobRun, Outcome, job, main
from reput_pipeline.spark.session import setting
from reput_protocol.printable import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TIMES = "spark.sql.parquet.outputTimestampType"


@job
@click.option(
    "--archive", required=True, type=ARCHIVE_PLACE, metavar="DIR", help="An archive that the job archive has written."
)
@click.option("--to", "target", required=True, type=ARCHIVE_PLACE, metavar="DIR", help="A new archive.")
@click.option(
    "--by",
    type=click.Choice(["key", "id"]),
    default="key",
    show_default=True,
    help="key: keep the latest message of each value of KEYS; id: keep the first of each unique id.",
)
@click.option(
    "--drop-empty-after",
    type=click.FloatRange(0, 24 * 365 * 100),
    metavar="HOURS",
    help="With --by key: leave out keys whose latest message has no body and was stored that long ago, so that readers "
    "of the archives before have seen that the key is deleted; 0: all of them.  [default: keep them]",
)
@click.option("--drop-keyless", is_flag=True, help="Leave out messages without a key or id.  [default: keep them all]")
def command(
    run: JobRun, archive: Path, target: Path, by: str, drop_empty_after: float | None, drop_keyless: bool
) -> Outcome:
    """Keep one message of each key, or of each unique id, of every topic of an archive.

    The latest has the latest store time and, among these, the highest offset. The source archive is not changed.
    """
    if drop_empty_after is not None and by == "id":
        raise ArgumentError("--drop-empty-after", "needs --by key")
    empty_until = None if drop_empty_after is None else datetime.now(UTC) - timedelta(hours=drop_empty_after)
    source = ArchiveDirectory(archive.absolute())
    source.existing()
    made = ArchiveDirectory(target.absolute())
    was_interrupted = _was_interrupted(made)
    if made.root == source.root or (made.kind() is not None and not was_interrupted):
        raise ArgumentError("--to", f"{made.root} is already an archive; name a new directory")
    if not was_interrupted:
        check_target(made)
    before = sum(file.rows for file in source.files())
    with made:
        if was_interrupted:
            run.note(f"removed {counted(sweep(made), 'file')} of an interrupted job")
        # Before the first file, so that an interrupted run's directory is recognised.
        batch = made.plan([], {})
        kept = chosen(read_archive(run.spark, source.root), by, empty_until=empty_until, drop_keyless=drop_keyless)
        with run.progress("compact"):
            files = write_frame(run, kept, made)
        made.begin(ArchiveKind("compact", str(source.root)))
        made.complete(batch, files, by=by)
    after = sum(file.rows for file in files)
    run.note(f"{after} of {counted(before, 'message')} kept")
    return Outcome(
        {
            "archive": str(made.root),
            "source": str(source.root),
            "by": by,
            "rows_before": before,
            "rows": after,
            "files": len(files),
            "bytes": sum(file.bytes for file in files),
        }
    )


def _was_interrupted(archive: ArchiveDirectory) -> bool:
    """Return whether an interrupted run of this job has left the directory."""
    kind = archive.kind()
    return (kind is None or kind.kind == "compact") and archive.unfinished() is not None


def sweep(archive: ArchiveDirectory) -> int:
    """Remove the data files of an interrupted run, which have Spark's names, and return their number."""
    left = [*archive.root.glob("topic=*/part-*.parquet")]
    for path in left:
        path.unlink()
    for directory in archive.directory.glob("writing-*"):
        shutil.rmtree(directory)
    return len(left)


def chosen(frame: DataFrame, by: str, *, empty_until: datetime | None, drop_keyless: bool) -> DataFrame:
    """Return the messages to keep.

    Args:
        frame: the messages of an archive.
        by: `key` or `id`.
        empty_until: store time up to which the latest message of a key is left out if it has no body; None: none is.
        drop_keyless: whether messages without a key or id are left out.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    names = [name for name in frame.columns if name not in ("date", "hour")]
    frame = frame.select(*names)
    key = f.col("keys") if by == "key" else f.element_at("properties", "UNIQ_KEY")
    place = ["storeTimestamp", "queueOffset", "queueId", "brokerName"]
    order = [f.desc(name) if by == "key" else f.asc(name) for name in place]
    with_key = frame.withColumn("_key", key)
    window = Window.partitionBy("topic", "_key").orderBy(*order)
    kept = with_key.where("_key is not null").withColumn("_rank", f.row_number().over(window)).where("_rank = 1")
    if empty_until is not None:
        kept = kept.where((f.octet_length("body") > 0) | (f.col("storeTimestamp") > f.lit(empty_until)))
    kept = kept.select(*names)
    return kept if drop_keyless else kept.unionByName(with_key.where("_key is null").select(*names))


def write_frame(run: JobRun, frame: DataFrame, archive: ArchiveDirectory) -> list[ArchiveFile]:
    """Write a new archive's files, which get their names when all are complete."""
    written = archive.directory / f"writing-{uuid.uuid4().hex}"
    try:
        columns = file_schema(()).names
        ordered = frame.select("topic", *columns).sortWithinPartitions("topic", "brokerName", "queueId", "queueOffset")
        with setting(run.spark, _TIMES, "TIMESTAMP_MICROS"):  # as in the job archive
            ordered.write.partitionBy("topic").option("compression", "zstd").parquet(str(written))
        files = []
        for path in sorted(written.glob("topic=*/*.parquet")):
            topic_directory = archive.root / path.parent.name
            topic_directory.mkdir(exist_ok=True)
            _sync(path)
            place = topic_directory / path.name
            os.replace(path, place)
            sync_directory(topic_directory)
            files.append(_entry(archive.root, place))
        sync_directory(archive.root)
        return files
    finally:
        shutil.rmtree(written, ignore_errors=True)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _entry(root: Path, path: Path) -> ArchiveFile:
    from urllib.parse import unquote

    with pq.ParquetFile(path) as file:
        rows = file.metadata.num_rows
        times = [pc.min_max(batch.column(0)).as_py() for batch in file.iter_batches(columns=["storeTimestamp"])]
    low = min((time["min"] for time in times if time["min"] is not None), default=None)
    high = max((time["max"] for time in times if time["max"] is not None), default=None)
    return ArchiveFile(
        path.relative_to(root).as_posix(),
        unquote(path.parent.name.partition("=")[2]),
        rows,
        path.stat().st_size,
        None if low is None else round(low.timestamp() * 1000),
        None if high is None else round(high.timestamp() * 1000),
    )


if __name__ == "__main__":
    main("compact")
