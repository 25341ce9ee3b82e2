"""Blocks on their way: groups leave, are answered, fail, leave again. Who puts messages into them is in `posting.py`.

While anything is under way a task (a thread, in the blocking face) sees to it that groups leave when they are due, that
answers are read and that what is never answered fails in time. It ends when nothing is left to do. Whoever fills a
group sends its block himself, so that in a busy program the task has next to nothing to do.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Final

from reput_client.batching import Group, Posted
from reput_client.core import Waiter
from reput_client.errors import (
    AckNotReached,
    ClientClosed,
    ConnectionLost,
    RequestTimeout,
    SendOutcomeUnknown,
)
from reput_client.puts import Putter, check_ack, outcome_unknown, result_of
from reput_client.runtime import Event
from reput_client.session import Session, wall_clock_ms
from reput_protocol.codes import AckLevel
from reput_protocol.errors import BrokerError, MessageRefused, ReputError
from reput_protocol.message import MessageQueue
from reput_protocol.message_id import UniqueIdGenerator

log = logging.getLogger("reput_client")

_RETRY_PAUSE_S: Final = 0.05
_FAILURES_MAX: Final = 10_000
_BUSY_S: Final = 0.005
"""For so long after somebody who posts has looked for answers, the task leaves that to him."""


class GroupSender:
    """Sends the groups of one producer, each as a block.

    Invariant: a group that is not done is in `_unfinished` and in one of `_open`, `_ready` (its block is made and waits
    for its turn or for a connection) and `_flying` (its call is pending). Groups of one queue leave in their order.
    """

    def __init__(self, session: Session, putter: Putter, ids: UniqueIdGenerator | None, retries: int) -> None:
        self._session = session
        self._putter = putter
        self._ids = ids
        self._retries = retries
        self._held = 0
        """Bytes of all that is not done."""
        self._sticky: dict[tuple[str, AckLevel, int], Group] = {}
        """The open groups of messages for which any queue will do."""
        self._open: dict[tuple[MessageQueue, AckLevel, int], Group] = {}
        self._ready: list[Group] = []
        self._flying: dict[Group, None] = {}
        self._unfinished: dict[Group, None] = {}
        self._finished: deque[Group] = deque()
        """Done, with callbacks that have not been called."""
        self._failed: list[Posted] = []
        self._failures = 0
        self._watchers: list[Waiter] = []
        self._waiter = Waiter()
        self._ended: Event | None = None
        self._attended_until = -math.inf
        self._wakes_at = -math.inf
        self._calling = 0
        self._closed = False

    # -- sending -------------------------------------------------------------------------------------------------------

    def _forget_open(self, group: Group) -> None:
        self._open.pop((group.queue, group.ack, group.flag), None)
        where = (group.queue.topic, group.ack, group.flag)
        if self._sticky.get(where) is group:
            del self._sticky[where]

    def _leave(self, group: Group) -> None:
        """Make the group's block and send it, if its turn has come and there is a connection; else the task does."""
        self._forget_open(group)
        group.encode(wall_clock_ms(), self._ids)
        now = self._session.runtime.now()
        group.deadline = now + self._session.timeout_s
        heappush(self._ready, group)
        self._send_ready(now)
        self._attended_until = now + _BUSY_S
        self._session.poll()

    def _send_ready(self, now: float) -> None:
        """Send what can leave without waiting."""
        while self._ready:
            group = self._ready[0]
            connection = self._session.known_connection(group.queue)
            if group.not_before > now or connection is None or not connection.usable():
                self._wake()
                return
            heappop(self._ready)
            template = self._putter.template(
                group.queue,
                len(group.entries),
                group.ack,
                may_be_stored=group.may_be_stored or group.has_own_ids,
            )
            self._flying[group] = None
            group.connection = connection
            group.call = connection.start_template(template, _Arrival(self, group), group.block)
            connection.flush_now()

    def arrived(self, group: Group) -> None:
        """The group's call has finished."""
        self._flying.pop(group, None)
        call = group.call
        assert call is not None, "who arrives has been called"
        try:
            if call.error is not None:
                raise call.error
            result = result_of(call)
        except ReputError as error:
            self._failed_once(group, error, may_be_stored=call.error is not None and call.sent)
            return
        failure: ReputError | None = None
        try:
            check_ack(call, group.ack, ())
        except AckNotReached as error:
            failure = error
        group.settle(result, failure)
        self._finish(group)

    def _failed_once(self, group: Group, error: ReputError, *, may_be_stored: bool) -> None:
        """Send a group again that may be sent again, in halves if one message in it was refused; or give it up."""
        now = self._session.runtime.now()
        group.may_be_stored |= may_be_stored
        if isinstance(error, ClientClosed) or self._closed:
            pass
        elif isinstance(error, ConnectionLost) and not may_be_stored and now < group.deadline:
            self._again(group)  # it has not left
            return
        elif isinstance(error, MessageRefused) and len(group.entries) > 1 and not group.may_be_stored:
            self._unfinished.pop(group)
            for half in group.halves():
                self._unfinished[half] = None
                half.deadline = now + self._session.timeout_s
                self._again(half)
            return
        elif group.attempt < self._retries and (
            may_be_stored or (isinstance(error, BrokerError) and error.retryable)
        ):
            group.attempt += 1
            group.not_before = now + _RETRY_PAUSE_S * group.attempt
            group.deadline = group.not_before + self._session.timeout_s
            self._again(group)
            return
        if group.may_be_stored and not isinstance(error, SendOutcomeUnknown):
            unknown = outcome_unknown(group.queue, group.unique_ids, str(error))
            unknown.__cause__ = error
            error = unknown
        group.settle(None, error)
        self._finish(group)

    def _again(self, group: Group) -> None:
        group.call = group.connection = None
        heappush(self._ready, group)
        self._wake()

    def _finish(self, group: Group) -> None:
        self._unfinished.pop(group, None)
        self._held -= group.size
        route = self._session.routes.get(group.queue.topic)
        if route is not None and route.template:
            self._session.routes.forget(group.queue.topic)
        if any(entry.callback is not None for entry in group.entries):
            self._finished.append(group)
        if group.error is not None:
            unheeded = [entry for entry in group.entries if not entry.heeded]
            self._failures += len(unheeded)
            self._failed += unheeded[: _FAILURES_MAX - len(self._failed)]
        self._notify(group.watchers)
        self._notify(self._watchers)
        if self._finished or not self._unfinished:
            self._wake()

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def _settled(self, posted: Posted, deadline: float) -> None:
        """Wait for one message; the task does what has to be done meanwhile."""
        runtime = self._session.runtime
        while not posted.done:
            event = runtime.event()
            waiter = Waiter()
            waiter.wake = event.set
            watchers = posted.group.watchers
            watchers.append(waiter)
            try:
                await event.wait(deadline if deadline == math.inf else deadline - runtime.now())
            finally:
                if waiter in watchers:
                    watchers.remove(waiter)
            if not waiter.ready and runtime.now() >= deadline:
                return

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed

    async def _until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Wait, reading answers meanwhile, until `condition` holds; False when `deadline` came first."""
        waiter = Waiter()
        self._watchers.append(waiter)
        try:
            while not condition():
                self._check_open()
                waiter.ready = False
                if not await self._session.pump.wait(waiter, deadline):
                    return False
        finally:
            self._watchers.remove(waiter)
        return True

    def _notify(self, waiters: Sequence[Waiter]) -> None:
        for waiter in waiters:
            self._session.pump.wake(waiter)

    # -- the task ------------------------------------------------------------------------------------------------------

    def _see_to(self, due_at: float) -> None:
        """Have the task look at `due_at` at the latest."""
        if self._ended is None:
            self._ended = self._session.runtime.event()
            self._wakes_at = -math.inf
            self._session.runtime.spawn(self._run)
        elif due_at < self._wakes_at:
            self._wake()

    def _wake(self) -> None:
        if self._ended is not None and not self._waiter.ready:
            self._session.pump.wake(self._waiter)

    async def _run(self) -> None:
        ended = self._ended
        assert ended is not None, "it was started"
        try:
            while not self._closed and (self._unfinished or self._finished):
                await self._once()
        except ClientClosed:
            pass
        except Exception as error:
            log.exception("what was posted cannot be sent any more")
            self._give_up(ReputError(f"the producer's task has ended: {error}"))
        finally:
            self._ended = None
            ended.set()

    async def _once(self) -> None:
        runtime = self._session.runtime
        self._waiter.ready = False
        self._wakes_at = -math.inf
        now = runtime.now()
        while self._open:
            group = next(iter(self._open.values()))
            if group.due_at > now:
                break
            self._leave(group)
            self._attended_until = now  # there is nobody else
        await self._connect(now)
        if self._finished:
            await self._call_back()
        now = runtime.now()
        self._expire(now)
        due_at = self._next_due()
        if due_at == math.inf or self._closed:
            return
        self._wakes_at = due_at
        if now < self._attended_until:
            await self._rest(min(due_at, self._attended_until) - now)
        else:
            await self._session.pump.wait(self._waiter, due_at)

    async def _connect(self, now: float) -> None:
        """Connect for groups that wait for it, and send them."""
        while self._ready and self._ready[0].not_before <= now:
            self._send_ready(now)
            if not self._ready or self._ready[0].not_before > now:
                return
            group = self._ready[0]
            try:
                await self._putter.connection(group.queue, group.deadline)
            except ReputError as error:
                if group in self._ready:
                    self._ready.remove(group)
                    self._ready.sort()
                    group.deadline = -math.inf
                    self._failed_once(group, error, may_be_stored=False)
            now = self._session.runtime.now()

    def _expire(self, now: float) -> None:
        for group in list(self._flying):
            if group.deadline > now:
                break
            call, connection = group.call, group.connection
            assert call is not None, "what flies has been called"
            assert connection is not None, "what flies has a connection"
            del self._flying[group]
            taken_back = connection.abandon(call)
            what = f"post to {group.queue.topic}/{group.queue.queue_id}"
            timeout_s = self._session.timeout_s
            error: ReputError = RequestTimeout(what, timeout_s)
            if not taken_back:
                error = outcome_unknown(group.queue, group.unique_ids, f"no answer within {timeout_s:.2g} s")
            self._failed_once(group, error, may_be_stored=not taken_back)

    def _next_due(self) -> float:
        due_at = math.inf
        if self._open:
            due_at = next(iter(self._open.values())).due_at
        if self._ready:
            due_at = min(due_at, self._ready[0].not_before)
        if self._flying:
            due_at = min(due_at, next(iter(self._flying)).deadline)
        return due_at

    async def _rest(self, seconds: float) -> None:
        """Leave the reading to who posts, for a moment."""
        event = self._session.runtime.event()
        self._waiter.wake = event.set
        try:
            await event.wait(seconds)
        finally:
            self._waiter.wake = None

    async def _call_back(self) -> None:
        while self._finished:
            entries = [entry for entry in self._finished.popleft().entries if entry.callback is not None]
            self._calling += 1
            try:
                await self._session.runtime.outside(partial(_call_each, entries))
            finally:
                self._calling -= 1

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give up what has not left. What has, fails when the connections are closed."""
        self._closed = True
        self._give_up(ClientClosed("the client was closed before the message was sent"))
        self._wake()

    def _give_up(self, error: ReputError) -> None:
        for group in [*self._open.values(), *self._ready]:
            self._forget_open(group)
            group.open = False
            group.unique_ids = group.unique_ids or (None,) * len(group.entries)
            unknown = outcome_unknown(group.queue, group.unique_ids, str(error))
            group.settle(None, unknown if group.may_be_stored else error)
            self._finish(group)
        self._ready.clear()

    async def closed(self, timeout_s: float) -> None:
        """Wait, after `close` and the end of the connections, until callbacks are called and the task has ended."""
        if self._ended is not None and not self._calling:
            await self._ended.wait(timeout_s)
        if not self._calling:
            await self._call_back()
        unheeded = sum(not posted.heeded for posted in self._failed)
        if unheeded:
            log.warning(
                "%d posted messages are lost or in doubt: the producer was closed without flush", unheeded
            )
            self._failed.clear()

    def use_ids(self, ids: UniqueIdGenerator | None) -> None:
        """Make ids with another generator from now on."""
        self._ids = ids

    def forget(self) -> None:
        """In a forked child: what gathers and flies is the parent's."""
        for group in self._unfinished:
            group.open = False
        for held in (self._sticky, self._open, self._ready, self._flying, self._unfinished):
            held.clear()
        self._finished.clear()
        self._failed.clear()
        self._watchers.clear()
        self._held = self._calling = self._failures = 0
        self._waiter = Waiter()
        self._ended = None


class _Arrival(Waiter):
    """Takes the answer to a group's block."""

    __slots__ = ("_group", "_sender")

    def __init__(self, sender: GroupSender, group: Group) -> None:
        super().__init__()
        self._sender = sender
        self._group = group

    def notify(self) -> None:
        """The answer is here, or the connection is gone."""
        super().notify()
        self._sender.arrived(self._group)


def _call_each(entries: Sequence[Posted]) -> None:
    for entry in entries:
        try:
            assert entry.callback is not None, "only such are called"
            entry.callback(entry)
        except Exception:
            log.exception("a callback of a posted message has raised")
