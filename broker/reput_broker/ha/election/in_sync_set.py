"""The in-sync set of a master: the members that have every confirmed message, and the confirm offset.

`InSyncSet` is a pure state machine: members' offsets and times come in, changes of the set and the confirm offset come
out. The caller records each change with the engine.

While a change is under way the engine may have made it or not, so the confirm offset waits for the members of both
sets. A member joins only if it has every confirmed byte, and one that leaves is waited for until the engine has
recorded that. So at any time every member of the recorded set, whichever of the two it is, has all that is confirmed.

`LogCopies` tells it what members have of the log, and moves the confirm offset by it; `TableCopies` what they have of
the tables.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final, Protocol

import trio
from typing_extensions import override

from reput_broker.config.model import BrokerConfig
from reput_broker.config.sections import HAConfig
from reput_broker.put.progress import LogProgress, Replica, Replicas
from reput_broker.put.put_lock import Fence
from reput_broker.remoting.request import Handled, Handler, Refusal, Request, Response, Result
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.replica import AwaitTableChangesHeader, QueryReplicaStateHeader, TableChanges
from reput_protocol.commands.table import REQUESTS
from reput_protocol.errors import ErrorCode

_CLOSE = 0.1
"""The part of the timeout within which a member was caught up that may join, and may connect again to stay."""
_LOOK_S: Final = 0.25
"""Interval at which the tables are compared, for changes that no request made, such as progress of pops."""
_HELD_S: Final = 2.0
_STOPS: Final = "the master stops, or another one leads now"


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
            member: _Follower(self._confirm, now, now, start, now) for member in self._recorded if member != me
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
            if m not in self._recorded and self._is_close(f, now) and (self.tables is None or self.tables.may_join(m))
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


class LogCopies(Replicas):
    """How many copies of the log there are with an election: those of the in-sync set, all of it.

    Reports the log and its copies to the set, and how far they are replicated and confirmed.

    Consumers see only what is confirmed, since another master may not have the rest.

    Args:
        clock: that of the elector.
    """

    def __init__(
        self, in_sync: InSyncSet, progress: LogProgress, config: BrokerConfig, clock: Callable[[], float]
    ) -> None:
        self._in_sync = in_sync
        self._progress = progress
        self._config = config.ha
        self._clock = clock
        self._own = progress.flushed if config.store.flush == "sync" else progress.committed
        progress.confirm(in_sync.confirm)
        progress.committed.follow(self.moved)

    @override
    def refusal(self) -> str | None:
        needed, members = self._config.copies_if_replicated, self._in_sync.recorded
        if len(members) >= needed:
            return None
        text = f"it takes {needed} members in sync, this master included, and in sync are {sorted(members)}"
        return f"{text}; start the others, lower ha.in_sync_replicas, or ask for flushed or page_cache"

    @override
    def acknowledged(self, slave: Replica) -> None:
        if slave.member is not None:  # one of RocketMQ is no member, and does not count
            self._in_sync.acknowledged(slave.member, slave.acked_offset, self._clock())
            self.moved()

    @override
    def gone(self, slave: Replica) -> None:
        if slave.member is not None:
            self._in_sync.disconnected(slave.member, self._clock())

    @override
    def moved(self) -> None:
        """Note that the log was committed or flushed further, or that the set has changed."""
        progress, in_sync = self._progress, self._in_sync
        in_sync.own(progress.committed.offset, self._own.offset)
        progress.confirm(in_sync.confirm)
        # A set that has shrunk confirms for consumers, but a put that waits for copies still needs them.
        if len(in_sync.recorded) >= self._config.copies_if_replicated:
            progress.replicated.advance(in_sync.confirm)


@dataclass(slots=True)
class _Change:
    number: int
    at: float
    answer: Callable[[Response], None] | None
    """None once it was answered."""
    response: Response


class TableCopies(TablesInSync):
    """Which members have which changes of the tables (offsets, topics, groups and the others that a slave takes over,
    see `ha/slave_synchronize.py`), in one tenure.

    With `ha.in_sync_replicas` of 2 or more, a change of a table is answered once every member of the in-sync set has
    taken it over, so that no failover takes it back. For that

    - each member waits here for changes (AWAIT_TABLE_CHANGES), and says what it has;
    - one that lacks an answered change does not join the set;
    - one that does not get a change for the timeout of the set leaves it, as one that does not get the log.

    Members of earlier versions do not say what they have. They are not waited for.

    Args:
        versions: returns `TableChanges.tables`.
        prove: proves this master in the answer to a member.
        epoch: of the tenure.
    """

    def __init__(
        self,
        in_sync: InSyncSet,
        progress: LogProgress,
        config: HAConfig,
        fence: Fence,
        versions: Callable[[], str],
        prove: Callable[[Request, Response], None],
        *,
        epoch: int,
    ) -> None:
        self._in_sync = in_sync
        self._progress = progress
        self._config = config
        self._fence = fence
        self._versions = versions
        self._prove = prove
        self._epoch = epoch
        self._run = secrets.token_hex(4)
        self._number = self._answered = 0
        self._taken: dict[int, int] = {}
        self._silent: set[int] = set()
        self._changes: deque[_Change] = deque()
        self._changed: trio.Event | None = None  # while a member waits
        self._is_stopping = False
        in_sync.tables = self
        progress.confirmed.follow(self.wake)

    # The members

    def introduced(self, header: QueryReplicaStateHeader) -> None:
        """Note whether a member says what it has."""
        if header.member is not None and header.is_fit is not None:
            (self._silent.discard if header.copies_tables else self._silent.add)(header.member)

    def wait(self, request: Request) -> Response | None:
        """Note what a member has; answer at once if there is more, else when there is."""
        header = AwaitTableChangesHeader.from_ext(request.ext)
        if not header.taken:
            self._taken.pop(header.member, None)  # it begins again, maybe without what it had
        run, _, number = header.taken.partition(".")
        if run == self._run and number.isdecimal():
            self._silent.discard(header.member)
            self._taken[header.member] = int(number)
            self.advance()
        if header.wait_ms <= 0 or self._is_stopping or self._has_news(header):
            return self._state(request)
        request.client.spawn(self._answer_later, request, header)
        return None

    async def _answer_later(self, request: Request, header: AwaitTableChangesHeader) -> None:
        with trio.move_on_after(min(header.wait_ms / 1000, _HELD_S)):
            while not (self._is_stopping or request.client.is_closed or self._has_news(header)):
                if self._changed is None:
                    self._changed = trio.Event()
                with trio.move_on_after(_LOOK_S):
                    await self._changed.wait()
        request.reply(self._state(request))

    def _has_news(self, header: AwaitTableChangesHeader) -> bool:
        return (
            self._text() != header.known
            or self._progress.confirmed.offset != header.confirm_offset
            or self._versions() != header.tables
        )

    def _state(self, request: Request) -> Response:
        confirmed, end = self._progress.confirmed.offset, self._progress.committed.offset
        state = TableChanges(self._text(), self._versions(), self._epoch, confirmed, end)
        response = Response(0, state.to_ext(request.header_type))
        self._prove(request, response)
        return response

    def _text(self) -> str:
        return f"{self._run}.{self._number}"

    def wake(self) -> None:
        """Note that a table has changed, or the confirm offset has moved."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def stop(self) -> None:
        """Answer at once what waits, because the server hears no member any more: it waits for the answers."""
        self._is_stopping = True
        self.wake()
        for change in self._changes:
            _answer(change, _STOPS)

    # What the in-sync set asks

    @property
    @override
    def is_waiting(self) -> bool:
        return bool(self._changes)

    @override
    def may_join(self, member: int) -> bool:
        return not self._counts or member in self._silent or self._taken.get(member, -1) >= self._answered

    @override
    def is_late(self, member: int) -> bool:
        if not self._changes or member in self._silent or not self._counts:
            return False
        oldest = self._changes[0]
        is_old = trio.current_time() - oldest.at > self._in_sync.timeout_s
        return is_old and self._taken.get(member, -1) < oldest.number

    @property
    def _counts(self) -> bool:
        return self._config.in_sync_replicas > 1

    # Changes

    def handlers(self, served: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the handlers by request code; those that change tables answer once the set has the change."""
        changed = {
            code: partial(self._when_copied, handler)
            for code, handler in served.items()
            if REQUESTS[code].changes_tables
        }
        return {**served, **changed, RequestCode.AWAIT_TABLE_CHANGES: self.wait}

    def _when_copied(self, handler: Handler, request: Request) -> Result:
        result = handler(request)
        return self._later(result, request) if isinstance(result, Awaitable) else self._held(result, request)

    async def _later(self, work: Awaitable[Handled], request: Request) -> Handled:
        return self._held(await work, request)

    def _held(self, outcome: Handled, request: Request) -> Handled:
        if not isinstance(outcome, Response) or outcome.code or not self._counts:
            return outcome
        if self._is_stopping:
            return _unknown(_STOPS)
        self._number += 1
        answer = None if request.is_oneway else request.reply
        if answer is not None or not self._changes or self._changes[-1].answer is not None:
            self._changes.append(_Change(self._number, trio.current_time(), answer, outcome))
        self.wake()
        self.advance()
        return None

    def advance(self) -> None:
        """Answer the changes that all of the set have. Called when one has more, and when the set has changed."""
        in_sync = self._in_sync
        members = (in_sync.recorded | (in_sync.proposed or frozenset())) - self._silent - {in_sync.me}
        least = min([self._taken.get(member, -1) for member in members], default=self._number)
        while self._changes and self._changes[0].number <= least:
            change = self._changes.popleft()
            self._answered = change.number
            if change.answer is not None:
                reason = self._fence.expiry()
                change.answer(change.response if reason is None else _unknown(reason))

    async def expire(self) -> None:
        """Answer changes that take longer than `ha.slave_timeout`, until cancelled."""
        while True:
            await trio.sleep(_LOOK_S)
            late = trio.current_time() - self._config.slave_timeout
            for change in self._changes:
                if change.at > late:
                    break
                _answer(
                    change,
                    f"members {sorted(self._in_sync.recorded)} are in sync, and not all have said within "
                    f"ha.slave_timeout ({self._config.slave_timeout} s) that they have it",
                )


def not_announced(_request: Request) -> Response:
    """Answer a member without an election as a broker that does not know the request: it asks from time to time."""
    remark = "this master is in no group with an election, and announces no changes of its tables"
    return Response(int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED), remark=remark)


def _answer(change: _Change, reason: str) -> None:
    """Answer a change whose outcome is unknown, unless it was answered."""
    if change.answer is not None:
        answer, change.answer = change.answer, None
        answer(_unknown(reason))


def _unknown(reason: str) -> Response:
    text = f"changed here, and a failover may take it back: {reason}; ask again, or repeat it"
    return Refusal(ErrorCode.TIMEOUT, text).response()
