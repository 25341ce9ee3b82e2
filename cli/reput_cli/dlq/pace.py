"""So many messages in a time: what `--rate` says, and keeping to it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import click

_RATE = re.compile(r"(\d+(?:\.\d+)?)/(s|m|h)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_LOOK_S = 0.1


class RateType(click.ParamType[float]):
    """Messages in a time, as `100/s`, `30/m`, `1000/h`; the value is messages per second."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return messages per second."""
        if isinstance(value, float):
            return value
        match = _RATE.fullmatch(str(value))
        if match is None or not float(match[1]):
            self.fail(f"{value!r} is no rate: write 100/s, 30/m or 1000/h", param, ctx)
        return float(match[1]) / _SECONDS[match[2]]


class Pace:
    """Lets messages go evenly, so many a second. Of what a long wait cost, one gap is made up for and no more."""

    def __init__(self, rate: float | None) -> None:
        self._gap_s = 0.0 if rate is None else 1.0 / rate
        self._next_at: float | None = None

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Wait until the next one may go, or it is over."""
        if self._next_at is None:
            self._next_at = time.monotonic()
        while (ahead_s := self._next_at - time.monotonic()) > 0 and not is_over():
            time.sleep(min(ahead_s, _LOOK_S))
        self._next_at = max(self._next_at, time.monotonic() - self._gap_s) + self._gap_s
