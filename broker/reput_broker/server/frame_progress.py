"""How fast a frame arrives, by which slow senders are found."""

from __future__ import annotations

from typing import Final

import trio

from reput_broker.server.outbox import LEAST_BYTES_A_S

_BRISK_BYTES_A_S: Final = 1 << 20
"""A slower sender holds memory that other connections could use better."""


class FrameProgress:
    """How fast an unfinished frame arrives, without the time in which the broker does not read.

    It is compared with two rates. A fast part of a frame does not make up for a slow one.
    """

    __slots__ = ("_brisk_at", "_least_at", "_paused_at")

    def __init__(self) -> None:
        # Until when the peer has sent at each rate, on trio's clock.
        self._least_at = self._brisk_at = 0.0
        self._paused_at: float | None = None

    @property
    def is_paused(self) -> bool:
        """Whether the broker does not read."""
        return self._paused_at is not None

    def begin(self, now: float) -> None:
        """Note that a frame begins."""
        self._least_at = self._brisk_at = now
        self._paused_at = None

    def received(self, size: int, now: float) -> None:
        """Note that bytes have arrived."""
        self._least_at = min(now, self._least_at + size / LEAST_BYTES_A_S)
        self._brisk_at = min(now, self._brisk_at + size / _BRISK_BYTES_A_S)

    def pause(self, now: float) -> None:
        """Note that the broker does not read until `resume`, or until a frame begins."""
        self._paused_at = now

    def resume(self) -> None:
        """Note that the broker reads again."""
        if self._paused_at is not None:
            paused_s = trio.current_time() - self._paused_at
            self._least_at += paused_s
            self._brisk_at += paused_s
            self._paused_at = None

    def slow_s(self, now: float) -> float:
        """Return for how long the peer has sent slower than the least rate."""
        return self._until(now) - self._least_at

    def stuck_s(self, now: float) -> float:
        """Return for how long the peer has sent slower than 1 MiB a second."""
        return self._until(now) - self._brisk_at

    def _until(self, now: float) -> float:
        return now if self._paused_at is None else self._paused_at
