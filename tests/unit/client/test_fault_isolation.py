"""Which brokers a producer leaves out, and for how long."""

from __future__ import annotations

import pytest

from reput_client.produce.queue_selector import FaultIsolation
from support.waiting import FakeSeconds


@pytest.fixture
def clock() -> FakeSeconds:
    return FakeSeconds()


@pytest.fixture
def faults(clock: FakeSeconds) -> FaultIsolation:
    return FaultIsolation(clock)


@pytest.mark.parametrize(
    ("latency_s", "left_out_s"),
    [(0.0, 0.0), (0.549, 0.0), (0.55, 2.0), (1.8, 5.0), (3.0, 6.0), (5.0, 10.0), (15.0, 30.0), (99.0, 30.0)],
)
def test_a_slow_broker_is_left_out_by_rocketmqs_table(
    faults: FaultIsolation, clock: FakeSeconds, latency_s: float, left_out_s: float
) -> None:
    faults.answered("a", latency_s)
    if left_out_s:
        clock.now += left_out_s - 0.01
        assert faults.is_left_out("a")
        clock.now += 0.02
    assert not faults.is_left_out("a")
    assert not faults.is_left_out("b")


def test_a_failing_broker_is_left_out_twice_as_long_each_time(faults: FaultIsolation, clock: FakeSeconds) -> None:
    for seconds in (0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0):
        faults.failed("a")
        faults.failed("a")  # of the same moment: counts once
        clock.now += seconds - 0.01
        assert faults.is_left_out("a")
        clock.now += 0.02
        assert not faults.is_left_out("a")
        faults.chosen("a")
    faults.answered("a")
    faults.failed("a")
    clock.now += 0.51
    assert not faults.is_left_out("a"), "a stored message ends the row"


def test_one_send_tries_a_broker_that_was_left_out(faults: FaultIsolation, clock: FakeSeconds) -> None:
    faults.failed("a")
    for seconds in (0.5, 1.0):  # the first that tries never reports
        clock.now += seconds
        assert not faults.is_left_out("a")
        faults.chosen("b")
        assert not faults.is_left_out("a")
        faults.chosen("a")
        assert faults.is_left_out("a")
    faults.answered("a")
    assert not faults.is_left_out("a")
