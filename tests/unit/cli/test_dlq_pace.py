"""How `reput dlq replay --rate` spaces messages out, by a fake clock."""

from __future__ import annotations

from importlib import import_module

import click
import pytest

from reput_cli.dlq.replay import Pace, RateType


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        # The package has the command under the name of this module.
        monkeypatch.setattr(import_module("reput_cli.dlq.replay"), "time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def gone(clock: Clock, pace: Pace, number: int, work_s: float = 0.0) -> list[float]:
    times = []
    for _ in range(number):
        pace.wait(lambda: False)
        times.append(round(clock.now - 1000.0, 6))
        clock.now += work_s
    return times


def test_messages_go_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert gone(clock, Pace(4.0), 5, work_s=0.1) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_a_slow_broker_is_not_made_up_for_with_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pace = Pace(4.0)
    assert gone(clock, pace, 1, work_s=10.0) == [0.0]
    assert gone(clock, pace, 4) == [10.0, 10.0, 10.25, 10.5]


def test_without_a_rate_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gone(Clock(monkeypatch), Pace(None), 3) == [0.0, 0.0, 0.0]


def test_an_interruption_ends_the_wait_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pace = Pace(0.001)
    pace.wait(lambda: False)
    pace.wait(lambda: clock.now > 1005.0)
    assert clock.now < 1005.2


@pytest.mark.parametrize(("text", "rate"), [("100/s", 100.0), ("30/m", 0.5), ("1.5/s", 1.5), ("7200/h", 2.0)])
def test_rates(text: str, rate: float) -> None:
    assert RateType().convert(text, None, None) == rate


@pytest.mark.parametrize("text", ["100", "0/s", "-1/s", "1/d", "/s", "x"])
def test_an_invalid_rate_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="100/s"):
        RateType().convert(text, None, None)
