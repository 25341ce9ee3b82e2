"""Progress of long commands: on stderr, only on a terminal, and gone at the end."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from io import StringIO

import pytest

from reput_cli.options import Settings
from reput_cli.output import Printer

SETTINGS = Settings("", 5.0, None, color=False, quiet=False, yes=False)
CLEARED = "\r\x1b[K"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_a_count_is_shown_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    now = iter([100.0, 102.0, 102.1, 104.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    with Printer(SETTINGS).counting("messages sent") as add:
        for count in (1000, 500, 2500):
            add(count)
    assert terminal.getvalue() == (f"{CLEARED}1,000 messages sent, 500/s{CLEARED}4,000 messages sent, 1,000/s{CLEARED}")


def test_the_time_is_shown_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Printer(SETTINGS).running("producing"):
        deadline = time.monotonic() + 20
        while "producing, 1.0s" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert terminal.getvalue().startswith(f"{CLEARED}producing, 1.0s")
    assert terminal.getvalue().endswith(CLEARED)


def test_a_bar_has_the_part_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Printer(SETTINGS).running("producing", lambda: 0.43):
        deadline = time.monotonic() + 20
        while "43%" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert terminal.getvalue().startswith(f"{CLEARED}producing [########............]  43%, 0s")
    assert terminal.getvalue().endswith(CLEARED)


def test_figures_have_their_units(capsys: pytest.CaptureFixture[str]) -> None:
    Printer(replace(SETTINGS, output="table")).fields(
        {
            "messages": 100_000, "messages_per_s": 77_123, "client_min_per_s": 9, "mb_per_s": 79.0, "duration_s": 77.0,
            "p50_us": 1234.5, "size_bytes": 1024, "memory_gib": 7.8, "broker_id": 10_911, "many": True,
        }
    )  # fmt: skip
    assert [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()] == [
        "100,000", "77,123 msg/s", "9 msg/s", "79.0 MB/s", "1m17s", "1,234.5 us", "1.0 KiB", "7.8 GiB", "10911", "yes",
    ]  # fmt: skip


def test_nothing_is_shown_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    quiet = Printer(replace(SETTINGS, quiet=True))
    with quiet.counting("messages") as add, quiet.running("producing"):
        add(1)
    assert terminal.getvalue() == ""
    pipe = StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with Printer(SETTINGS).counting("messages") as add, Printer(SETTINGS).running("producing"):
        add(1)
    assert pipe.getvalue() == ""
