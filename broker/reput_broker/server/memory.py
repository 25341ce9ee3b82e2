"""The bytes that the broker holds for its clients, and which connection is closed when they are too many; how fast a
frame arrives, and the permit to receive a large one.

Counted are unfinished frames, requests in flight and answers that the client has not read, from allocation until they
are freed; not held pulls (`put/held_pulls.py`). Four rules keep the bytes within `limits.buffer_total` at the
expense of the connections that hold the most:

1. A connection has a share: an eighth of what is free, at least 64 KiB, at most `limits.connection_buffer`.
2. A connection whose answers exceed its share is not read until the client has read them. A pull or fetch is answered
  with at most a share (but at least one message).
3. Connections whose unfinished frames exceed their share receive one at a time, with a permit. A connection takes it
  when further bytes have arrived, and keeps it only while data arrives fast. If more than half of
  `limits.buffer_total` is held then, connections are closed that hold much and have made no progress for a second.
4. If more than `limits.buffer_total` is held nevertheless, connections are closed, first those that hold the most for
  the longest time without progress. A connection with more than `limits.connection_buffer` and one frame of unread
  answers is closed as well.

Under access control, connections that have sent no request of a user share a sixteenth of `limits.buffer_total`, at
least two of the largest frames that they may send, by the same rules, so that they cannot slow down the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import trio

from reput_broker.config.sections import LimitsConfig
from reput_broker.observe.counters import Counters
from reput_broker.server.transport import LEAST_BYTES_A_S, Transport

SHARE_MIN: Final = 1 << 16
"""Bytes that a connection may hold regardless of the others."""
_SHARE_OF_FREE: Final = 8
# The part of the limit that is freed at a time: the search takes time, and freeing all would close too many.
_FREED_AT_ONCE: Final = 16
_STUCK_S: Final = 1.0
_LOOK_S: Final = 0.25  # a search over all connections takes time
_MOMENT_S: Final = 0.01  # among connections that make progress, the one that holds the most is closed


class Holder(Protocol):
    """A connection, as `HeldBytes` uses it."""

    def stuck_s(self, now: float) -> float:
        """Return for how many seconds an unfinished frame has arrived too slowly, or the client has read no answer.

        Time in which the broker did not read does not count.
        """

    def give_way(self, detail: str) -> None:
        """Close the connection immediately and give back all bytes held for it."""


class HeldBytes:
    """The bytes held for each connection and for all of them; see the module for the rules.

    Args:
        part: which part of `limits.buffer_total` these connections may hold: 1 is all of it, 16 a sixteenth.
        least: bytes that they may hold if that part is less, up to a fifth of `limits.buffer_total`.

    Attributes:
        permit: held by the connection that may receive a frame beyond its share.
        total: bytes held now.
    """

    def __init__(self, counters: Counters, limits: LimitsConfig, part: int = 1, least: int = 0) -> None:
        self.permit = trio.Semaphore(1)
        self.total = 0
        self._kinds = counters.buffered_bytes
        self._limits = limits
        self._part = part
        self._least = least
        self._held: dict[Holder, int] = {}
        self._looked_at = -_LOOK_S

    @property
    def _limit(self) -> int:
        total = self._limits.buffer_total
        return max(total // self._part, min(self._least, total // 5))

    @property
    def share(self) -> int:
        """Bytes that a connection may hold without waiting."""
        free = self._limit - self.total
        return max(SHARE_MIN, min(self._limits.connection_buffer, free // _SHARE_OF_FREE))

    def held_for(self, holder: Holder) -> int:
        """Return the bytes held for one connection."""
        return self._held.get(holder, 0)

    def change(self, holder: Holder, kind: str, difference: int) -> None:
        """Add to the bytes held for a connection, of kind `read` or `write`.

        If all connections together then hold too much, some are closed before this returns, possibly this one.
        """
        held = self._held.get(holder, 0) + difference
        self._kinds[kind] += difference
        self.total += difference
        if held:
            self._held[holder] = held
        else:
            self._held.pop(holder, None)
        limit = self._limit
        if difference > 0 and self.total > limit:
            why = f"at most {limit} are for all connections"
            self._make_room(self._held, limit - limit // _FREED_AT_ONCE, why)

    def hand_over(self, holder: Holder, other: HeldBytes) -> None:
        """Count what is held for a connection in `other` from now on."""
        held = self._held.pop(holder, 0)
        self.total -= held
        other.total += held
        if held:
            other._held[holder] = held

    def make_room_for_large_frames(self) -> None:
        """If much is held, close stuck connections, which delay those that wait for the permit."""
        limit, now = self._limit, trio.current_time()
        half = limit // 2
        if self.total <= half or now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        stuck = [holder for holder, held in self._held.items() if held > SHARE_MIN and holder.stuck_s(now) > _STUCK_S]
        enough = max(half, self.total - limit // _FREED_AT_ONCE)
        self._make_room(stuck, enough, "it makes progress slower than others that wait could")

    def _make_room(self, holders: Iterable[Holder], enough: int, why: str) -> None:
        """Close the connections that hold the most until no more than `enough` is held."""
        now = trio.current_time()
        by_cost = sorted(
            holders, key=lambda holder: self._held[holder] * (holder.stuck_s(now) + _MOMENT_S), reverse=True
        )
        for holder in by_cost:
            if self.total <= enough:
                return
            holder.give_way(f"{self._held[holder]} of {self.total} bytes are held for it; {why}")


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
