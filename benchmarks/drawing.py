"""Plots as SVG, drawn by hand so that nothing need be installed: bars side by side, and curves over powers of ten."""

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
    """Write a bar for each label and value; the one labelled `ours` stands out."""
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


def write_curve(path: Path, title: str, points: Sequence[tuple[float, float, str]], x_title: str) -> None:
    """Write a curve through points (x, y, how x is called); x runs by powers, y from 0."""
    left, top, bottom = 80, 44, 44
    width, height = left + _WIDE + 60, top + _HIGH + bottom
    most = max(y for _, y, _ in points) * 1.1 or 1.0
    low, high = math.log(points[0][0]), math.log(points[-1][0])
    parts = _start(width, height, title)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log(x) - low) / (high - low) if high > low else 0.5
        return left + 10 + across * (_WIDE - 20), top + _HIGH * (1 - y / most)

    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        _, line = place(points[0][0], most * share)
        parts += [
            f'<line x1="{left}" x2="{left + _WIDE}" y1="{line:.1f}" y2="{line:.1f}" stroke="{_GRID}"/>',
            f'<text x="{left - 8}" y="{line + 4:.1f}" text-anchor="end" fill="{_INK}">{most * share:,.3g}</text>',
        ]
    places = [place(x, y) for x, y, _ in points]
    line_of = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts.append(f'<polyline points="{line_of}" fill="none" stroke="{_OURS}" stroke-width="2"/>')
    for (x, y), (_, value, name) in zip(places, points, strict=True):
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_OURS}"/>',
            f'<text x="{x:.1f}" y="{y - 10:.1f}" text-anchor="middle" fill="{_INK}">{value:,.3g}</text>',
            f'<text x="{x:.1f}" y="{top + _HIGH + 18}" text-anchor="middle" fill="{_INK}">{escape(name)}</text>',
        ]
    middle = left + _WIDE / 2
    parts.append(
        f'<text x="{middle}" y="{height - 6}" text-anchor="middle" fill="{_INK}">{escape(x_title)}</text>'
    )
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")
