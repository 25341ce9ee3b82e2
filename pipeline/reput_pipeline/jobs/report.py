"""The job `report`: what messages are like, as a table and as an HTML page with plots."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import click

from reput_pipeline.jobs.frame import job, main
from reput_pipeline.jobs.messages import Messages, messages_arguments
from reput_pipeline.jobs.outcomes import ArgumentError, Outcome
from reput_pipeline.jobs.report_figures import COLUMNS, Figures, figures_of
from reput_pipeline.jobs.report_page import Page
from reput_pipeline.jobs.run import JobRun
from reput_pipeline.jobs.tables import table_lines

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


@job
@messages_arguments
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write the page here."
)
@click.option(
    "--top", type=click.IntRange(1, 1000), default=10, show_default=True, help="Tags and keys of a topic."
)
def command(run: JobRun, messages: Messages, html: Path | None, top: int) -> Outcome:
    """Rates, bytes, sizes, and top keys of messages by topic, tag and hour of their store time (UTC)."""
    if html is not None and not html.absolute().parent.is_dir():
        raise ArgumentError("--html", f"there is no directory {html.absolute().parent}")
    with run.progress("report"):
        figures = figures_of(messages.frame(run, COLUMNS), top=top)
    for line in table_lines(
        _TOPIC_COLUMNS, [[row[name] for name in _TOPIC_COLUMNS] for row in figures.topics]
    ):
        run.write(line)
    if figures.keys:
        run.write("")
        for line in table_lines(
            ("topic", "key", "messages", "bytes"),
            [[row["topic"], row["name"], row["messages"], row["bytes"]] for row in figures.keys],
        ):
            run.write(line)
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


def page_of(figures: Figures, where: str, title: str = "Messages") -> Page:
    """Return the page about some figures."""
    made_at = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%d %H:%M UTC")
    page = Page(
        title, f"{where}; {figures.messages:,} messages, {figures.bytes:,} bytes of bodies; made {made_at}"
    )
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
            [row[name] for name in _TOPIC_COLUMNS] + [_time(row["first_ms"]), _time(row["last_ms"])]
            for row in figures.topics
        ],
    )
    for topic in figures.topics:
        name = topic["topic"]
        page.heading(name)
        hours = [row for row in figures.hours if row["topic"] == name]
        page.heading("messages by hour", 3)
        page.bars("messages by hour", _by_hour(hours))
        page.heading("size of bodies, in bytes from", 3)
        sizes = [row for row in figures.sizes if row["topic"] == name]
        page.bars("size of bodies", [(str(2 ** row["power"]), row["messages"]) for row in sizes])
        for heading, rows in (("tags", figures.tags), ("keys", figures.keys)):
            mine = [row for row in rows if row["topic"] == name]
            if mine:
                page.heading(f"top {heading}", 3)
                page.table(
                    [heading[:-1], "messages", "bytes"],
                    [[r["name"], r["messages"], r["bytes"]] for r in mine],
                )
    return page


def _by_hour(hours: list[dict[str, int]]) -> list[tuple[str, float]]:
    """Every hour from the first to the last, those without a message too, unless that would be years of them."""
    if not hours:
        return []
    found = {row["hour_ms"]: row["messages"] for row in hours}
    first, last = min(found), max(found)
    if (last - first) // 3_600_000 > 20_000:
        return [(_time(at), count) for at, count in sorted(found.items())]
    return [(_time(at), found.get(at, 0)) for at in range(first, last + 1, 3_600_000)]


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


if __name__ == "__main__":
    main("report")
