"""Tables of text for people: columns of one width each."""

from __future__ import annotations

from collections.abc import Sequence

_CONTROL = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)]}


def table_lines(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table; numbers stand on the right."""
    texts = [[_cell(value) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[at]) for row in texts)]) for at, name in enumerate(columns)]
    right = [
        bool(rows) and all(isinstance(row[at], (int, float)) or row[at] is None for row in rows)
        for at in range(len(columns))
    ]
    lines = []
    for row in [[name.upper() for name in columns], *texts]:
        cells = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    return str(value).translate(_CONTROL)
