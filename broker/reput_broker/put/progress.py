"""How far the log is: appended, committed, flushed, dispatched, replicated, confirmed, and the puts that wait for each.

The services that do the work advance these positions. Everything else follows a position, or waits for it. A progress
belongs to one opening of the store: a log that is truncated is opened again, with a new progress.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import trio

from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import Counters, Histogram
from reput_broker.put.put_lock import Fence
from reput_broker.remoting.request import Client, Confirmed, PutAck, Refusal, Request, Response
from reput_broker.store.message_store import MessageStore
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ErrorCode, refusal_remark


@dataclass(slots=True)
class PendingRequest:
    """Something stored whose answer waits: one request and its answer if the level is reached, unless the fence is
    passed then. Answers are only queued; the client is flushed afterwards.
    """

    request: Request
    response: Response
    messages: int
    """How many messages it stored."""
    fence: Fence
    requests: int = 1
    """How many requests it answers whose time is counted."""

    @property
    def client(self) -> Client:
        """The client to answer."""
        return self.request.client

    @property
    def received_at(self) -> float:
        """When the read that brought it returned, in seconds of the monotonic clock."""
        return self.request.received_at

    def acknowledge(self) -> None:
        """Answer that the requested level is reached."""
        reason = self.fence.expiry()
        if reason is not None:
            self.admit(reason, ErrorCode.REPLICA_TIMEOUT)
            return
        self.client.answer(self.request, self.response)

    def admit(self, reason: str, error: ErrorCode, *, is_flushed: bool = False) -> None:
        """Answer that it is stored, and synced or not, and the level is not known to be reached, with the reason."""
        self.client.answer(self.request, not_reached(self.response, reason, error, is_flushed=is_flushed))

    def refuse(self, reason: str) -> None:
        """Answer that it is not stored, with the reason: it was only in the broker's memory."""
        self.client.answer(self.request, _not_stored(reason))


def flush_clients(pending: Iterable[PendingRequest]) -> None:
    """Write the queued answers, with one write for each client."""
    for client in {id(put.client): put.client for put in pending}.values():
        client.flush()


def not_reached(response: Response, reason: str, error: ErrorCode, *, is_flushed: bool = False) -> Response:
    """Return the answer to a put that is stored here, and not known to have reached its level."""
    reached = AckLevel.FLUSHED if is_flushed else AckLevel.PAGE_CACHE
    where = "on disk" if error is ErrorCode.FLUSH_TIMEOUT else "replicated"
    text = f"stored, but not confirmed to be {where}: {reason}; do not send again unless a duplicate is harmless"
    ext = {**response.ext, "ack": reached.value} if "ack" in response.ext else response.ext
    return Response(int(error.response_code), ext, remark=refusal_remark(error, text))


def _not_stored(reason: str) -> Response:
    return Refusal(ErrorCode.READ_ONLY, f"not stored: {reason}; see the broker's log").response()


_LOOK_S = 0.25


def do_nothing() -> None:
    """Do nothing, where a call is expected."""


class _Waiter(NamedTuple):
    end_offset: int
    deadline: float
    put: PendingRequest


class Position:
    """One position of the log, in bytes. It never moves back.

    Args:
        seconds: histogram of the time from the arrival of a put to its answer.
        error: of puts that are stored and do not get there.
    """

    def __init__(self, seconds: Histogram | None = None, error: ErrorCode = ErrorCode.FLUSH_TIMEOUT) -> None:
        self.offset = 0
        """Everything before it is there."""
        self.failure: str | None = None
        """Why it does not move any more."""
        self.want: Callable[[], None] = do_nothing
        """Called when something waits for it: makes it move soon."""
        self._seconds = seconds
        self._error = error
        self._followers: list[Callable[[], None]] = []
        self._later: list[Callable[[], None]] = []
        self._puts: deque[_Waiter] = deque()
        self._moved: trio.Event | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether a put or a task waits for it."""
        return bool(self._puts) or self._moved is not None

    def follow(self, call: Callable[[], None], *, after_answers: bool = False) -> None:
        """Call `call` whenever it has moved, before any put is answered, or after that; before any task runs."""
        (self._later if after_answers else self._followers).append(call)

    def advance(self, offset: int) -> int:
        """Move to `offset`, if that is further; return how many messages the puts had that were acknowledged."""
        if offset <= self.offset:
            return 0
        self.offset = offset
        for call in self._followers:
            call()
        if self._moved is not None:
            self._wake(self._moved)
        puts = self._puts
        released = self._release() if puts and puts[0].end_offset <= self.offset else 0
        for call in self._later:
            call()
        return released

    async def reached(self, end_offset: int) -> None:
        """Wait until it is at `end_offset`.

        Raises:
            Refusal: it will not get there.
        """
        while self.offset < end_offset:
            if self.failure is not None:
                raise Refusal(ErrorCode.READ_ONLY, f"{self.failure}; see the broker's log")
            if self._moved is None:
                self._moved = trio.Event()
            self.want()
            await self._moved.wait()

    def answer_when_reached(self, end_offset: int, put: PendingRequest, timeout_s: float = 0.0) -> None:
        """Acknowledge a put once it is at `end_offset`; the put is late `timeout_s` after its arrival."""
        self._puts.append(_Waiter(end_offset, put.received_at + timeout_s, put))
        if self._puts[0].end_offset <= self.offset:
            self._release()

    def _release(self) -> int:
        puts, offset = self._puts, self.offset
        released: list[PendingRequest] = []
        messages = 0
        now = time.monotonic()
        while puts and puts[0].end_offset <= offset:
            put = puts.popleft().put
            put.acknowledge()
            released.append(put)
            messages += put.messages
            if self._seconds is not None:
                self._seconds.observe(now - put.received_at, put.requests)
        flush_clients(released)
        return messages

    def _wake(self, moved: trio.Event) -> None:
        moved.set()
        self._moved = None

    def admit_late(self, store: MessageStore, reason: str) -> None:
        """Answer late puts that they are stored but it is not there.

        Only those that are committed: others are only in the broker's memory and may get lost.
        """
        now, committed, puts = time.monotonic(), store.committed_offset, self._puts
        late: list[_Waiter] = []
        while puts and puts[0].deadline <= now and puts[0].end_offset <= committed:
            late.append(puts.popleft())
        self._admit(late, store, reason)

    def fail(self, store: MessageStore, reason: str) -> None:
        """Answer all puts and tasks, now and later, that it will not get there: stored if they are committed, not
        stored if not.
        """
        self.failure = reason
        if self._moved is not None:
            self._wake(self._moved)
        puts, self._puts, committed = self._puts, deque(), store.committed_offset
        self._admit([waiter for waiter in puts if waiter.end_offset <= committed], store, reason)
        lost = [waiter.put for waiter in puts if waiter.end_offset > committed]
        for put in lost:
            put.refuse(reason)
        flush_clients(lost)

    def _admit(self, waiters: list[_Waiter], store: MessageStore, reason: str) -> None:
        flushed = store.flushed_offset
        for waiter in waiters:
            waiter.put.admit(reason, self._error, is_flushed=waiter.end_offset <= flushed)
        flush_clients([waiter.put for waiter in waiters])


class Replica(Protocol):
    """A connected slave."""

    member: int | None
    acked_offset: int


class Replicas:
    """The copies of this master's log: none here. Others advance `replicated`, and in an election `confirmed`."""

    def moved(self) -> None:
        """Note that the log was flushed further."""

    def acknowledged(self, slave: Replica) -> None:
        """Note a report of a slave."""

    def gone(self, slave: Replica) -> None:
        """Note that a slave's connection has ended."""

    def refusal(self) -> str | None:
        """Return why a put would not be replicated now: the facts and the remedy; None if it would."""
        return "there is no replica: this broker serves no slaves (ha_port is off); ask for flushed or page_cache"


class LogProgress:
    """The positions of one open log.

    Attributes:
        appended: the log is written to here, maybe only to buffers of the pool. Without a pool it is `committed`.
        committed: everything before it survives the process.
        flushed: everything before it is on disk.
        offered: slaves are sent the log up to here.
        dispatched: everything before it is in the queues.
        replicated: everything before it is on as many machines as are needed.
        confirmed: consumers see nothing beyond it; without an election there is no such limit.

    ========== ============================================= ==================================================
    position   is moved by                                   is followed by, besides the puts and tasks that wait
    ========== ============================================= ==================================================
    appended   each append                                   the commit service
    committed  each append; with a pool the commit service   `offer`, copies; with a pool dispatch and flush service
    flushed    the flush service                             dispatch, after the answers; copies
    offered    `offer`                                       the connections of slaves
    dispatched the reput service                             pulls that wait
    replicated `Replicas`                                    nothing
    confirmed  `confirm`, by ha/                             dispatch, after the answers; copies of the tables
    ========== ============================================= ==================================================
    """

    def __init__(self, store: MessageStore, config: BrokerConfig, counters: Counters) -> None:
        seconds = counters.produce_seconds
        self.has_pool = store.buffers_available is not None
        self.committed = Position(seconds[AckLevel.PAGE_CACHE])
        self.appended = Position() if self.has_pool else self.committed
        self.flushed = Position(seconds[AckLevel.FLUSHED])
        self.offered = Position()
        self.dispatched = Position()
        self.replicated = Position(seconds[AckLevel.REPLICATED], ErrorCode.REPLICA_TIMEOUT)
        self.confirmed = Position(error=ErrorCode.REPLICA_TIMEOUT)
        self.replicas = Replicas()
        self._store = store
        self._config = config
        self._waiting = trio.Event()
        self.read_store()
        store.when_appended(self.appended.advance)

    def read_store(self) -> None:
        """Take the positions from the store: at first, and after the empty log of a slave was given its beginning."""
        store = self._store
        self.appended.offset = store.wrote_offset
        self.committed.offset = self.offered.offset = store.committed_offset
        self.flushed.offset = store.flushed_offset
        self.dispatched.offset = store.dispatched_offset
        confirmed = store.confirm_offset
        self.confirmed.offset = sys.maxsize if confirmed is None else confirmed

    def confirm(self, offset: int) -> None:
        """Let consumers see the log up to `offset`, unless they see more, and nothing beyond from now on."""
        store = self._store
        if store.confirm_offset is None:
            self.confirmed.offset = store.confirm_offset = offset
        elif offset > store.confirm_offset:
            store.confirm_offset = offset
            self.confirmed.advance(offset)

    # Copies

    def serve(self, replicas: Replicas) -> None:
        """Offer the log to slaves, and count their copies."""
        self.replicas = replicas
        if self.has_pool or self._config.store.flush == "async":
            self.committed.follow(self.offer)
        self.flushed.follow(replicas.moved)

    def offer(self) -> None:
        """Offer what is committed: after each commit; if each append is synced, when a sync of it begins.

        So a slave gets at once what this broker syncs at once, and syncs it at once too, at the same time.
        """
        self.offered.advance(self.committed.offset)

    def check_replicas(self) -> None:
        """Check that a put would be replicated now.

        Raises:
            Refusal: it would not.
        """
        reason = self.replicas.refusal()
        if reason is not None:
            raise Refusal(ErrorCode.NO_REPLICA, reason)

    async def confirmed_to(self, end_offset: int) -> None:
        """Wait until no failover can take back the log up to `end_offset`, `ha.slave_timeout` at most.

        Raises:
            Refusal: it takes longer.
        """
        slave_s = self._config.ha.slave_timeout
        with trio.move_on_after(slave_s):
            await self.confirmed.reached(end_offset)
            return
        why = self.replicas.refusal()
        raise Refusal(
            ErrorCode.TIMEOUT,
            f"the in-sync set took longer than ha.slave_timeout ({slave_s} s) to copy it{f'; {why}' if why else ''}; "
            "ask again",
        )

    # Puts that wait

    def answer_when(self, level: PutAck, end_offset: int, put: PendingRequest) -> None:
        """Answer a stored put once the log has a level up to `end_offset`, or that this was not reached.

        If copies cannot be had now, the answer says so at once: a request that names the level was refused before.
        """
        timeout_s = 0.0
        if level is AckLevel.FLUSHED:
            position, timeout_s = self.flushed, self._config.store.sync_timeout
        elif level is AckLevel.PAGE_CACHE:
            position = self.committed
        elif level is Confirmed.CONFIRMED:
            position, timeout_s = self.confirmed, self._config.ha.slave_timeout
        else:
            position, timeout_s = self.replicated, self._config.ha.slave_timeout
            reason = None if end_offset <= position.offset else self.replicas.refusal()
            if reason is not None:
                put.admit(reason, ErrorCode.REPLICA_MISSING, is_flushed=end_offset <= self._store.flushed_offset)
                flush_clients([put])
                position.want()  # members join once all of the log is synced, and no other put may come before
                return
        position.answer_when_reached(end_offset, put, timeout_s)
        if position.failure is not None:
            position.fail(self._store, position.failure)
            return
        position.want()
        if timeout_s:
            self._waiting.set()

    async def expire(self) -> None:
        """Answer puts whose timeout is over, until cancelled: stored, but not known to have their level."""
        store = self._store
        while True:
            await self._waiting.wait()
            sync_s, slave_s = self._config.store.sync_timeout, self._config.ha.slave_timeout
            await trio.sleep(min(_LOOK_S, sync_s / 4, slave_s / 4))
            self.flushed.admit_late(store, f"the sync took longer than store.sync_timeout ({sync_s} s)")
            reason, why = (f"the copies took longer than ha.slave_timeout ({slave_s} s)", self.replicas.refusal())
            self.replicated.admit_late(store, f"{reason}; {why}" if why else reason)
            self.confirmed.admit_late(store, reason)
            if not (self.flushed.is_awaited or self.replicated.is_awaited or self.confirmed.is_awaited):
                self._waiting = trio.Event()
