"""Progress of long commands: on stderr, only on a terminal, and gone at the end."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from io import StringIO

import pytest

from reput_cli.options import Settings
from reput_cli.output import Printer

SETTINGS = Settings("", 5.0, None, color=False, quiet=False, verbosity=0, yes=False)
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
    assert terminal.getvalue() == (
        f"{CLEARED}1,000 messages sent, 500/s{CLEARED}4,000 messages sent, 1,000/s{CLEARED}"
    )


def test_the_time_is_shown_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Printer(SETTINGS).running("producing"):
        deadline = time.monotonic() + 20
        while "producing, 1.0s" not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert terminal.getvalue().startswith(f"{CLEARED}producing, 1.0s")
    assert terminal.getvalue().endswith(CLEARED)


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
