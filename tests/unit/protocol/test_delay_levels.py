"""Delay levels in RocketMQ's option."""

from __future__ import annotations

import pytest

from reput_protocol.record.delays import DELAY_LEVELS_MS, parse_delay_levels


def test_rocketmqs_own_levels() -> None:
    text = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    assert parse_delay_levels(text) == DELAY_LEVELS_MS


def test_other_levels() -> None:
    assert parse_delay_levels(" 500s  2d ") == (500_000, 172_800_000)


@pytest.mark.parametrize("text", ["", "5", "s", "1s 5x", "0s", "-1s", "1.5s", "1s,5s", "²s"])
def test_invalid_levels(text: str) -> None:
    with pytest.raises(ValueError, match="write a number and s, m, h or d"):
        parse_delay_levels(text)
