"""The copies that the members of the in-sync set have, in one tenure of an elected master: of the log, and of its
tables (offsets, topics, groups and the others that a slave takes over, see `ha/slave_synchronize.py`).

With `ha.in_sync_replicas` of 2 or more, a change of a table is answered once every member of the in-sync set has taken
it over, so that no failover takes it back. For that

- each member waits here for changes (AWAIT_TABLE_CHANGES), and says what it has;
- one that lacks an answered change does not join the set;
- one that does not get a change for the timeout of the set leaves it, as one that does not get the log.

Members of earlier versions do not say what they have. They are not waited for.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio
from typing_extensions import override

from reput_broker.config.model import BrokerConfig
from reput_broker.config.sections import HAConfig
from reput_broker.ha.election.in_sync_set import InSyncSet, TablesInSync
from reput_broker.put.progress import LogProgress, Replica, Replicas
from reput_broker.put.put_lock import Fence
from reput_broker.remoting.request import Handled, Handler, Refusal, Request, Response, Result
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.replica import AwaitTableChangesHeader, QueryReplicaStateHeader, TableChanges
from reput_protocol.commands.table import REQUESTS
from reput_protocol.errors import ErrorCode

_LOOK_S: Final = 0.25
"""Interval at which the tables are compared, for changes that no request made, such as progress of pops."""
_HELD_S: Final = 2.0
_STOPS: Final = "the master stops, or another one leads now"


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
    """Which members have which changes of the tables.

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
