"""The job `report`: rates, sizes and top keys of messages, as a table and an HTML page with plots."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reput_pipeline.jobs.command_line import job, main
from reput_pipeline.jobs.messages import Messages, messages_arguments
from reput_pipeline.jobs.outcomes import ArgumentError, Outcome
from reput_pipeline.jobs.page import Page, Series
from reput_pipeline.jobs.run import JobRun
from reput_protocol.printable import counted
from reput_protocol.quantities import Size, size_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = ("topic", "tags", "keys", "body", "storeTimestamp")
"""What `figures_of` needs."""
_TOPIC_COLUMNS = (
    "topic",
    "messages",
    "bytes",
    "messages_per_s",
    "bytes_per_s",
    "size_p50",
    "size_p99",
    "size_max",
)
_SIZES = frozenset(("bytes", "bytes_per_s", "size_p50", "size_p99", "size_max"))
_MINUTE_MS, HOUR_MS, _DAY_MS = 60_000, 3_600_000, 86_400_000
_MONTH_MS = 30 * _DAY_MS
_STEPS = {
    1000: "second",
    10_000: "10 seconds",
    _MINUTE_MS: "minute",
    10 * _MINUTE_MS: "10 minutes",
    HOUR_MS: "hour",
    6 * HOUR_MS: "6 hours",
    _DAY_MS: "day",
    7 * _DAY_MS: "week",
}
"""How much time a bar has, in ms, and its name."""
_TIMES_MAX = 120
_TOPICS_MAX = 7
"""So many of the largest topics are in the chart of all by name."""
_CHARTS_MAX = 100
"""So many of them have charts of their own."""


@job
@messages_arguments
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write an HTML page to this file.",
)
@click.option(
    "--top",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="Number of tags and keys of each topic.",
)
def command(run: JobRun, messages: Messages, html: Path | None, top: int) -> Outcome:
    """Print rates, sizes and top keys of messages by topic, tag and hour of the store time (UTC)."""
    if html is not None and not html.absolute().parent.is_dir():
        raise ArgumentError("--html", f"there is no directory {html.absolute().parent}")
    with run.progress("report") as begin:
        figures = figures_of(messages.frame(run, COLUMNS), top=top, begin=begin)
    run.table(_TOPIC_COLUMNS, [_shown(row, _TOPIC_COLUMNS) for row in figures.topics])
    if figures.keys:
        run.write("")
        run.table(
            ("topic", "key", "messages", "bytes"),
            [_shown(row, ("topic", "name", "messages", "bytes")) for row in figures.keys],
        )
    if html is not None:
        html.write_text(page_of(figures, messages.where).html(), encoding="utf-8")
        run.note(f"the page is {html}")
    return Outcome(
        {
            "source": messages.where,
            "messages": figures.messages,
            "bytes": figures.bytes,
            "topics": figures.topics,
            "tags": figures.tags,
            "hours": figures.hours,
            "keys": figures.keys,
            "html": None if html is None else str(html),
        }
    )


@dataclass(frozen=True)
class Figures:
    """Rows, the largest first; sizes are bytes of bodies, times ms since 1970."""

    topics: list[dict[str, Any]]
    tags: list[dict[str, Any]]
    times: list[dict[str, Any]]
    """Messages by time, from `from_ms` on: for the step of their topic (`step_ms`), or for an hour if that is less."""
    keys: list[dict[str, Any]]
    sizes: list[dict[str, Any]]
    """Messages by size: `from_bytes` is 0 for empty bodies, or the power of two below."""

    @property
    def hours(self) -> list[dict[str, Any]]:
        """Messages and bytes of each topic by hour."""
        found: dict[tuple[str, int], dict[str, Any]] = {}
        for row in self.times:
            hour_ms = row["from_ms"] // HOUR_MS * HOUR_MS
            none = {"topic": row["topic"], "hour_ms": hour_ms, "messages": 0, "bytes": 0}
            hour = found.setdefault((row["topic"], hour_ms), none)
            hour["messages"] += row["messages"]
            hour["bytes"] += row["bytes"]
        return list(found.values())

    @property
    def messages(self) -> int:
        """The number of messages."""
        return sum(row["messages"] for row in self.topics)

    @property
    def bytes(self) -> int:
        """The bytes of all bodies."""
        return sum(row["bytes"] for row in self.topics)


def figures_of(frame: DataFrame, *, top: int, begin: Callable[[str], None] = lambda _step: None) -> Figures:
    """Aggregate messages in one reading.

    Args:
        frame: has `COLUMNS`.
        top: number of tags and keys per topic.
        begin: called with the name of each step.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    small = frame.select(
        "topic",
        "tags",
        "keys",
        f.octet_length("body").alias("size"),
        f.unix_millis("storeTimestamp").alias("at"),
    ).persist(StorageLevel.MEMORY_AND_DISK)
    count, total = f.count("*").alias("messages"), f.coalesce(f.sum("size"), f.lit(0)).alias("bytes")
    largest = Window.partitionBy("topic").orderBy(f.desc("messages"), f.asc("name"))
    try:
        topics = small.groupBy("topic").agg(
            count,
            total,
            f.min("at").alias("first_ms"),
            f.max("at").alias("last_ms"),
            *(
                f.expr(f"percentile_disc({part / 100}) WITHIN GROUP (ORDER BY size)").alias(f"size_p{part}")
                for part in (50, 90, 99)
            ),
            f.max("size").alias("size_max"),
            f.countDistinct("tags").alias("tags"),
        )
        begin("1 of 5, messages")
        of_topics = [_topic(row.asDict()) for row in topics.orderBy(f.desc("messages"), "topic").collect()]
        steps = {row["topic"]: min(step_ms(row["first_ms"], row["last_ms"]), HOUR_MS) for row in of_topics}
        step = f.create_map(*(f.lit(value) for pair in steps.items() for value in pair))
        step = f.element_at(step, f.col("topic")) if steps else f.lit(HOUR_MS)
        times = small.groupBy("topic", (f.floor(f.col("at") / step) * step).alias("from_ms")).agg(
            count, total
        )
        tags = small.groupBy("topic", f.col("tags").alias("name")).agg(count, total)
        split_keys = f.explode(f.split("keys", " "))
        keys = (
            small.where("keys is not null")
            .select("topic", "size", split_keys.alias("name"))
            .where("name != ''")
        )
        keys = keys.groupBy("topic", "name").agg(count, total)
        from_bytes = f.expr("CASE WHEN size > 0 THEN shiftleft(1, length(bin(size)) - 1) ELSE 0 END")
        sizes = small.groupBy("topic", from_bytes.alias("from_bytes")).agg(count)

        def first(rows: DataFrame) -> DataFrame:
            return rows.withColumn("rank", f.row_number().over(largest)).where(f"rank <= {top}").drop("rank")

        begin("2 of 5, times")
        of_times = [row.asDict() for row in times.orderBy("topic", "from_ms").collect()]
        begin("3 of 5, tags")
        of_tags = _rows(first(tags))
        begin("4 of 5, keys")
        of_keys = _rows(first(keys))
        begin("5 of 5, sizes")
        of_sizes = [row.asDict() for row in sizes.orderBy("topic", "from_bytes").collect()]
        return Figures(of_topics, of_tags, of_times, of_keys, of_sizes)
    finally:
        small.unpersist()


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    found = [row.asDict() for row in frame.collect()]
    return sorted(found, key=lambda row: (row["topic"], -row["messages"], row["name"] or ""))


def _topic(row: dict[str, Any]) -> dict[str, Any]:
    span_s = (row["last_ms"] - row["first_ms"]) / 1000
    row["messages_per_s"] = round(row["messages"] / span_s, 3) if span_s else None
    row["bytes_per_s"] = round(row["bytes"] / span_s, 1) if span_s else None
    return row


def page_of(figures: Figures, where: str, title: str = "Messages") -> Page:
    """Return the page for figures."""
    made_at = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%d %H:%M UTC")
    size = size_text(figures.bytes)
    page = Page(title, f"{where}; {figures.messages:,} messages, {size} of bodies; made {made_at}")
    page.table(
        [
            "topic",
            "messages",
            "bytes",
            "per s",
            "bytes per s",
            "median size",
            "99 %",
            "largest",
            "first",
            "last",
        ],
        [
            [*_shown(row, _TOPIC_COLUMNS), _time(row["first_ms"]), _time(row["last_ms"])]
            for row in figures.topics
        ],
    )
    if len(figures.topics) > 1:
        step = step_ms(
            min(row["first_ms"] for row in figures.topics), max(row["last_ms"] for row in figures.topics)
        )
        page.heading(f"all topics: messages by {_step_name(step)}")
        shown = [_by_time(figures.times, [row["topic"]], step) for row in figures.topics[:_TOPICS_MAX]]
        others = [row["topic"] for row in figures.topics[_TOPICS_MAX:]]
        if others:
            shown.append(_by_time(figures.times, others, step, counted(len(others), "other topic")))
        page.times(shown, step / 1000)
    for topic in figures.topics[:_CHARTS_MAX]:
        name = topic["topic"]
        page.heading(name)
        step = step_ms(topic["first_ms"], topic["last_ms"])
        page.heading(f"messages by {_step_name(step)}", 3)
        page.times([_by_time(figures.times, [name], step)], step / 1000)
        page.heading("messages by size of their bodies, from", 3)
        sizes = [row for row in figures.sizes if row["topic"] == name]
        page.bars([(size_text(row["from_bytes"]), row["messages"]) for row in sizes])
        for heading, rows in (("tags", figures.tags), ("keys", figures.keys)):
            mine = [row for row in rows if row["topic"] == name]
            if mine:
                page.heading(f"top {heading}", 3)
                page.table(
                    [heading[:-1], "messages", "bytes"],
                    [_shown(row, ("name", "messages", "bytes")) for row in mine],
                )
    if len(figures.topics) > _CHARTS_MAX:
        page.heading(
            f"{len(figures.topics) - _CHARTS_MAX} smaller topics have no charts; name them with --topic"
        )
    return page


def step_ms(first_ms: int, last_ms: int) -> int:
    """Return how much time each bar of a plot has, so that there are not many more than `_TIMES_MAX`."""
    span_ms = last_ms - first_ms
    for step in _STEPS:
        if span_ms <= step * _TIMES_MAX:
            return step
    return -(-span_ms // (_TIMES_MAX * _MONTH_MS)) * _MONTH_MS


def _step_name(step: int) -> str:
    return _STEPS.get(step, f"{step // _DAY_MS} days")


def _by_time(
    times: list[dict[str, Any]], topics: Sequence[str], step: int, name: str | None = None
) -> Series:
    """Return the messages of topics by time; the name is the topic's if it is one."""
    found: Counter[float] = Counter()
    for row in times:
        if row["topic"] in topics:
            found[row["from_ms"] // step * step / 1000] += row["messages"]
    return Series(name or topics[0], found)


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def _shown(row: Mapping[str, Any], columns: Sequence[str]) -> list[object]:
    """Return a row of a table; bytes as sizes."""
    return [Size(row[name]) if name in _SIZES and row[name] is not None else row[name] for name in columns]


if __name__ == "__main__":
    main("report")
