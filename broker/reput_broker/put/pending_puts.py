"""Puts that are stored and wait for a sync or commit, and the answers that they get."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from reput_broker.observe.counters import Histogram
from reput_broker.put.fence import Fence
from reput_broker.request import Client, Refusal, Request, Response
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ErrorCode, refusal_remark


class PendingPut(Protocol):
    """Something stored whose answer waits. Answers are only queued; the client is flushed afterwards."""

    @property
    def client(self) -> Client:
        """The client to answer."""

    @property
    def received_at(self) -> float:
        """When the read that brought it returned, in seconds of the monotonic clock."""

    @property
    def requests(self) -> int:
        """How many requests it answers whose time is counted."""

    @property
    def messages(self) -> int:
        """How many messages it stored."""

    def acknowledge(self) -> None:
        """Answer that the requested level is reached."""

    def admit(self, reason: str, error: ErrorCode, *, is_flushed: bool = False) -> None:
        """Answer that it is stored, and synced or not, and the level is not known to be reached, with the reason."""

    def refuse(self, reason: str) -> None:
        """Answer that it is not stored, with the reason: it was only in the broker's memory."""


@dataclass(slots=True)
class PendingRequest:
    """One request and its answer if the level is reached, unless the fence is passed then."""

    request: Request
    response: Response
    messages: int
    fence: Fence
    requests: int = 1

    @property
    def client(self) -> Client:
        """See `PendingPut`."""
        return self.request.client

    @property
    def received_at(self) -> float:
        """See `PendingPut`."""
        return self.request.received_at

    def acknowledge(self) -> None:
        """See `PendingPut`."""
        reason = self.fence.expiry()
        if reason is not None:
            self.admit(reason, ErrorCode.REPLICA_TIMEOUT)
            return
        self.client.answer(self.request, self.response)

    def admit(self, reason: str, error: ErrorCode, *, is_flushed: bool = False) -> None:
        """See `PendingPut`."""
        self.client.answer(self.request, not_reached(self.response, reason, error, is_flushed=is_flushed))

    def refuse(self, reason: str) -> None:
        """See `PendingPut`."""
        self.client.answer(self.request, _not_stored(reason))


def flush_clients(pending: Iterable[PendingPut]) -> None:
    """Write the queued answers, with one write for each client."""
    for client in {id(put.client): put.client for put in pending}.values():
        client.flush()


def not_reached(response: Response, reason: str, error: ErrorCode, *, is_flushed: bool = False) -> Response:
    """Return the answer to a put that is stored here, and not known to have reached its level."""
    reached = AckLevel.FLUSHED if is_flushed else AckLevel.PAGE_CACHE
    where = "on disk" if error is ErrorCode.FLUSH_TIMEOUT else "replicated"
    text = f"stored, but not known to be {where}: {reason}; do not send again unless a duplicate is harmless"
    ext = {**response.ext, "ack": reached.value} if "ack" in response.ext else response.ext
    return Response(int(error.response_code), ext, remark=refusal_remark(error, text))


def _not_stored(reason: str) -> Response:
    return Refusal(ErrorCode.READ_ONLY, f"not stored: {reason}; see the broker's log").response()


class _Waiter(NamedTuple):
    end_offset: int
    deadline: float
    put: PendingPut


class PendingPutQueue:
    """The puts that wait for one position of the log to advance, in the order of the log.

    Args:
        seconds: histogram of the time from arrival to answer.
        error: of puts that are stored and do not get there.
        flushed: returns the position up to which the log is synced, if puts may be synced and not get there.
    """

    def __init__(
        self,
        seconds: Histogram,
        error: ErrorCode = ErrorCode.FLUSH_TIMEOUT,
        flushed: Callable[[], int] = lambda: 0,
    ) -> None:
        self._seconds = seconds
        self._error = error
        self._flushed = flushed
        self._waiters: deque[_Waiter] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def add(self, end_offset: int, put: PendingPut, timeout_s: float = 0.0) -> None:
        """Queue a put until the position reaches `end_offset`; it is late `timeout_s` after its
        arrival."""
        self._waiters.append(_Waiter(end_offset, put.received_at + timeout_s, put))

    def release(self, position: int) -> int:
        """Acknowledge every put that ends at or before the position; return how many messages they
        stored."""
        waiters = self._waiters
        if not waiters or waiters[0].end_offset > position:
            return 0
        released: list[PendingPut] = []
        messages = 0
        now = time.monotonic()
        while waiters and waiters[0].end_offset <= position:
            put = waiters.popleft().put
            put.acknowledge()
            released.append(put)
            messages += put.messages
            self._seconds.observe(now - put.received_at, put.requests)
        flush_clients(released)
        return messages

    def admit_late(self, committed: int, reason: str) -> None:
        """Answer late puts that they are stored but the level is not reached.

        Only those that end at or before `committed`: others are only in the broker's memory and may get lost.
        """
        now = time.monotonic()
        late: list[_Waiter] = []
        while self._waiters and self._waiters[0].deadline <= now and self._waiters[0].end_offset <= committed:
            late.append(self._waiters.popleft())
        self._admit(late, reason)

    def fail(self, committed: int, reason: str) -> None:
        """Answer all puts that the level will not be reached: stored up to `committed`, not stored
        beyond."""
        waiters, self._waiters = self._waiters, deque()
        self._admit([waiter for waiter in waiters if waiter.end_offset <= committed], reason)
        lost = [waiter.put for waiter in waiters if waiter.end_offset > committed]
        for put in lost:
            put.refuse(reason)
        flush_clients(lost)

    def _admit(self, waiters: list[_Waiter], reason: str) -> None:
        flushed = self._flushed()
        for waiter in waiters:
            waiter.put.admit(reason, self._error, is_flushed=waiter.end_offset <= flushed)
        flush_clients([waiter.put for waiter in waiters])
