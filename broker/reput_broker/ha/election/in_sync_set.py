"""The in-sync set of a master: the members that have every confirmed message, and the confirm offset.

A pure state machine: members' offsets and times come in, changes of the set and the confirm offset come out. The caller
records each change with the engine.

While a change is under way the engine may have made it or not, so the confirm offset waits for the members of both
sets. A member joins only if it has every confirmed byte, and one that leaves is waited for until the engine has
recorded that. So at any time every member of the recorded set, whichever of the two it is, has all that is confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Protocol

_CLOSE = 0.1
"""The part of the timeout within which a member was caught up that may join, and may connect again to stay."""


class TablesInSync(Protocol):
    """Which members have the tables of the master, as they have its log."""

    @property
    def is_waiting(self) -> bool:
        """Whether the set lacks a change that is not answered therefore."""

    def may_join(self, member: int) -> bool:
        """Tell whether a member has all changes that were answered."""

    def is_late(self, member: int) -> bool:
        """Tell whether a member has lacked a change for the timeout of the set."""


@dataclass(slots=True)
class _Follower:
    offset: int
    """What it has acknowledged, in bytes of the log."""
    seen_at: float
    """When it last reported an offset; earlier, since a disconnection."""
    caught_up_at: float
    """The last time at which it had all that the master had then."""
    mark: int
    """The master's end at `mark_at`; the member was caught up then once it acknowledges this."""
    mark_at: float
    is_connected: bool = True


class InSyncSet:
    """The in-sync set of one mastership. Offsets are bytes of the log, times seconds of one clock.

    Args:
        me: this member.
        recorded: the set in the engine's record; this member is in it.
        start: the log's end at its start; all of it is flushed here.
        confirmed: the log offset up to which all of the set have the log at least: `start` after a hand-over. After a
            failover the others stay in the set if they connect within a tenth of the timeout.
        gone: the master before, which has failed and is not waited for.
        timeout_s: a member is removed that reports nothing for so long, or was not caught up for so long.
        gap_max: a member is removed that is this many bytes behind.
        now: the time.
    """

    def __init__(
        self,
        me: int,
        recorded: Iterable[int],
        *,
        start: int,
        confirmed: int | None = None,
        gone: int | None = None,
        timeout_s: float,
        gap_max: int,
        now: float,
    ) -> None:
        self.me = me
        self._recorded = frozenset(recorded)
        assert me in self._recorded, f"member {me} is not in its set {sorted(self._recorded)}"
        self._proposed: frozenset[int] | None = None
        self._joining: frozenset[int] = frozenset()
        self._start = self._end = self._flushed = start
        self._confirm = start if confirmed is None else confirmed
        self.timeout_s, self._gap_max = timeout_s, gap_max
        self._unfit: set[int] = set()
        self.tables: TablesInSync | None = None
        """Asked in addition before a member joins or stays."""
        self._followers = {
            member: _Follower(self._confirm, now, now, start, now)
            for member in self._recorded
            if member != me
        }
        for member, follower in self._followers.items():
            if confirmed is not None:
                self.disconnected(member, now)
            if member == gone:
                follower.seen_at = -inf
        self._advance()

    @property
    def recorded(self) -> frozenset[int]:
        """The set that the engine is known to have recorded."""
        return self._recorded

    @property
    def proposed(self) -> frozenset[int] | None:
        """The set that the engine may have recorded, while a change is under way."""
        return self._proposed

    @property
    def members(self) -> frozenset[int]:
        """The members that the confirm offset waits for."""
        return self._recorded | (self._proposed or frozenset()) | self._joining

    @property
    def end(self) -> int:
        """The end of this broker's log."""
        return self._end

    @property
    def confirm(self) -> int:
        """The offset up to which every member has the log. Never goes back."""
        return self._confirm

    @property
    def has_all(self) -> bool:
        """Whether every member has the whole log, and all changes of tables."""
        return self._confirm >= self._end and not (self.tables is not None and self.tables.is_waiting)

    def offset_of(self, member: int) -> int | None:
        """Return what a member has acknowledged; None if it has not reported during this mastership."""
        if member == self.me:
            return self._flushed
        follower = self._followers.get(member)
        return None if follower is None else follower.offset

    def is_connected(self, member: int) -> bool:
        """Tell whether a member has reported and is connected still."""
        follower = self._followers.get(member)
        return follower is not None and follower.is_connected

    def can_lead(self, member: int) -> bool:
        """Tell whether a member is connected, and has not reported that it cannot store messages."""
        return self.is_connected(member) and member not in self._unfit

    def caught_up(self, end: int) -> frozenset[int]:
        """Return the members of the set that have the log up to `end`."""
        return frozenset(member for member in self._recorded if (self.offset_of(member) or 0) >= end)

    # Events

    def own(self, end: int, flushed: int) -> None:
        """Note this broker's own log: its end, and how far it is flushed."""
        self._end, self._flushed = end, flushed
        self._advance()

    def acknowledged(self, member: int, offset: int, now: float) -> None:
        """Note that a member has the log up to `offset`, which it read from this master during this mastership.

        A smaller offset than before means that the member has lost something; if that was confirmed, it leaves the set.
        """
        follower = self._followers.get(member)
        if follower is None:
            follower = self._followers[member] = _Follower(offset, now, -inf, self._end, now)
        follower.offset, follower.seen_at, follower.is_connected = offset, now, True
        if offset >= self._end:
            follower.caught_up_at = now
        elif offset >= follower.mark:
            follower.caught_up_at = max(follower.caught_up_at, follower.mark_at)
        if offset >= follower.mark:
            follower.mark, follower.mark_at = self._end, now
        self._advance()

    def fitness(self, member: int, is_fit: bool) -> None:
        """Note whether a member can store messages."""
        (self._unfit.discard if is_fit else self._unfit.add)(member)

    def disconnected(self, member: int, now: float) -> None:
        """Note that a member's connection has ended: it has a tenth of the timeout to connect again."""
        follower = self._followers.get(member)
        if follower is not None:
            follower.is_connected = False
            follower.seen_at = min(follower.seen_at, now - (1 - _CLOSE) * self.timeout_s)

    # Changes of the set

    def next_change(self, now: float) -> frozenset[int] | None:
        """Return the set that should be recorded next, or None if there is nothing to change.

        While a change is under way, it is that one. The confirm offset waits for its members from now on.
        """
        followers = self._followers.items()
        self._joining = frozenset(
            m
            for m, f in followers
            if m not in self._recorded
            and self._is_close(f, now)
            and (self.tables is None or self.tables.may_join(m))
        )
        if self._proposed is None:
            kept = {m for m, f in followers if m in self._recorded and not self._is_lagging(m, f, now)}
            # Under load a member that is close is always a little behind the confirm offset, which therefore waits.
            joined = {m for m in self._joining if self._followers[m].offset >= self._confirm}
            members = frozenset({self.me, *kept, *joined})
            if members != self._recorded:
                self._proposed = members
        self._advance()
        return self._proposed

    def settled(self, recorded: frozenset[int]) -> None:
        """Note the set that the engine has recorded, by which the change under way has ended.

        Args:
            recorded: the change, or the set before it if the engine has refused the change.
        """
        self._recorded, self._proposed = recorded, None
        self._joining -= recorded
        self._advance()

    def _is_lagging(self, member: int, follower: _Follower, now: float) -> bool:
        """Tell whether a member of the set has to leave it, because all that waits for the set waits for it."""
        return (
            follower.offset < self._confirm  # it has lost something
            or now - follower.seen_at > self.timeout_s
            or self._end - follower.offset > self._gap_max
            or (follower.offset < self._end and now - follower.caught_up_at > self.timeout_s)
            or (self.tables is not None and self.tables.is_late(member))
        )

    def _is_close(self, follower: _Follower, now: float) -> bool:
        """Tell whether another member may join: it will soon have what is confirmed now."""
        close_s = self.timeout_s * _CLOSE
        return (
            follower.offset >= self._start
            and follower.is_connected
            and now - follower.seen_at <= self.timeout_s
            and self._end - follower.offset <= self._gap_max
            and (follower.offset >= self._end or now - follower.caught_up_at <= close_s)
        )

    def _advance(self) -> None:
        least = self._flushed
        for member in self.members:
            if member != self.me:
                least = min(least, self._followers[member].offset)
        self._confirm = max(self._confirm, least)
