"""Delays between attempts to connect."""

from __future__ import annotations

import pytest

from reput_client.transport.backoff import Backoff


def test_delays_double_up_to_the_limit_and_start_over() -> None:
    backoff = Backoff(0.1, 1.0, uniform=lambda: 0.0)
    assert [backoff.next_delay_s() for _ in range(5)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])
    backoff.reset()
    assert backoff.next_delay_s() == pytest.approx(0.1)


def test_jitter_cuts_a_delay_by_up_to_its_share() -> None:
    assert Backoff(0.1, 1.0, jitter=0.5, uniform=lambda: 1.0).next_delay_s() == pytest.approx(0.05)


def test_a_broker_that_is_down_for_days_overflows_nothing() -> None:
    backoff = Backoff(uniform=lambda: 0.0)
    assert [backoff.next_delay_s() for _ in range(5000)][-1] == 2.0
