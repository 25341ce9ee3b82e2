"""How measurements are shown: aligned tables, and when the machine was too noisy for a close look."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

NOISY_SPREAD = 0.2
"""A spread of figures over rounds, as a share of their median, from which on the machine was too noisy."""


def spread_of(figures: Sequence[float]) -> float:
    """Return how far figures of equal runs lie apart, as a share of their median; 0 where nothing was measured."""
    middle = statistics.median(figures)
    return (max(figures) - min(figures)) / middle if middle else 0.0


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table, the first row its head; the first column is flush left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "| " + " | ".join(cells) + " |"

    rule = (
        "|"
        + "|".join("-" * (width + 1) + ("-" if not number else ":") for number, width in enumerate(widths))
        + "|"
    )
    return [line(rows[0]), rule, *(line(row) for row in rows[1:])]


def figure(value: float) -> str:
    """Return a figure with as many digits as anybody reads."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.3g}"
