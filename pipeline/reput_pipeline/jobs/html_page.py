"""A self-contained HTML page with tables and SVG plots."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid #d7dbe0}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.15rem .8rem .15rem 0;text-align:left;white-space:nowrap}
td.n,th.n{text-align:right}th{border-bottom:1px solid #98a1ab;font-weight:600}
p.figures{color:#57606a}svg{display:block;overflow:visible}svg text{font-size:11px;fill:#57606a}
rect{fill:#3973ac}@media(prefers-color-scheme:dark){body{background:#14171a;color:#dfe3e8}rect{fill:#6aa5dd}}
"""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 860, 150, 60, 24
_BARS_MAX = 400


class Page:
    """A page, built part by part."""

    def __init__(self, title: str, subtitle: str) -> None:
        self._title = title
        self._parts = [f"<h1>{escape(title)}</h1>", f'<p class="figures">{escape(subtitle)}</p>']

    def heading(self, text: str, level: int = 2) -> None:
        """Add a heading."""
        self._parts.append(f"<h{level}>{escape(text)}</h{level}>")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Add a table; columns of numbers are right-aligned."""
        numbers = [
            bool(rows) and all(isinstance(row[at], (int, float)) for row in rows)
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
        self._parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

    def bars(self, label: str, points: Sequence[tuple[str, float]]) -> None:
        """Add a bar plot; many points are summed in groups of neighbours."""
        points = merged(points)
        high = max((value for _, value in points), default=0) or 1
        step = (_WIDTH - _LEFT) / max(len(points), 1)
        bars = []
        for at, (name, value) in enumerate(points):
            size = value / high * (_HEIGHT - 10)
            bars.append(
                f'<rect x="{_LEFT + at * step:.1f}" y="{_HEIGHT - size:.1f}" width="{max(step * 0.85, 0.5):.1f}" '
                f'height="{size:.1f}"><title>{escape(name)}: {_cell(value)}</title></rect>'
            )
        names = [(0, points[0][0], "start"), (1, points[-1][0], "end")] if len(points) > 1 else []
        if len(points) <= 12:
            names = []
            bars += [
                _label(_LEFT + (at + 0.42) * step, name, "middle") for at, (name, _) in enumerate(points)
            ]
        bars += [_label(_LEFT + place * (_WIDTH - _LEFT), name, anchor) for place, name, anchor in names]
        self._parts.append(
            f'<svg width="{_WIDTH}" height="{_HEIGHT + _BOTTOM}" role="img" aria-label="{escape(label)}">'
            f'<text x="{_LEFT - 8}" y="14" text-anchor="end">{_cell(high)}</text>'
            f'<text x="{_LEFT - 8}" y="{_HEIGHT}" text-anchor="end">0</text>{"".join(bars)}</svg>'
        )

    def html(self) -> str:
        """Return the page."""
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(self._title)}</title>'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            f"<style>{_STYLE}</style></head><body>{''.join(self._parts)}</body></html>\n"
        )


def merged(points: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Sum groups of neighbours, to at most `_BARS_MAX` points."""
    if len(points) <= _BARS_MAX:
        return list(points)
    size = -(-len(points) // _BARS_MAX)
    groups = groupby(enumerate(points), key=lambda item: item[0] // size)
    return [
        (members[0][0], sum(value for _, value in members))
        for members in ([point for _, point in group] for _, group in groups)
    ]


def _label(x: float, name: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT + 15}" text-anchor="{anchor}">{escape(name)}</text>'


def _side(is_number: bool) -> str:
    return ' class="n"' if is_number else ""


def _cell(value: object) -> str:
    if value is None:
        return "–"  # noqa: RUF001 (a dash)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\N{THIN SPACE}")
    if isinstance(value, float):
        return f"{value:,.1f}".replace(",", "\N{THIN SPACE}")
    return escape(str(value))
