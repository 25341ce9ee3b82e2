"""An HTML page of headings, tables and charts in one file, which loads nothing."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Final

from reput_protocol.quantities import Size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        head = "".join(
            f"<th{_side(number)}>{escape(name)}</th>" for name, number in zip(columns, numbers, strict=True)
        )
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
                axes.legend(
                    bars, names, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, labelcolor=_TEXT
                )

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
