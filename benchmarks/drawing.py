"""Plots as SVG without a plotting library: bars, and curves over a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

_BAR = 22
_LEFT = 210
_WIDE = 520
_RIGHT = 110
_HIGH = 260
_INK = "#1d2733"
_OURS = "#0b6e75"
_OTHERS = "#a9b4bd"
_GRID = "#e3e7ea"


def _start(width: int, height: int, title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="22" font-weight="bold" fill="{_INK}">{escape(title)}</text>',
    ]


def write_bars(path: Path, title: str, bars: Sequence[tuple[str, float]], ours: str) -> None:
    """Write a bar for each label and value; the one labelled `ours` is highlighted."""
    height = 44 + len(bars) * (_BAR + 8)
    most = max(value for _, value in bars) or 1.0
    parts = _start(_LEFT + _WIDE + _RIGHT, height, title)
    for number, (label, value) in enumerate(bars):
        top = 36 + number * (_BAR + 8)
        width = max(1.0, value / most * _WIDE)
        colour = _OURS if label == ours else _OTHERS
        parts += [
            f'<text x="{_LEFT - 10}" y="{top + 16}" text-anchor="end" fill="{_INK}">{escape(label)}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR}" rx="2" fill="{colour}"/>',
            f'<text x="{_LEFT + width + 8:.1f}" y="{top + 16}" fill="{_INK}">{value:,.0f}</text>',
        ]
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def write_curves(
    path: Path,
    title: str,
    places: Sequence[tuple[float, str]],
    curves: Sequence[tuple[str, Sequence[float]]],
    x_title: str,
) -> None:
    """Write named curves over the same points (x, and its label); x is logarithmic, y starts at 0."""
    left, top, bottom = 80, 64, 44
    width, height = left + _WIDE + 60, top + _HIGH + bottom
    most = max(max(values) for _, values in curves) * 1.1 or 1.0
    low, high = math.log(places[0][0]), math.log(places[-1][0])
    parts = _start(width, height, title)

    def across(x: float) -> float:
        return left + 10 + ((math.log(x) - low) / (high - low) if high > low else 0.5) * (_WIDE - 20)

    def down(y: float) -> float:
        return top + _HIGH * (1 - y / most)

    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        line = down(most * share)
        parts += [
            f'<line x1="{left}" x2="{left + _WIDE}" y1="{line:.1f}" y2="{line:.1f}" stroke="{_GRID}"/>',
            f'<text x="{left - 8}" y="{line + 4:.1f}" text-anchor="end" fill="{_INK}">{most * share:,.3g}</text>',
        ]
    for number, (label, values) in enumerate(curves):
        colour = _OURS if number == 0 else _OTHERS
        points = [(across(x), down(y)) for (x, _), y in zip(places, values, strict=True)]
        line_of = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts += [
            f'<polyline points="{line_of}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<text x="{left + 110 * number}" y="44" fill="{colour}">{escape(label)}</text>',
        ]
        for (x, y), value in zip(points, values, strict=True):
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>',
                f'<text x="{x:.1f}" y="{y - 10:.1f}" text-anchor="middle" font-size="11" fill="{_INK}">'
                f"{value:,.3g}</text>",
            ]
    for x, name in places:
        parts.append(
            f'<text x="{across(x):.1f}" y="{top + _HIGH + 18}" text-anchor="middle" fill="{_INK}">{escape(name)}</text>'
        )
    middle = left + _WIDE / 2
    parts.append(f'<text x="{middle}" y="{height - 6}" text-anchor="middle" fill="{_INK}">{escape(x_title)}</text>')
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")
