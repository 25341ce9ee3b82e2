"""The job `replay`: send the messages of an archive to a broker, exactly once.

Each batch of the archive is one commit of the sink, whose key derives from the batch's manifest. Started again, a job
sends all batches, and the broker publishes those that it lacks. Queues keep their order, messages their body, tags,
keys, properties, flag and born time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reput_client.blocking import Admin
from reput_pipeline.archives.directory import ArchiveDirectory
from reput_pipeline.archives.manifests import ArchiveFile
from reput_pipeline.archives.read import read_archive, read_files
from reput_pipeline.data_source import register
from reput_pipeline.jobs.directories import ARCHIVE_PLACE
from reput_pipeline.jobs.messages import DEFAULT_SERVER
from reput_pipeline.jobs.run import ArgumentError, JobRun, Outcome, job, main, pairs_of
from reput_pipeline.sink.options import parse_sink_options
from reput_pipeline.spark.option_reader import OptionError, credentials_for
from reput_protocol.printable import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ARGUMENTS = {"nameServer": "--server", "topic": "--to-topic"}
_COLUMNS = ("topic", "queueId", "keys", "tags", "body", "properties", "flag", "bornTimestamp")


@job
@click.option("--archive", required=True, type=ARCHIVE_PLACE, metavar="DIR", help="The archive.")
@click.option("--server", default=DEFAULT_SERVER, show_default=True, metavar="HOST:PORT", help="The broker.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; repeatable.")
@click.option("--to-topic", metavar="TOPIC", help="Send to this topic.  [default: the original topics]")
@click.option(
    "--semantics",
    type=click.Choice(["exactly-once", "at-least-once"]),
    default="exactly-once",
    show_default=True,
    help="at-least-once is faster; started again, it sends messages again.",
)
@click.option(
    "-o", "--option", "given", multiple=True, metavar="KEY=VALUE", help="Any option of the Spark sink; repeatable."
)
@click.option("--name", default="", help="Name of this replay: under another name the archive is sent again.")
@click.option("--dry-run", is_flag=True, help="Only print what would be sent.")
def command(
    run: JobRun,
    archive: Path,
    server: str,
    topics: tuple[str, ...],
    to_topic: str | None,
    semantics: str,
    given: tuple[str, ...],
    name: str,
    dry_run: bool,
) -> Outcome:
    """Send the messages of an archive to a broker.

    Each batch of the archive is one commit. Started again, the job sends everything again, and the broker publishes
    what it lacks. Queues keep their order. A missing topic is created with as many queues as the archive has of it.
    """
    source = ArchiveDirectory(archive.absolute())
    source.existing()
    options = {**pairs_of(given, "--option"), "nameServer": server, "semantics": semantics}
    if to_topic is not None:
        options["topic"] = to_topic
    try:
        parsed = parse_sink_options(options, streaming=False)
    except OptionError as error:
        raise ArgumentError(_ARGUMENTS.get(error.option, error.option), error.reason) from None
    known = {file.topic for file in source.files()}
    for topic in topics:
        if topic not in known:
            raise ArgumentError(
                "--topic", f"{topic!r} is not in {source.root}; it has {', '.join(sorted(known)) or 'none'}"
            )
    if not dry_run:
        with Admin(server, tls=parsed.tls, credentials=credentials_for(parsed.user)) as admin:
            # Fails at once without a broker; the sink would retry many times.
            needed = _queues_of(run, source, topics, to_topic)
            _prepare_topics(admin, needed, to_topic, check=not parsed.maps_queues)
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
            frame = read_files(run.spark, source, [ArchiveFile(**entry) for entry in files])
            with run.progress(f"batch {manifest['batch']}"):
                in_order(run, frame).write.format("reput").options(**batch).mode("append").save()
        run.note(f"batch {manifest['batch']}: {counted(rows, 'message')} {'would be ' if dry_run else ''}sent")
        sent += rows
        batches += 1
    return Outcome(
        {"archive": str(source.root), "server": server, "batches": batches, "rows": sent, "dry_run": dry_run}
    )


def _queues_of(run: JobRun, source: ArchiveDirectory, topics: tuple[str, ...], to_topic: str | None) -> dict[str, int]:
    from pyspark.sql import functions as f

    highest = read_archive(run.spark, source.root).groupBy("topic").agg(f.max("queueId").alias("queue"))
    needed: dict[str, int] = {}
    for row in highest.collect():
        if not topics or row["topic"] in topics:
            name = to_topic or row["topic"]
            needed[name] = max(needed.get(name, 1), row["queue"] + 1)
    return needed


def _prepare_topics(admin: Admin, needed: Mapping[str, int], to_topic: str | None, *, check: bool) -> None:
    """Check that the existing topics have enough queues, if asked to, then create the missing ones."""
    there = set(admin.list_topics())
    for topic, queues in needed.items():
        if check and topic in there and (found := admin.topic_config(topic).write_queue_nums) < queues:
            raise ArgumentError(
                "--server" if to_topic is None else "--to-topic",
                f"topic {topic!r} there has {counted(found, 'queue')}, but the archive has {queues} of it; "
                f"first: reput topic alter {topic} --queues {queues}, or give --option queueMapping=modulo",
            )
    for topic, queues in needed.items():
        if topic not in there:
            admin.create_topic(topic, queues=queues)


def in_order(run: JobRun, frame: DataFrame) -> DataFrame:
    """Return the columns for the sink, each queue in one task and in order."""
    by = ("topic", "brokerName", "queueId")
    ordered = frame.repartition(run.parallelism, *by).sortWithinPartitions(*by, "queueOffset")
    return ordered.select(*_COLUMNS)


def _key(manifest: dict[str, Any], topics: tuple[str, ...], to_topic: str | None, name: str) -> str:
    text = json.dumps([manifest, sorted(topics), to_topic, name], sort_keys=True)
    return f"replay-{manifest['batch']}-{hashlib.sha256(text.encode()).hexdigest()}"


if __name__ == "__main__":
    main("replay")
