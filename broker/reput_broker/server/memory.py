"""How many bytes the broker holds for its clients, and which client gives way when that is too much.

Held are frames that have not come whole, requests that are handled or wait for their answer, and answers that the
client has not taken; pulls that wait for messages count by themselves (`long_polling.py`). They count as they are
allocated, until they are freed. Four rules keep them within `limits.buffer_total`, at the cost of the greediest
connection and of no other:

1. A connection has a share: an eighth of what is free, at least 64 KiB, at most `limits.connection_buffer`. The more is
   held, the smaller the share, so that greedy connections together leave room for modest ones.
2. A connection whose answers exceed its share is not read until the client has taken them, and a pull or fetch is
   answered with no more than a share (but at least one message).
3. A connection whose unfinished frame exceeds its share receives more of it in turns with others. It has its turn once
   more has arrived, and only for as long as that comes fast. Where a connection takes its turn while more than half of
   `limits.buffer_total` is held, connections are closed that hold much and have made no progress for a second.
4. Where more than `limits.buffer_total` is held all the same, connections are closed, first those that hold the most
   for the longest time without progress. So is a connection for which more answers wait than `limits.connection_buffer`
   and one frame.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import trio

from reput_broker.config.sections import LimitsConfig
from reput_broker.observe.counters import Counters

SHARE_MIN: Final = 1 << 16
"""Bytes that a connection may hold however much is held for others."""
_SHARE_OF_FREE: Final = 8
_FREED_AT_ONCE: Final = (
    16  # this part of the limit: looking takes time, and all at once would be filled in a rush
)
_STUCK_S: Final = 1.0
_LOOK_S: Final = 0.25  # to look at all connections takes time
_MOMENT_S: Final = 0.01  # so that among connections that all make progress the one that holds most gives way


class Holder(Protocol):
    """A connection, as seen by the one place that knows what is held for all of them."""

    def stuck_s(self, now: float) -> float:
        """Return for how many seconds an unfinished frame has come too slowly, or the client has taken no answer.

        The time for which the broker itself did not read is not among them.
        """

    def give_way(self, detail: str) -> None:
        """Close the connection at once and give everything back that was held for it."""


class HeldBytes:
    """The bytes held for each connection and for all of them; the module says by which rules.

    Attributes:
        turn: held by the connection that may receive a frame beyond its share.
    """

    def __init__(self, counters: Counters, limits: LimitsConfig) -> None:
        self.turn = trio.Semaphore(1)
        self._kinds = counters.buffered_bytes
        self._limits = limits
        self._held: dict[Holder, int] = {}
        self._looked_at = -_LOOK_S

    @property
    def total(self) -> int:
        """Bytes held now."""
        return self._kinds["read"] + self._kinds["write"]

    @property
    def share(self) -> int:
        """Bytes up to which a connection is served without waiting."""
        limits = self._limits
        free = limits.buffer_total - self.total
        return max(SHARE_MIN, min(limits.connection_buffer, free // _SHARE_OF_FREE))

    def held_for(self, holder: Holder) -> int:
        """Return the bytes held for one connection."""
        return self._held.get(holder, 0)

    def change(self, holder: Holder, kind: str, difference: int) -> None:
        """Note that more (or less) is held for a connection: `read` or `write`.

        If that is too much for all together, connections are closed before this returns, maybe this one too.
        """
        held = self._held.get(holder, 0) + difference
        self._kinds[kind] += difference
        if held:
            self._held[holder] = held
        else:
            self._held.pop(holder, None)
        limit = self._limits.buffer_total
        if difference > 0 and self.total > limit:
            why = f"at most {limit} are for all connections"
            self._make_room(self._held, limit - limit // _FREED_AT_ONCE, why)

    def make_room_for_turns(self) -> None:
        """Close the connections that hold up those which wait for their turns: much is held and they are stuck."""
        limit, now = self._limits.buffer_total, trio.current_time()
        half = limit // 2
        if self.total <= half or now - self._looked_at < _LOOK_S:
            return
        self._looked_at = now
        stuck = [
            holder
            for holder, held in self._held.items()
            if held > SHARE_MIN and holder.stuck_s(now) > _STUCK_S
        ]
        enough = max(half, self.total - limit // _FREED_AT_ONCE)
        self._make_room(stuck, enough, "it makes progress slower than others that wait could")

    def _make_room(self, holders: Iterable[Holder], enough: int, why: str) -> None:
        """Close the greediest connections until no more than `enough` is held."""
        now = trio.current_time()
        by_cost = sorted(
            holders, key=lambda holder: self._held[holder] * (holder.stuck_s(now) + _MOMENT_S), reverse=True
        )
        for holder in by_cost:
            if self.total <= enough:
                return
            holder.give_way(f"{self._held[holder]} of {self.total} bytes are held for it; {why}")
