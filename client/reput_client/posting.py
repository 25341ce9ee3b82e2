"""Sends that return at once: messages gather in groups, leave as blocks, and are acknowledged later.

While anything is under way a task (a thread, in the blocking face) sees to it that groups leave when they are due, that
answers are read and that what is never answered fails in time. It ends when nothing is left to do. Whoever fills a
group sends its block himself, so that in a busy program the task has next to nothing to do.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Final

from reput_client.batching import Group, Posted
from reput_client.core import Waiter
from reput_client.errors import (
    AckNotReached,
    ClientClosed,
    ConnectionLost,
    PostsFailed,
    RequestTimeout,
    SendOutcomeUnknown,
)
from reput_client.many import id_text_bytes
from reput_client.puts import Putter, check_ack, outcome_unknown, result_of, too_large
from reput_client.queue_selector import RoundRobin, queue_by_id, queue_by_key
from reput_client.receipts import SendReceipt
from reput_client.runtime import Event
from reput_client.session import Session, wall_clock_ms
from reput_protocol.buffers import Buffer
from reput_protocol.codes import AckLevel
from reput_protocol.errors import BrokerError, MessageRefused, ReputError
from reput_protocol.message import (
    Message,
    MessageQueue,
    check_properties_size,
    checked_body,
    encode_properties_text,
)
from reput_protocol.message_id import UniqueIdGenerator
from reput_protocol.record import record_bytes
from reput_protocol.record_batch import BLOCK_BYTES_MAX

log = logging.getLogger("reput_client")

POST_LINGER_S: Final = 0.005
"""How long what is posted waits for more unless the producer has a `linger_s` of its own."""

POST_BLOCK_MESSAGES: Final = 1024
HELD_BYTES: Final = 32 << 20
_RETRY_PAUSE_S: Final = 0.05
_TEXTS_MAX: Final = 1024
_FAILURES_MAX: Final = 10_000
_BUSY_S: Final = 0.005
"""For so long after somebody who posts has looked for answers, the task leaves that to him."""

Callback = Callable[[Posted], object]


class Posts:
    """The groups of one producer.

    Invariant: a group that is not done is in `_unfinished` and in one of `_open`, `_ready` (its block is made and waits
    for its turn or for a connection) and `_flying` (its call is pending). Groups of one queue leave in their order.
    """

    def __init__(
        self,
        session: Session,
        putter: Putter,
        selector: RoundRobin,
        ids: UniqueIdGenerator | None,
        *,
        linger_s: float,
        block_bytes: int,
        held_bytes: int,
        retries: int,
    ) -> None:
        self._session = session
        self._putter = putter
        self._selector = selector
        self._ids = ids
        self._id_bytes = id_text_bytes(ids)
        self._linger_s = linger_s if linger_s > 0 else POST_LINGER_S
        self._block_bytes = block_bytes
        self._held_max = held_bytes
        self._retries = retries
        self._held = 0
        self._serials = itertools.count()
        self._texts: dict[str | None, bytes] = {}
        self._fixed: dict[str, int] = {}
        self._sticky: dict[tuple[str, AckLevel, int], Group] = {}
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

    # -- taking messages -----------------------------------------------------------------------------------------------

    def post_now(
        self,
        topic: str,
        body: Buffer,
        tag: str | None,
        keys: Sequence[str],
        properties: Mapping[str, str] | None,
        flag: int,
        ack: AckLevel,
        queue_id: int | None,
        key: str | None,
        callback: Callback | None,
    ) -> Posted | None:
        """Put a message into a group that is open; None if that takes more than a moment: see `post`."""
        if queue_id is None and key is None:
            group = self._sticky.get((topic, ack, flag))
        else:
            queue = self._queue(topic, queue_id, key)
            group = None if queue is None else self._open.get((queue, ack, flag))
        if group is None or not group.open:
            return None
        text = self._texts.get(tag) if not keys and not properties else None
        if text is None:
            text = self._text_of(topic, tag, keys, properties)
        if type(body) is not bytes:
            body = bytes(checked_body(body))  # its owner may change it when this has returned
        size = len(body) + len(text) + self._fixed[topic]
        if group.size + size > self._block_bytes or self._held + size > self._held_max:
            return None
        self._held += size
        posted = group.add(body, text, size, callback)
        if posted.number >= POST_BLOCK_MESSAGES - 1:
            self._leave(group)
        return posted

    async def post(
        self,
        topic: str,
        body: Buffer,
        tag: str | None,
        keys: Sequence[str],
        properties: Mapping[str, str] | None,
        flag: int,
        ack: AckLevel,
        queue_id: int | None,
        key: str | None,
        callback: Callback | None,
    ) -> Posted:
        """Put a message into a group once there is room; send the group that it does not fit, open one if need be.

        Raises:
            InvalidName, InvalidMessage: it cannot be sent.
            RequestTimeout: nothing that is held was answered in time.
            TopicNotFound, NoQueue, ConnectFailed, ClientClosed: not sent.
        """
        message = Message(topic, body, tag, keys, properties, flag)
        body = message.body if type(message.body) is bytes else bytes(message.body)
        text = self._text_of(topic, tag, keys, properties)
        deadline = self._session.deadline(None)
        route = await self._session.publish_route(topic, deadline)
        if queue_id is not None:
            queue = queue_by_id(route, queue_id)
        elif key is not None:
            queue = queue_by_key(route, key)
        else:
            group = self._sticky.get((topic, ack, flag))
            if group is not None and group.size + self._size(topic, body, text) > self._block_bytes:
                self._leave(group)
                group = None
            queue = self._selector.choose(route) if group is None else group.queue
            return await self._add(queue, ack, flag, body, text, callback, deadline, is_sticky=True)
        return await self._add(queue, ack, flag, body, text, callback, deadline)

    async def send(
        self,
        queue: MessageQueue,
        message: Message,
        ack: AckLevel,
        deadline: float,
        *,
        has_deadline: bool,
    ) -> SendReceipt:
        """Send `message` together with others that come soon; raises what `Producer.send` raises.

        Who is cancelled before the group has left takes the message back; later, only the wait ends.
        """
        body = message.body if type(message.body) is bytes else bytes(message.body)
        text = encode_properties_text(message, None)
        started_at = self._session.runtime.now()
        posted = await self._add(
            queue, ack, message.flag, body, text, None, deadline, has_own_id=message.unique_id is not None
        )
        posted.heeded = True
        try:
            await self._settled(posted, deadline if has_deadline else math.inf)
        finally:
            taken_back = not posted.done and self._withdraw(posted, self._size(queue.topic, body, text))
        if not posted.done:
            waited_s = deadline - started_at
            if taken_back:
                raise RequestTimeout(f"send to {queue.topic}/{queue.queue_id}", waited_s)
            unique_id = posted.group.unique_ids[posted.number]
            raise outcome_unknown(queue, [unique_id], f"no answer within {waited_s:.2g} s")
        return posted.receipt

    async def _add(
        self,
        queue: MessageQueue,
        ack: AckLevel,
        flag: int,
        body: bytes,
        text: bytes,
        callback: Callback | None,
        deadline: float,
        *,
        has_own_id: bool = False,
        is_sticky: bool = False,
    ) -> Posted:
        check_properties_size(len(text) + (0 if has_own_id else self._id_bytes))
        size = self._size(queue.topic, body, text)
        if size > BLOCK_BYTES_MAX:
            raise too_large(size)
        if self._held and self._held + size > self._held_max:
            await self._room_for(size, deadline)
        self._check_open()
        where = (queue, ack, flag)
        group = self._open.get(where)
        if group is not None and group.size + size > self._block_bytes:
            self._leave(group)
            group = None
        if group is None:
            now = self._session.runtime.now()
            group = self._open[where] = Group(next(self._serials), queue, ack, flag, now + self._linger_s)
            self._unfinished[group] = None
            self._see_to(group.due_at)
            if is_sticky:
                self._sticky[queue.topic, ack, flag] = group
        self._held += size
        posted = group.add(body, text, size, callback)
        group.has_own_ids |= has_own_id
        if group.size >= self._block_bytes or len(group.entries) >= POST_BLOCK_MESSAGES:
            self._leave(group)
        return posted

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed

    def _queue(self, topic: str, queue_id: int | None, key: str | None) -> MessageQueue | None:
        """Return the queue that was asked for, None if the topic's route is not known."""
        route = self._session.routes.get(topic)
        if route is None:
            return None
        return queue_by_id(route, queue_id) if queue_id is not None else queue_by_key(route, key or "")

    def _text_of(
        self, topic: str, tag: str | None, keys: Sequence[str], properties: Mapping[str, str] | None
    ) -> bytes:
        text = encode_properties_text(Message(topic, b"", tag, keys, properties), None)
        check_properties_size(len(text) + self._id_bytes)
        if not keys and not properties:
            if len(self._texts) >= _TEXTS_MAX:
                self._texts.clear()
            self._texts[tag] = text
        return text

    def _size(self, topic: str, body: bytes, text: bytes) -> int:
        fixed = self._fixed.get(topic)
        if fixed is None:
            if len(self._fixed) >= _TEXTS_MAX:
                self._fixed = {
                    group.queue.topic: self._fixed[group.queue.topic] for group in self._unfinished
                }
            fixed = self._fixed[topic] = record_bytes(0, topic, self._id_bytes)
        return fixed + len(body) + len(text)

    async def _room_for(self, size: int, deadline: float) -> None:
        """Wait until `size` more bytes may be held; what gathers leaves at once."""
        for group in list(self._open.values()):
            self._leave(group)
        started_at = self._session.runtime.now()
        if not await self._until(lambda: not self._held or self._held + size <= self._held_max, deadline):
            raise RequestTimeout(
                f"room for {size} bytes beside the {self._held} that wait for an answer",
                deadline - started_at,
            )

    def _withdraw(self, posted: Posted, size: int) -> bool:
        group = posted.group
        if not group.withdraw(posted, size):
            return False
        self._held -= size
        if not group.entries:
            self._forget_open(group)
            group.open = False
            group.done = True
            self._unfinished.pop(group, None)
        self._notify(self._watchers)
        return True

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

    async def result(self, posted: Posted) -> SendReceipt:
        """Wait until a posted message is done; return its receipt or raise its error."""
        posted.heeded = True
        await self._settled(posted, math.inf)
        return posted.receipt

    async def flush(self) -> None:
        """Send what has gathered and wait until all that was posted before is done, callbacks included.

        Raises:
            PostsFailed: messages failed, and nobody was told of it yet.
        """
        for group in list(self._open.values()):
            self._leave(group)
        last = max((group.serial for group in self._unfinished), default=-1)
        await self._until(lambda: all(group.serial > last for group in self._unfinished), math.inf)
        await self._call_back()
        self._raise_failures()

    def _raise_failures(self) -> None:
        failed, self._failed = self._failed, []
        count, self._failures = self._failures, 0
        more = count - len(failed)
        unheeded = [posted for posted in failed if not posted.heeded]
        if unheeded:
            for posted in unheeded:
                posted.heeded = True
            raise PostsFailed(unheeded, len(unheeded) + more)

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

    __slots__ = ("_group", "_posts")

    def __init__(self, posts: Posts, group: Group) -> None:
        super().__init__()
        self._posts = posts
        self._group = group

    def notify(self) -> None:
        """The answer is here, or the connection is gone."""
        super().notify()
        self._posts.arrived(self._group)


def _call_each(entries: Sequence[Posted]) -> None:
    for entry in entries:
        try:
            assert entry.callback is not None, "only such are called"
            entry.callback(entry)
        except Exception:
            log.exception("a callback of a posted message has raised")
