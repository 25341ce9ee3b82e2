"""Tables on a narrow terminal: headers and numbers stay whole, long names continue in the next line."""

from __future__ import annotations

import pytest

from reput_cli.options import Settings
from reput_cli.output import Printer

COLUMNS = ["queue", "start", "end", "committed", "lag", "lag_age", "inflight", "last_commit"]
TABLE = Settings("", 5.0, "table", color=False, quiet=False, yes=False)


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_offsets_of_ten_digits_fit_next_to_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    offset = 9_876_543_210
    Printer(TABLE).rows(COLUMNS, [(12, offset, offset, offset, 12345, "3m12s", 32, "12.3s ago")])
    head, _, row = (line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert head.split() == [column.upper() for column in COLUMNS]
    assert row.split() == ["12", *[str(offset)] * 3, "12345", "3m12s", "32", "12.3s", "ago"]
    assert max(len(head), len(row)) <= 80


def test_a_long_name_is_folded_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    Printer(TABLE).rows(["topic", "queue", "member"], [("t" * 90, 1, "x" * 30)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["TOPIC", "QUEUE", "MEMBER"]
    text = "".join(lines[2:])
    assert (text.count("t"), text.count("x")) == (90, 30)


def test_a_long_table_looks_as_a_short_one(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(f"topic-{number}", number, "[x]", "\u4e16" if number == 7 else None) for number in range(10)]
    columns = ["topic", "queues", "size", "note"]
    Printer(TABLE).rows(columns, rows)
    short = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    Printer(TABLE).rows(columns, rows * 30)
    long = capsys.readouterr().out.splitlines()
    assert len(long) == 2 + 300
    assert (long[0], long[2:12]) == (short[0], short[2:])
    assert set(long[1]) == {"\u2500"}
    Printer(TABLE).rows(columns, [("t" * 90, 1, "x", None)] * 300)  # has to be folded
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
