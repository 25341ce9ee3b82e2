"""Frames that arrive slowly or are large: how fast one arrives, and the permit to receive a large one."""

from __future__ import annotations

from typing import Final

import trio

from reput_broker.server.memory import HeldBytes
from reput_broker.server.outbox import LEAST_BYTES_A_S
from reput_broker.server.transport import Transport

_BYTES_A_S: Final = 1 << 22
_PERMIT_S: Final = 0.25
_PAUSE_S: Final = 0.005


class FramePermit:
    """A connection's permit to receive a frame beyond its share of the memory. One connection has it at a time.

    It lasts as long as the received bytes take at a rate of 4 MiB a second, at most 0.25 s, and ends at a pause of
    5 ms. It starts with what has already arrived, so a slow peer has it for a moment only.

    Attributes:
        is_held: whether the connection has it.
        received_bytes: counted since it was acquired.
    """

    __slots__ = ("_began_at", "_memory", "is_held", "received_bytes")

    def __init__(self) -> None:
        self.is_held = False
        self.received_bytes = 0
        self._began_at = 0.0
        self._memory: HeldBytes | None = None

    async def acquire(self, memory: HeldBytes) -> None:
        """Wait for the permit of `memory`."""
        memory.make_room_for_large_frames()
        await memory.permit.acquire()
        self._memory = memory
        self.is_held = True
        self.received_bytes = 0
        self._began_at = trio.current_time()

    async def receive(self, transport: Transport) -> bytes | None:
        """Receive with the permit; None if it has ended before anything came."""
        permit_s = min(_PERMIT_S, self.received_bytes / _BYTES_A_S)
        with trio.move_on_at(min(self._began_at + permit_s, trio.current_time() + _PAUSE_S)):
            return await transport.receive()
        self.release()
        return None

    def release(self) -> None:
        """Give the permit back, if the connection has it."""
        if self.is_held and self._memory is not None:
            self.is_held = False
            self._memory.permit.release()


_BRISK_BYTES_A_S: Final = 1 << 20
"""A slower sender holds memory that other connections could use better."""


class FrameProgress:
    """How fast an unfinished frame arrives, without the time in which the broker does not read: it finds slow senders.

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
