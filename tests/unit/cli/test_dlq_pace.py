"""How `reput dlq replay --rate` spaces messages out, by a fake clock."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import click
import pytest

from reput_cli.dlq.replay import Pace, RateType
from support.waiting import FakeSeconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeSeconds:
    clock = FakeSeconds()
    # The package has the command under the name of this module.
    monkeypatch.setattr(
        import_module("reput_cli.dlq.replay"), "time", SimpleNamespace(monotonic=clock, sleep=clock.sleep)
    )
    return clock


def gone(clock: FakeSeconds, pace: Pace, number: int, work_s: float = 0.0) -> list[float]:
    times = []
    for _ in range(number):
        pace.wait(lambda: False)
        times.append(round(clock.now - 1000.0, 6))
        clock.now += work_s
    return times


def test_messages_go_evenly(clock: FakeSeconds) -> None:
    assert gone(clock, Pace(4.0), 5, work_s=0.1) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_a_slow_broker_is_not_made_up_for_with_a_burst(clock: FakeSeconds) -> None:
    pace = Pace(4.0)
    assert gone(clock, pace, 1, work_s=10.0) == [0.0]
    assert gone(clock, pace, 4) == [10.0, 10.0, 10.25, 10.5]


def test_without_a_rate_nothing_waits(clock: FakeSeconds) -> None:
    assert gone(clock, Pace(None), 3) == [0.0, 0.0, 0.0]


def test_an_interruption_ends_the_wait_soon(clock: FakeSeconds) -> None:
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
