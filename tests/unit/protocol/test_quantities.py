"""Durations and sizes as text, both ways."""

import pytest

from reput_protocol.quantities import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("5s", 5.0),
        ("1h", 3600.0),
        ("15 minutes", 900.0),
        ("1.5 m", 90.0),
        ("2d", 172800.0),
        ("250us", 0.00025),
        ("0s", 0.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size_b"),
    [("4MiB", 4 << 20), ("1GB", 10**9), ("64KiB", 65536), ("1gib", 1 << 30), ("1.5MiB", 3 << 19), ("7B", 7)],
)
def test_sizes(text: str, size_b: int) -> None:
    assert parse_size(text) == size_b
    assert parse_size(format_size(size_b)) == size_b


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("500", 'unit is missing: write "500s" or "500ms"'),
        ("5 weeks", "unknown unit 'weeks'"),
        ("-5s", "not a duration"),
        ("", "not a duration"),
        ("5MS", "unknown unit"),
    ],
)
def test_durations_that_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("4096", 'unit is missing: write "4096B", "4096KiB" or "4096MiB"'),
        ("4 Mbit", "unknown unit 'Mbit'"),
        ("0.3B", "not a whole number of bytes"),
        ("big", "not a size"),
    ],
)
def test_sizes_that_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_size(text)


def test_formats_use_the_largest_exact_unit() -> None:
    assert format_duration(90.0) == "90s"
    assert format_duration(3600.0) == "1h"
    assert format_duration(0.25) == "250ms"
    assert format_size(16 << 20) == "16MiB"
    assert format_size(1025) == "1025B"
