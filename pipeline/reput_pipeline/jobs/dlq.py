"""The job `dlq`: group dead letters by origin and reason, and have the broker that has them replay selected ones.

Dead letters are in the topic `%DLQ%GROUP`. The origin is RETRY_TOPIC, or DLQ_ORIGIN_TOPIC from RocketMQ's clients; the
reason is DLQ_REASON, which RocketMQ does not write; the attempts are RECONSUMETIMES.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final

import click

from reput_client.blocking import Admin
from reput_pipeline.jobs.messages import APPLICATION_TOPICS, Messages, messages_arguments
from reput_pipeline.jobs.run import ArgumentError, JobFailed, JobRun, Outcome, failure_of, job, main
from reput_pipeline.source.options import SourceOptions, parse_source_options
from reput_pipeline.spark.option_reader import credentials_for
from reput_protocol.commands.dead_letters import LetterPlace, ReplayOutcome
from reput_protocol.exit_codes import ExitCode
from reput_protocol.names import DLQ_PREFIX
from reput_protocol.printable import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_COLUMNS = (
    "topic", "queueOffset", "brokerName", "physicalOffset", "properties", "storeTimestamp", "reconsumeTimes",
)  # fmt: skip
_AT_ONCE: Final = 100
_BATCH_S: Final = 0.25
"""Seconds of sending per request, so that a low rate is kept evenly."""
_NOTED_EACH: Final = 1000
_DONE: Final = (ReplayOutcome.SENT, ReplayOutcome.SENT_BEFORE)
_SHOWN = ("group", "origin", "reason", "attempts", "messages", "first_ms", "last_ms")


@job
@messages_arguments
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="Dead letters of this group; repeatable.")
@click.option("--origin", metavar="TOPIC", help="Only those from this topic.")
@click.option("--reason", metavar="TEXT", help="Only those whose reason contains this text.")
@click.option("--id", "ids", multiple=True, metavar="ID", help="Only the one with this unique id; repeatable.")
@click.option(
    "--replay",
    is_flag=True,
    help="Send the selected ones back to their origins, each once; they also stay in the dead-letter topic.",
)
@click.option(
    "--to-server",
    metavar="HOST:PORT",
    help="The broker that has them, and sends them: of the directory or archive.  [default: --server]",
)
@click.option("--to-topic", metavar="TOPIC", help="Send them to this topic instead.")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), default=100.0, show_default=True, help="Messages per second."
)
@click.option("--dry-run", is_flag=True, help="With --replay: only print what would be sent.")
@click.option("--yes", is_flag=True, help="With --replay: send them; messages that were sent cannot be taken back.")
def command(
    run: JobRun,
    messages: Messages,
    groups: tuple[str, ...],
    origin: str | None,
    reason: str | None,
    ids: tuple[str, ...],
    replay: bool,
    to_server: str | None,
    to_topic: str | None,
    rate: float,
    dry_run: bool,
    yes: bool,
) -> Outcome:
    """Group dead letters by origin, reason and attempts; with --replay, send the selected ones back."""
    server = to_server or messages.options.name_servers
    if replay and server is None and not dry_run:
        raise ArgumentError("--to-server", "is missing; name the broker whose dead letters these are")
    for name, value in (("--to-server", to_server), ("--to-topic", to_topic)):
        if value is not None and not replay:
            raise ArgumentError(name, "needs --replay")
    if not all(groups):
        raise ArgumentError("--group", "is empty")
    if dry_run and not replay:
        raise ArgumentError("--dry-run", "needs --replay; without it nothing is sent anyway")
    letters = chosen(_letters(run, messages, groups), origin, reason, ids)
    with run.progress("dlq"):
        rows = [row.asDict() for row in grouped(letters).collect()]
    run.table(_SHOWN, [[row[name] for name in _SHOWN] for row in rows])
    total = sum(row["messages"] for row in rows)
    figures: dict[str, Any] = {"source": messages.where, "messages": total, "groups": rows}
    if not replay:
        return Outcome(figures)
    without = sum(row["messages"] for row in rows if row["origin"] is None)
    if without and to_topic is None:
        raise ArgumentError("--to-topic", f"is missing; {without} of the selected messages have no origin topic")
    if dry_run:
        return Outcome({**figures, "would_send": total})
    if not yes:
        raise ArgumentError("--yes", f"is missing; it has up to {counted(total, 'dead letter')} sent")
    assert server is not None, "was checked"
    done = _replay(run, letters, server, to_topic, rate, messages.options)
    sent, before = done[ReplayOutcome.SENT], done[ReplayOutcome.SENT_BEFORE]
    left = {outcome.lower(): number for outcome, number in done.items() if outcome not in _DONE}
    code = ExitCode.DONE if sent + before == total else ExitCode.PARTIAL
    return Outcome({**figures, "sent": sent, "sent_before": before, "left": left}, code)


def _letters(run: JobRun, messages: Messages, groups: tuple[str, ...]) -> DataFrame:
    """Return dead letters with the columns group, origin, reason and attempts."""
    from pyspark.sql import functions as f

    source = dict(messages.source)
    if groups:
        for name in ("subscribe", "subscribePattern", "assign"):
            if name in source and source[name] != APPLICATION_TOPICS:
                raise ArgumentError("--group", "contradicts the arguments that name topics")
            source.pop(name, None)
        source["subscribe"] = ",".join(f"{DLQ_PREFIX}{group}" for group in groups)
    elif source.get("subscribePattern") == APPLICATION_TOPICS:
        source["subscribePattern"] = f"{DLQ_PREFIX}.+"
    place = {} if messages.archive is None else {"path": str(messages.archive)}
    options = parse_source_options({**source, **place}, streaming=False)
    frame = replace(messages, source=source, options=options).frame(run, _COLUMNS)
    of = "element_at(properties, '{}')"
    return (
        frame.withColumn("group", f.expr(f"if(startswith(topic, '{DLQ_PREFIX}'), substr(topic, 6), topic)"))
        .withColumn("origin", f.expr(f"coalesce({of.format('RETRY_TOPIC')}, {of.format('DLQ_ORIGIN_TOPIC')})"))
        .withColumn("reason", f.expr(of.format("DLQ_REASON")))
        .withColumnRenamed("reconsumeTimes", "attempts")
    )


def chosen(letters: DataFrame, origin: str | None, reason: str | None, ids: tuple[str, ...]) -> DataFrame:
    """Return the letters that meet all conditions."""
    from pyspark.sql import functions as f

    if origin is not None:
        letters = letters.where(f.col("origin") == origin)
    if reason is not None:
        letters = letters.where(f.contains("reason", f.lit(reason)))
    if ids:
        letters = letters.where(f.element_at("properties", "UNIQ_KEY").isin(list(ids)))
    return letters


def grouped(letters: DataFrame) -> DataFrame:
    """Count letters by group, origin, reason and attempts."""
    from pyspark.sql import functions as f

    return (
        letters.groupBy("group", "origin", "reason", "attempts")
        .agg(
            f.count("*").alias("messages"),
            f.unix_millis(f.min("storeTimestamp")).alias("first_ms"),
            f.unix_millis(f.max("storeTimestamp")).alias("last_ms"),
        )
        .orderBy(f.desc("messages"), "group", "origin", "reason", "attempts")
    )


def _replay(
    run: JobRun, letters: DataFrame, server: str, to_topic: str | None, rate: float, options: SourceOptions
) -> Counter[ReplayOutcome]:
    """Have the brokers replay letters at a rate per second; return how many had each outcome."""
    done: Counter[ReplayOutcome] = Counter()
    sent = noted = 0
    started_at = time.monotonic()
    ordered = letters.select("group", "brokerName", "queueOffset", "physicalOffset", "storeTimestamp").orderBy(
        "group", "brokerName", "storeTimestamp", "queueOffset"
    )
    try:
        with Admin(server, tls=options.tls, credentials=credentials_for(options.user)) as admin:
            for (group, broker_name), places in _batches(ordered.toLocalIterator(), rate):
                time.sleep(max(0.0, started_at + sent / rate - time.monotonic()))
                found = admin.replay_dead_letters(group, places, broker_name=broker_name, target=to_topic)
                done.update(letter.outcome for letter in found)
                sent = done[ReplayOutcome.SENT]
                if sent - noted >= _NOTED_EACH:
                    noted = sent
                    run.note(f"{sent} sent")
    except (Exception, KeyboardInterrupt) as error:
        if not sent:
            raise
        failure = failure_of(error)
        raise JobFailed(
            f"{failure.text}; {sent} were sent before, and a new run does not send them again", code=failure.code
        ) from None
    return done


def _batches(rows: Iterator[Row], rate: float) -> Iterator[tuple[tuple[str, str | None], list[LetterPlace]]]:
    """Yield the places of letters for one request each, with their group and broker (None: of a directory)."""
    size = max(1, min(_AT_ONCE, int(rate * _BATCH_S)))
    for key, of_broker in groupby(rows, key=lambda row: (row["group"], row["brokerName"])):
        while some := [*islice(of_broker, size)]:
            yield key, [LetterPlace(row["queueOffset"], row["physicalOffset"]) for row in some]


if __name__ == "__main__":
    main("dlq")
