"""Durations and sizes as text: `"500ms"`, `"1h"`, `"4MiB"`, `"1GB"`; in programs, seconds (float) and bytes (int).

A number without a unit is rejected, because a reader of `flush = 500` cannot tell milliseconds from seconds; a caller
with a default unit appends it.
"""

from __future__ import annotations

import re

_DURATION_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONG_NAMES = {
    "sec": "s", "second": "s", "seconds": "s", "min": "m", "minute": "m", "minutes": "m",
    "hour": "h", "hours": "h", "day": "d", "days": "d",
}  # fmt: skip
_SIZE_UNITS_B = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_SIZE_UNITS_FOLDED = {unit.lower(): size_b for unit, size_b in _SIZE_UNITS_B.items()}
_NUMBER_WITH_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")


def parse_duration(text: str) -> float:
    """Return the seconds in `text`, such as `"500ms"`.

    Raises:
        ValueError: not a number with one of the units us, ms, s, m, h, d (or `seconds`, `minutes`, ...).
    """
    match = _NUMBER_WITH_UNIT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'not a duration: {text!r}; write a number and a unit, such as "500ms", "5s" or "1h"')
    number, unit = match.groups()
    if not unit:
        raise ValueError(f'the unit is missing: write "{number}s" or "{number}ms"')
    factor = _DURATION_UNITS_S.get(_LONG_NAMES.get(unit, unit))
    if factor is None:
        raise ValueError(f"unknown unit {unit!r}; durations are in us, ms, s, m, h or d")
    return float(number) * factor


def parse_size(text: str) -> int:
    """Return the bytes in `text`, such as `"4MiB"` (1,048,576 each) or `"1GB"` (10^9).

    Raises:
        ValueError: not a number with a known unit, or not a whole number of bytes.
    """
    match = _NUMBER_WITH_UNIT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'not a size: {text!r}; write a number and a unit, such as "4MiB" or "1GB"')
    number, unit = match.groups()
    if not unit:
        raise ValueError(f'the unit is missing: write "{number}B", "{number}KiB" or "{number}MiB"')
    factor = _SIZE_UNITS_FOLDED.get(unit.lower())
    if factor is None:
        raise ValueError(f"unknown unit {unit!r}; sizes are in {', '.join(_SIZE_UNITS_B)}")
    size_b = float(number) * factor if "." in number else int(number) * factor
    if size_b != int(size_b):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size_b)


def format_duration(seconds: float) -> str:
    """Format seconds for `parse_duration`, in the largest exact unit."""
    for unit in ("d", "h", "m", "s", "ms"):
        number = round(seconds / _DURATION_UNITS_S[unit], 6)
        if number >= 1 and number == int(number):
            return f"{int(number)}{unit}"
    return "0s" if seconds == 0 else f"{round(seconds * 1e6)}us"


def format_size(size_b: int) -> str:
    """Format bytes for `parse_size`, in the largest exact binary unit."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_b >= _SIZE_UNITS_B[unit] and size_b % _SIZE_UNITS_B[unit] == 0:
            return f"{size_b // _SIZE_UNITS_B[unit]}{unit}"
    return f"{size_b}B"


class Size(int):
    """A number of bytes that people read as such, in a table: `512 B`, `1.2 GiB`."""

    def __str__(self) -> str:
        return size_text(self)


def size_text(size_b: int) -> str:
    """Return a number of bytes as text: `512 B`, `1.2 GiB`."""
    value, units = float(size_b), iter(("KiB", "MiB", "GiB", "TiB", "PiB"))
    unit = "B"
    while abs(value) >= 1024 and (larger := next(units, None)) is not None:
        value, unit = value / 1024, larger
    return f"{int(size_b)} B" if unit == "B" else f"{value:.1f} {unit}"
