"""The job `report`: rates, sizes and top keys of messages, as a table and an HTML page with plots."""

from __future__ import annotations

import io
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from reput_pipeline.jobs.messages import Messages, messages_arguments
from reput_pipeline.jobs.run import ArgumentError, JobRun, Outcome, job, main
from reput_protocol.printable import counted
from reput_protocol.quantities import Size, size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import DataFrame

COLUMNS = ("topic", "tags", "keys", "body", "storeTimestamp")
"""What `figures_of` needs."""
_TOPIC_COLUMNS = ("topic", "messages", "bytes", "messages_per_s", "bytes_per_s", "size_p50", "size_p99", "size_max")
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
_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff;
--text:#57606a;--grid:#d7dbe0;--mark0:#3973ac;--mark1:#c2702e;--mark2:#3f8f5f;--mark3:#a8476a;--mark4:#7a62b8;
--mark5:#8a7a2a;--mark6:#2e8a96;--mark7:#6b7280}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid var(--grid)}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
div.table{overflow-x:auto}
td,th{padding:.15rem .8rem .15rem 0;text-align:left;white-space:nowrap}
td.n,th.n{text-align:right}th{border-bottom:1px solid #98a1ab;font-weight:600}
p.figures{color:var(--text)}svg{display:block;width:100%;height:auto}
@media(prefers-color-scheme:dark){body{background:#14171a;color:#dfe3e8;--text:#98a1ab;--grid:#343a41;--mark0:#6aa5dd;
--mark1:#e09a5c;--mark2:#6cbf8d;--mark3:#d67a9b;--mark4:#a894e0;--mark5:#bfae56;--mark6:#5fbcc8;--mark7:#9aa3ae}}
"""
_MARKS: Final = 8
_WIDTH, _HEIGHT = 9.6, 2.2  # inches of 72 points

# Matplotlib has no names for colours that a style sheet decides: these stand for them until the chart is on the page.
_TEXT, _GRID = "#010201", "#010202"
_PLACEHOLDERS: Final[Mapping[str, str]] = {
    _TEXT: "var(--text)",
    _GRID: "var(--grid)",
    **{f"#02020{number}": f"var(--mark{number})" for number in range(_MARKS)},
}


@job
@messages_arguments
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write an HTML page to this file."
)
@click.option(
    "--top", type=click.IntRange(1, 1000), default=10, show_default=True, help="Number of tags and keys of each topic."
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
        "topic", "tags", "keys", f.octet_length("body").alias("size"), f.unix_millis("storeTimestamp").alias("at")
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
        times = small.groupBy("topic", (f.floor(f.col("at") / step) * step).alias("from_ms")).agg(count, total)
        tags = small.groupBy("topic", f.col("tags").alias("name")).agg(count, total)
        split_keys = f.explode(f.split("keys", " "))
        keys = small.where("keys is not null").select("topic", "size", split_keys.alias("name")).where("name != ''")
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
        ["topic", "messages", "bytes", "per s", "bytes per s", "median size", "99 %", "largest", "first", "last"],
        [[*_shown(row, _TOPIC_COLUMNS), _time(row["first_ms"]), _time(row["last_ms"])] for row in figures.topics],
    )
    if len(figures.topics) > 1:
        step = step_ms(min(row["first_ms"] for row in figures.topics), max(row["last_ms"] for row in figures.topics))
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
                    [heading[:-1], "messages", "bytes"], [_shown(row, ("name", "messages", "bytes")) for row in mine]
                )
    if len(figures.topics) > _CHARTS_MAX:
        page.heading(f"{len(figures.topics) - _CHARTS_MAX} smaller topics have no charts; name them with --topic")
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


def _by_time(times: list[dict[str, Any]], topics: Sequence[str], step: int, name: str | None = None) -> Series:
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


@dataclass(frozen=True)
class Series:
    """Values by the time, in seconds since 1970, at which their interval begins."""

    name: str
    values: Mapping[float, float]


class Page:
    """A page, built part by part."""

    def __init__(self, title: str, subtitle: str) -> None:
        self._title = title
        self._parts = [f"<h1>{escape(title)}</h1>", f'<p class="figures">{escape(subtitle)}</p>']
        self._heading = title

    def heading(self, text: str, level: int = 2) -> None:
        """Add a heading; it also names the chart that follows it."""
        self._heading = text
        self._parts.append(f"<h{level}>{escape(text)}</h{level}>")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Add a table; columns of numbers are right-aligned."""
        numbers = [
            bool(rows) and all(isinstance(row[at], (int, float)) or row[at] is None for row in rows)
            for at in range(len(columns))
        ]
        head = "".join(f"<th{_side(number)}>{escape(name)}</th>" for name, number in zip(columns, numbers, strict=True))
        body = "".join(
            "<tr>"
            + "".join(f"<td{_side(n)}>{_cell(value)}</td>" for value, n in zip(row, numbers, strict=True))
            + "</tr>"
            for row in rows
        )
        self._parts.append(
            f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def bars(self, points: Sequence[tuple[str, float]]) -> None:
        """Add a chart with a bar for each name; at most some dozens are legible."""

        def draw(axes: Axes) -> None:
            axes.bar(range(len(points)), [value for _, value in points], color=_mark(0))
            names = [escape_mathtext(name) for name, _ in points]
            axes.set_xticks(range(len(points)), names, rotation=0 if len(points) <= 12 else 90)
            axes.set_xlim(-0.6, max(len(points), 1) - 0.4)

        self._chart(draw)

    def times(self, series: Sequence[Series], step_s: float) -> None:
        """Add a chart by time (UTC), the series above each other, with a legend if there are several.

        Args:
            series: at most eight; what an interval lacks is 0.
            step_s: the width of an interval.
        """
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        starts = sorted({start for one in series for start in one.values})

        def draw(axes: Axes) -> None:
            below = [0.0] * len(starts)
            places = [datetime.fromtimestamp(start, UTC) for start in starts]
            day_s = 86_400.0
            for number, one in enumerate(series):
                values = [one.values.get(start, 0.0) for start in starts]
                axes.bar(
                    places,  # type: ignore[arg-type]  # dates are taken, too
                    values,
                    width=step_s / day_s * 0.85,
                    bottom=below,
                    align="edge",
                    color=_mark(number),
                )
                below = [low + value for low, value in zip(below, values, strict=True)]
            locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
            if len(series) > 1:
                bars = axes.containers
                names = [escape_mathtext(one.name) for one in series]
                axes.legend(bars, names, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, labelcolor=_TEXT)

        self._chart(draw)

    def _chart(self, draw: Callable[[Axes], None]) -> None:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter, MaxNLocator

        # Text stays text, and equal figures give an equal page.
        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"{len(self._parts)}", "font.size": 8}):
            figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
            axes = figure.subplots()
            draw(axes)
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))
            axes.grid(axis="y", color=_GRID, linewidth=0.8)
            axes.set_axisbelow(True)
            axes.tick_params(colors=_TEXT, length=0)
            axes.xaxis.get_offset_text().set_color(_TEXT)
            for side, spine in axes.spines.items():
                spine.set_visible(side == "bottom")
                spine.set_color(_GRID)
            written = io.StringIO()
            figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
        svg = written.getvalue()
        svg = svg[svg.index("<svg") :]
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        for colour, name in _PLACEHOLDERS.items():
            svg = svg.replace(colour, name)
        label = f'<svg role="img" aria-label="{escape(self._heading)}"'
        self._parts.append(svg.replace("<svg", label, 1))

    def html(self) -> str:
        """Return the page."""
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(self._title)}</title>'
            '<meta name="viewport" content="width=device-width">'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f"<style>{_STYLE}</style></head><body>{''.join(self._parts)}</body></html>\n"
        )


def escape_mathtext(text: str) -> str:
    """Return text of which Matplotlib sets nothing as a formula."""
    return text.replace("$", r"\$")


def _mark(number: int) -> str:
    return f"#02020{number % _MARKS}"


def _side(is_number: bool) -> str:
    return ' class="n"' if is_number else ""


def _cell(value: object) -> str:
    if value is None:
        return "–"  # noqa: RUF001 (a dash)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Size):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\N{THIN SPACE}")
    if isinstance(value, float):
        return f"{value:,.1f}".replace(",", "\N{THIN SPACE}")
    return escape(str(value))


if __name__ == "__main__":
    main("report")
