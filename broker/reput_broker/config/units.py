"""Durations and sizes as people write them: `"500ms"`, `"1h"`, `"4MiB"`, `"1GB"`.

A configuration file must say the unit; a plain number is refused, because whoever reads `flush = 500`
cannot tell milliseconds from seconds. Inside the program a duration is seconds (float) and a size is
bytes (int).
"""

from __future__ import annotations

import re
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

_DURATION_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
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
    """Return the seconds that `text` such as `"500ms"` means.

    Raises:
        ValueError: it is no number with one of the units us, ms, s, m, h, d; the text says what is wrong.
    """
    match = _NUMBER_WITH_UNIT.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f'not a duration: {text!r}; write a number and a unit, such as "500ms", "5s" or "1h"'
        )
    number, unit = match.groups()
    if not unit:
        raise ValueError(f'the unit is missing: write "{number}s" or "{number}ms"')
    if unit not in _DURATION_UNITS_S:
        raise ValueError(f"unknown unit {unit!r}; durations are in us, ms, s, m, h or d")
    return float(number) * _DURATION_UNITS_S[unit]


def parse_size(text: str) -> int:
    """Return the bytes that `text` such as `"4MiB"` (1,048,576 each) or `"1GB"` (10^9) means.

    Raises:
        ValueError: it is no number with one of the units, or not a whole number of bytes.
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
    """Write seconds the way they are configured, in the largest unit that keeps them exact."""
    for unit in ("d", "h", "m", "s", "ms"):
        number = round(seconds / _DURATION_UNITS_S[unit], 6)
        if number >= 1 and number == int(number):
            return f"{int(number)}{unit}"
    return "0s" if seconds == 0 else f"{round(seconds * 1e6)}us"


def format_size(size_b: int) -> str:
    """Write bytes the way they are configured, in the largest binary unit that keeps them exact."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_b >= _SIZE_UNITS_B[unit] and size_b % _SIZE_UNITS_B[unit] == 0:
            return f"{size_b // _SIZE_UNITS_B[unit]}{unit}"
    return f"{size_b}B"


def _to_duration(value: object) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f'the unit is missing: write "{value}s" or "{value}ms"')
    raise ValueError(f'a duration such as "500ms" is needed, not {value!r}')


def _to_size(value: object) -> int:
    if isinstance(value, str):
        return parse_size(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f'a size such as "4MiB" is needed, not {value!r}')


def hours_of_day(text: str) -> frozenset[int]:
    """Return the hours that `text` names: numbers from 0 to 23, separated by semicolons (RocketMQ: deleteWhen).

    Raises:
        ValueError: it names none, or something else.
    """
    parts = [part.strip() for part in text.split(";")]
    if not all(part.isascii() and part.isdigit() and int(part) < 24 for part in parts):
        raise ValueError(f'hours from 00 to 23 are needed, such as "04" or "04;16", not {text!r}')
    return frozenset(map(int, parts))


def _to_hours(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f'hours such as "04" or "04;16" are needed, not {value!r}')
    hours_of_day(value)
    return value


def _to_directories(value: object) -> tuple[Path, ...]:
    if isinstance(value, str):
        value = value.split(",") if value.strip() else []
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, (str, Path)) for item in value):
        raise ValueError(f'directories are needed, such as ["/disk1/log", "/disk2/log"], not {value!r}')
    items = [item.strip() if isinstance(item, str) else item for item in value]
    if "" in items:
        raise ValueError(f"a directory without a name is among {value!r}")
    return tuple(dict.fromkeys(Path(item) for item in items))


class _Unit(Enum):
    SECONDS = "duration"
    BYTES = "size"


Duration = Annotated[float, BeforeValidator(_to_duration), _Unit.SECONDS]
"""A field in seconds, written as `"500ms"`; code may also give a `datetime.timedelta`."""

Size = Annotated[int, BeforeValidator(_to_size), _Unit.BYTES]
"""A field in bytes, written as `"4MiB"`; code may also give an int of bytes, a file may not."""


Directories = Annotated[tuple[Path, ...], BeforeValidator(_to_directories)]
"""Directories, written as a list or, as RocketMQ does, with commas between them; each once."""

HoursOfDay = Annotated[str, BeforeValidator(_to_hours)]
"""Hours of the day, written as `"04;16"`; `hours_of_day` reads them."""


def is_duration(field: FieldInfo) -> bool:
    """Tell whether an option is a Duration."""
    return _Unit.SECONDS in field.metadata


def is_size(field: FieldInfo) -> bool:
    """Tell whether an option is a Size."""
    return _Unit.BYTES in field.metadata
