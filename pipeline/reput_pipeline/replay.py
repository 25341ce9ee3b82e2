"""The job `replay`: the messages of an archive back to a broker, exactly once.

Each batch of the archive is one commit of the sink, under a key made of the batch's manifest: a job that was stopped
and is started again sends all batches again, and the broker publishes those that it does not have. The order of a queue
is kept; body, tags, keys, properties, flag and born time are those of the archive.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reput_client.blocking import Admin
from reput_pipeline.archives.columns import spark_schema
from reput_pipeline.archives.manifests import ArchiveDirectory
from reput_pipeline.jobs.arguments import DEFAULT_SERVER
from reput_pipeline.jobs.frame import job, main
from reput_pipeline.jobs.outcomes import ArgumentError, Outcome
from reput_pipeline.jobs.run import JobRun
from reput_pipeline.sink_options import parse_sink_options
from reput_pipeline.source import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_COLUMNS = ("topic", "queueId", "keys", "tags", "body", "properties", "flag", "bornTimestamp")


@job
@click.option(
    "--archive", required=True, type=click.Path(path_type=Path), metavar="DIR", help="What to send."
)
@click.option(
    "--server", default=DEFAULT_SERVER, show_default=True, metavar="HOST:PORT", help="Where to send it."
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; repeatable.")
@click.option(
    "--to-topic", metavar="TOPIC", help="Send to this topic.  [default: to those the messages are from]"
)
@click.option(
    "--semantics",
    type=click.Choice(["exactly-once", "at-least-once"]),
    default="exactly-once",
    show_default=True,
    help="At least once is faster, and sends again what it has sent when it is started again.",
)
@click.option("--name", default="", help="Tells replays of one archive apart: another name sends it again.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent.")
def command(
    run: JobRun,
    archive: Path,
    server: str,
    topics: tuple[str, ...],
    to_topic: str | None,
    semantics: str,
    name: str,
    dry_run: bool,
) -> Outcome:
    """Send the messages of an archive to a broker."""
    source = ArchiveDirectory(archive.absolute())
    kind = source.existing()
    options = {"nameServer": server, "semantics": semantics}
    if to_topic is not None:
        options["topic"] = to_topic
    parse_sink_options(options, streaming=False)
    known = {file.topic for file in source.files()}
    for topic in topics:
        if topic not in known:
            raise ArgumentError(
                "--topic", f"{topic!r} is not in {source.root}; it has {', '.join(sorted(known)) or 'none'}"
            )
    if not dry_run:
        with Admin(server) as admin:
            admin.list_topics()  # who does not answer is told at once, and not after the sink's many tries
    sent = batches = 0
    for manifest in source.manifests():
        files = [entry for entry in manifest["files"] if not topics or entry["topic"] in topics]
        rows = sum(entry["rows"] for entry in files)
        if not files:
            continue
        if not dry_run:
            batch = dict(options)
            if semantics == "exactly-once":
                batch["idempotencyKey"] = _key(manifest, topics, to_topic, name)
            register(run.spark)
            paths = [str(source.root / entry["path"]) for entry in files]
            schema = spark_schema(kind.partition_by)
            frame = run.spark.read.schema(schema).option("basePath", str(source.root)).parquet(*paths)
            with run.progress(f"batch {manifest['batch']}"):
                in_order(run, frame).write.format("reput").options(**batch).mode("append").save()
        run.note(f"batch {manifest['batch']}: {rows} messages {'would be ' if dry_run else ''}sent")
        sent += rows
        batches += 1
    return Outcome(
        {"archive": str(source.root), "server": server, "batches": batches, "rows": sent, "dry_run": dry_run}
    )


def in_order(run: JobRun, frame: DataFrame) -> DataFrame:
    """Return what the sink takes of messages: each queue in one task, in its order."""
    by = ("topic", "brokerName", "queueId")
    ordered = frame.repartition(run.parallelism, *by).sortWithinPartitions(*by, "queueOffset")
    return ordered.select(*_COLUMNS)


def _key(manifest: dict[str, Any], topics: tuple[str, ...], to_topic: str | None, name: str) -> str:
    """Return what the broker knows a batch by."""
    text = json.dumps([manifest, sorted(topics), to_topic, name], sort_keys=True)
    return f"replay-{manifest['batch']}-{hashlib.sha256(text.encode()).hexdigest()}"


if __name__ == "__main__":
    main("replay")
