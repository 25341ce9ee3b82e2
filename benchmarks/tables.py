"""Tables of measurements, and the limit from which on a machine counts as noisy."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

NOISY_SPREAD = 0.2
"""Range of figures over rounds, as a share of their median, from which on they are marked as noisy."""


def spread_of(figures: Sequence[float]) -> float:
    """Return the range of figures of equal runs, as a share of their median; 0 without figures."""
    middle = statistics.median(figures)
    return (max(figures) - min(figures)) / middle if middle else 0.0


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table; the first row is its head, the first column is left-aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "| " + " | ".join(cells) + " |"

    rule = "|" + "|".join("-" * (width + 1) + ("-" if not number else ":") for number, width in enumerate(widths)) + "|"
    return [line(rows[0]), rule, *(line(row) for row in rows[1:])]


def figure(value: float) -> str:
    """Return a figure with a readable number of digits."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.3g}"
